//! Places of IRD and ORD for confirmations ([`CompletionMeans::Placed`]), besides those that programs
//! ask for.

use crate::limits::READS_OUTSTANDING_MAX;
use crate::mpa::startup::{Negotiated, Offer, Retry, Rtr, RtrKind};
use crate::verbs::{CompletionMeans, QpRules, QpShared};

/// The depths that the program has asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    ird: u16,
    ord: u16,
}

impl Asked {
    pub(super) const fn of(offer: &Offer<'_>) -> Self {
        Self { ird: offer.ird, ord: offer.ord }
    }

    /// What is offered to the peer: one Read more of each end, for confirmations, if this end asks for them or
    /// has InfiniBand's rules: then its peer is expected to.
    pub(super) fn offer<'a>(self, qp: &QpShared, private_data: &'a [u8]) -> Offer<'a> {
        let is_more = Self::is_more(qp);
        Offer { private_data, ird: more(self.ird, is_more), ord: more(self.ord, is_more) }
    }

    /// Whether one more is asked for and given.
    fn is_more(qp: &QpShared) -> bool {
        qp.completion == CompletionMeans::Placed || qp.rules == QpRules::InfiniBand
    }

    /// Takes the place of the confirmations out of what was agreed on, if there is one more than the
    /// program has asked for. Returns whether there is.
    ///
    /// A peer that has not said how many Reads it takes was asked for no more in another way either
    /// (RFC 6581 §9.1): the program's have to do, and a ready-to-receive Read is one of them.
    pub(super) fn divide(self, qp: &QpShared, terms: &mut Negotiated) -> bool {
        // Without confirmations what was agreed on is the program's. It may be more than it has asked
        // for: a ready-to-receive Read needs a place (RFC 6581 §9.1).
        if !Self::is_more(qp) || terms.ord <= self.ord {
            return false;
        }
        let is_apart = terms.peer_depths.ird.is_some();
        let needs_one = !is_apart && terms.rtr == Rtr::Send(RtrKind::ReadZero);
        terms.ord = self.ord.max(u16::from(needs_one));
        is_apart
    }

    /// What the program is told of what is agreed on: nothing of the place that it has not asked for.
    pub(super) fn show(self, qp: &QpShared, terms: &mut Negotiated) {
        if Self::is_more(qp) && terms.ird == more(self.ird, true) {
            terms.ird = self.ird;
        }
    }

    /// Another startup begins with what the program has asked for.
    pub(super) const fn restore(self, retry: &mut Retry) {
        (retry.ird, retry.ord) = (self.ird, self.ord);
    }
}

/// One more, if it is wanted. What is beyond the limit is for the startup to refuse.
const fn more(depth: u16, is_wanted: bool) -> u16 {
    if is_wanted && depth < READS_OUTSTANDING_MAX { depth + 1 } else { depth }
}
