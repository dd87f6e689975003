//! Features that an initiator drops, on a new connection, if a peer lacks them. No peer reports
//! which part of the Request it did not understand: another attempt is a guess. Each is made at
//! most once, if it may help: revision 1 first, then no markers.

use super::{MpaStartupError, Offer, Rejection, Revision, StartupConfig};

bitflags::bitflags! {
    /// Features that an initiator may drop.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Fallback: u8 {
        /// Revision 2, for peers that know only RFC 5044. The applications then agree on IRD and
        /// ORD. Never dropped in the peer-to-peer model.
        // RFC 6581 §10: the initiator MAY then attempt to use RFC 5044, if the ULP can.
        const REVISION_1 = 1;
        /// Markers in what the peer sends: for peers that cannot send any.
        const NO_MARKERS = 1 << 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setback<'a> {
    /// The peer closed or reset the established connection instead of sending a whole Reply.
    Closed,
    Unusable(MpaStartupError),
    Rejected(&'a Rejection),
}

/// Another attempt, on a new TCP connection to the same peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Settings of the attempt, with fewer fallbacks left.
    pub startup: StartupConfig,
    /// Private Data of the first offer.
    pub private_data: Vec<u8>,
    /// IRD of the first offer.
    pub ird: u16,
    /// ORD of the first offer.
    pub ord: u16,
}

impl Retry {
    /// The offer of this attempt.
    #[must_use]
    pub fn offer(&self) -> Offer<'_> {
        Offer { private_data: &self.private_data, ird: self.ird, ord: self.ord }
    }
}

/// A Reply with too high an ORD, or without a common RTR message, leads to no other attempt: the
/// peer has understood the Request and receives a Terminate with the reason (RFC 6581 §9).
pub(super) fn after(config: &StartupConfig, setback: &Setback<'_>) -> Option<StartupConfig> {
    let lower_revision = config.fallback.contains(Fallback::REVISION_1)
        && config.revision == Revision::Two
        && !config.peer_to_peer;
    let no_markers = config.fallback.contains(Fallback::NO_MARKERS)
        && config.markers
        && config.revision > Revision::Rdmac;
    let in_revision_1 = StartupConfig {
        revision: Revision::One,
        fallback: config.fallback.difference(Fallback::REVISION_1),
        ..*config
    };
    let without_markers = StartupConfig {
        markers: false,
        fallback: config.fallback.difference(Fallback::NO_MARKERS),
        ..*config
    };
    match setback {
        // RFC 6581 §10: a responder that knows only RFC 5044 takes an enhanced Request for
        // malformed and closes TCP; RFC 5044 §7.1.1 has it close TCP for the revision alone.
        // spec: MPA2-10-4
        Setback::Closed if lower_revision => Some(in_revision_1),
        Setback::Closed if no_markers => Some(without_markers),
        // A Reply of revision 1, or 0, or without S: the peer has not understood the Request.
        Setback::Unusable(MpaStartupError::EnhancedMismatch) if lower_revision => {
            Some(in_revision_1)
        }
        // RFC 5044 §4.3 requires markers of every sender. Peers that cannot send them reject
        // without Private Data; an application that rejects mostly gives a reason.
        Setback::Rejected(rejection) if no_markers && rejection.private_data.is_empty() => {
            Some(without_markers)
        }
        _ => None,
    }
}
