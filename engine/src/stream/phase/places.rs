//! One more unit of IRD and ORD for confirmations ([`CompletionLevel::Placed`]).

use crate::limits::READS_OUTSTANDING_MAX;
use crate::mpa::startup::{Negotiated, Offer, Retry, Rtr, RtrKind};
use crate::verbs::{CompletionLevel, QpRules, QpShared};

/// The depths that the application has asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestedDepths {
    ird: u16,
    ord: u16,
}

impl RequestedDepths {
    pub(super) const fn of(offer: &Offer<'_>) -> Self {
        Self { ird: offer.ird, ord: offer.ord }
    }

    /// The offer has one Read more in each direction if this end asks for confirmations or has
    /// InfiniBand's rules: the peer is then expected to ask for them.
    pub(super) fn offer<'a>(self, qp: &QpShared, private_data: &'a [u8]) -> Offer<'a> {
        let is_more = Self::is_more(qp);
        Offer { private_data, ird: more(self.ird, is_more), ord: more(self.ord, is_more) }
    }

    fn is_more(qp: &QpShared) -> bool {
        qp.completion == CompletionLevel::Placed || qp.rules == QpRules::InfiniBand
    }

    /// Takes the unit for confirmations out of the negotiated ORD, if that exceeds the requested
    /// one, and returns true. A peer that has not announced its IRD was not asked for more by other
    /// means either (RFC 6581 §9.1): confirmations then share the application's ORD, and so does a
    /// ready-to-receive Read.
    pub(super) fn divide(self, qp: &QpShared, terms: &mut Negotiated) -> bool {
        // Without confirmations the negotiated ORD is the application's, and may exceed the
        // requested one: a ready-to-receive Read needs a unit (RFC 6581 §9.1).
        if !Self::is_more(qp) || terms.ord <= self.ord {
            return false;
        }
        let is_apart = terms.peer_depths.ird.is_some();
        let needs_one = !is_apart && terms.rtr == Rtr::Send(RtrKind::ReadZero);
        terms.ord = self.ord.max(u16::from(needs_one));
        is_apart
    }

    /// Hides the extra unit of IRD, which the application did not ask for, from the terms it gets.
    pub(super) fn show(self, qp: &QpShared, terms: &mut Negotiated) {
        if Self::is_more(qp) && terms.ird == more(self.ird, true) {
            terms.ird = self.ird;
        }
    }

    pub(super) const fn restore(self, retry: &mut Retry) {
        (retry.ird, retry.ord) = (self.ird, self.ord);
    }
}

/// Adds one if `is_wanted`. The startup refuses depths beyond the limit.
const fn more(depth: u16, is_wanted: bool) -> u16 {
    if is_wanted && depth < READS_OUTSTANDING_MAX { depth + 1 } else { depth }
}
