//! The rules for IRD and ORD (RFC 6581 §9.1), as pure functions.

use super::PeerDepths;
use crate::limits::READS_OUTSTANDING_MAX;
use crate::wire::mpa::EnhancedHeader;

const NOT_NEGOTIATED: u16 = EnhancedHeader::NOT_NEGOTIATED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depths {
    pub(super) ird: u16,
    pub(super) ord: u16,
}

pub(super) fn peer_depths(word: &EnhancedHeader) -> PeerDepths {
    // RFC 6581 §9.1: 0x3FFF means "not negotiated"; it is never a count.
    // spec: MPA2-9.1-10
    let count = |depth: u16| (depth != NOT_NEGOTIATED).then_some(depth);
    PeerDepths { ird: count(word.ird), ord: count(word.ord) }
}

/// After a Request with `peer`: the responder's depths to use, and those for the Reply.
pub(super) fn respond(own: Depths, peer: PeerDepths) -> (Depths, Depths) {
    // RFC 6581 §9.1: the responder's ORD MUST NOT exceed the initiator's IRD.
    // spec: MPA2-9.1-2, MPA2-9.1-3
    let used = Depths { ord: peer.ird.map_or(own.ord, |ird| own.ord.min(ird)), ..own };
    // RFC 6581 §9.1: an ORD of 0x3FFF is answered by an IRD of 0x3FFF, and an IRD of 0x3FFF by an
    // ORD of 0x3FFF. The responder then keeps its own value.
    // spec: MPA2-9.1-9
    let said = Depths {
        ird: if peer.ord.is_some() { used.ird } else { NOT_NEGOTIATED },
        ord: if peer.ird.is_some() { used.ord } else { NOT_NEGOTIATED },
    };
    (used, said)
}

/// The initiator's depths after a Reply with `peer`. `None`: its IRD would exceed the limit.
pub(super) fn conclude(own: Depths, peer: PeerDepths) -> Option<Depths> {
    // RFC 6581 §9.1: the initiator MUST set its IRD to at least the responder's ORD, and its ORD
    // to at most the responder's IRD; a value of 0x3FFF changes nothing.
    // spec: MPA2-9.1-3, MPA2-9.1-6
    let used = Depths {
        ird: own.ird.max(peer.ord.unwrap_or(0)),
        ord: peer.ird.map_or(own.ord, |ird| own.ord.min(ird)),
    };
    // RFC 6581 §12: the peer's numbers are checked before they size any allocation.
    // spec: MPA2-9.1-11, SEC-R-19
    (used.ird <= READS_OUTSTANDING_MAX).then_some(used)
}
