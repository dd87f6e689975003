//! Outstanding RDMA Reads and Atomics of the requester (RFC 5040 §5.2, §6.1; RFC 7306 §5.2).

use std::collections::VecDeque;

use crate::rdmap::RdmapError;
use crate::types::{Stag, TaggedOffset};

/// `work` of a Read of no bytes that confirms the placement of everything before it.
pub(crate) const CONFIRMATION: u64 = u64::MAX - 1;
/// `work` of a Read that is the ready-to-receive message (RFC 6581 §9.2).
pub(crate) const RTR_WORK: u64 = u64::MAX;

/// The engine itself sent the Read: no request of the application waits for its Response.
pub(crate) const fn is_own(work: u64) -> bool {
    work >= CONFIRMATION
}

/// One request that awaits its Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// An RDMA Read.
    Read {
        /// The sink's STag, as sent.
        stag: Stag,
        /// Start of the data in the sink.
        to: TaggedOffset,
        /// Requested bytes.
        len: u32,
        /// Delivered bytes so far.
        delivered_len: u32,
    },
    /// An Atomic.
    Atomic {
        /// Identifier that the Response must echo.
        request_id: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    awaited: Awaited,
    work: u64,
}

/// Requests of one stream that await Responses, oldest first: at most ORD, and one confirmation.
#[derive(Debug)]
pub struct Requester {
    entries: VecDeque<Entry>,
    /// Limit of the application's outstanding requests.
    ord: u16,
    /// A confirmation has a place of its own, in addition to `ord`.
    has_place_apart: bool,
    confirming: bool,
    peer_closed: bool,
    /// A request was sent after the peer had closed its half: no Response can answer it.
    unanswerable: bool,
}

impl Requester {
    /// A requester with nothing outstanding, for at most `ord` requests at a time.
    #[must_use]
    pub fn new(ord: u16) -> Self {
        Self {
            entries: VecDeque::new(),
            ord,
            has_place_apart: false,
            confirming: false,
            peer_closed: false,
            unanswerable: false,
        }
    }

    pub(crate) const fn set_place_apart(&mut self, has_place_apart: bool) {
        self.has_place_apart = has_place_apart;
    }

    /// Returns true if another request of the application may be sent within ORD (RFC 5040 §6.1).
    // spec: RDMAP-6.1-3, SEC-R-11
    #[must_use]
    pub fn has_room(&self) -> bool {
        let apart = usize::from(self.has_place_apart && self.confirming);
        self.entries.len() - apart < usize::from(self.ord)
    }

    /// Returns true if a confirmation may be sent now: one at a time, and within ORD.
    pub(crate) fn may_confirm(&self) -> bool {
        !self.confirming && !self.peer_closed && self.has_place()
    }

    pub(crate) const fn can_confirm(&self) -> bool {
        self.has_place_apart || self.ord > 0
    }

    pub(crate) fn has_place(&self) -> bool {
        self.entries.len() < usize::from(self.ord) + usize::from(self.has_place_apart)
    }

    /// Returns true if a request may ever be sent.
    #[must_use]
    pub const fn may_ask(&self) -> bool {
        self.ord > 0
    }

    /// Returns true if nothing is outstanding.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns true if no request of the application is outstanding, which a fence waits for.
    #[must_use]
    pub(crate) fn is_clear(&self) -> bool {
        self.entries.len() == usize::from(self.confirming)
    }

    /// Records a sent request; `work` is returned when it is answered. Panics if there is no room.
    pub fn sent(&mut self, awaited: Awaited, work: u64) {
        // The ready-to-receive message comes first, so it may take the place for confirmations.
        assert!(self.has_place(), "more Reads outstanding than ORD");
        if self.peer_closed && is_own(work) {
            // No work of the application waits for that Response.
            return;
        }
        self.entries.push_back(Entry { awaited, work });
        self.confirming |= work == CONFIRMATION;
        self.unanswerable |= self.peer_closed;
    }

    /// The peer has closed its half. Returns true if the application awaits no Response.
    pub(crate) fn peer_closed(&mut self) -> bool {
        self.peer_closed = true;
        self.confirming = false;
        self.entries.retain(|entry| !is_own(entry.work));
        self.is_idle()
    }

    #[must_use]
    pub(crate) const fn has_unanswerable(&self) -> bool {
        self.unanswerable
    }

    /// `work` of the oldest request, which the next Response must answer.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.work)
    }

    /// `work` of the Read whose sink contains the byte at (`stag`, `to`).
    #[must_use]
    pub(crate) fn read_into(&self, at: Stag, octet: TaggedOffset) -> Option<u64> {
        let inside = |entry: &&Entry| match entry.awaited {
            Awaited::Read { stag, to, len, delivered_len: _ } => {
                stag == at && octet.0.wrapping_sub(to.0) < u64::from(len)
            }
            Awaited::Atomic { .. } => false,
        };
        self.entries.iter().find(inside).map(|entry| entry.work)
    }

    /// Checks that a Response segment with `len` bytes at (`stag`, `to`) answers a request: else a
    /// hostile peer could write anything through the STag of a sink (RFC 5040 §5.2.2; siw checks
    /// the same). Responses may be placed out of order, so any outstanding Read is accepted here;
    /// delivery is strict.
    // spec: RDMAP-5.2.2-5, SEC-R-17
    pub(crate) fn check_placement(
        &self,
        at: Stag,
        start: TaggedOffset,
        size: usize,
    ) -> Result<(), RdmapError> {
        let inside = |entry: &Entry| match entry.awaited {
            Awaited::Read { stag, to, len, delivered_len: _ } => {
                let skip = start.0.wrapping_sub(to.0);
                stag == at && skip <= u64::from(len) && size as u64 <= u64::from(len) - skip
            }
            Awaited::Atomic { .. } => false,
        };
        if self.entries.iter().any(inside) { Ok(()) } else { Err(RdmapError::UnexpectedOpcode) }
    }

    /// Returns true if a Read of the engine itself with this sink awaits its Response. siw may
    /// answer with bytes, because its queue keeps the length of its previous Response. The caller
    /// drops them.
    #[cold]
    pub(crate) fn awaits_own(&self, at: Stag) -> bool {
        let is_it = |entry: &Entry| match entry.awaited {
            Awaited::Read { stag, .. } => is_own(entry.work) && stag == at,
            Awaited::Atomic { .. } => false,
        };
        self.entries.iter().any(is_it)
    }

    /// Delivers a segment of a Read Response, in stream order. Returns the `work` and the length of
    /// the Read with its last segment. Fails with [`RdmapError::UnexpectedOpcode`] if the oldest
    /// request is not a Read with this sink, [`RdmapError::Stream`] if the Response ends early or
    /// late.
    pub(crate) fn deliver_read(
        &mut self,
        at: Stag,
        start: TaggedOffset,
        size: u32,
        last: bool,
    ) -> Result<Option<(u64, u32)>, RdmapError> {
        // RFC 5040 §5.5 rule 20: Responses come in the order of the Requests.
        // spec: RDMAP-5.5-11
        let Some(entry) = self.entries.front_mut() else {
            return Err(RdmapError::UnexpectedOpcode);
        };
        let is_own = is_own(entry.work);
        let Awaited::Read { stag, to, len, delivered_len } = &mut entry.awaited else {
            return Err(RdmapError::UnexpectedOpcode);
        };
        // See `awaits_own`: these bytes were dropped.
        let size = if is_own && *stag == at { 0 } else { size };
        let expected = TaggedOffset(to.0.wrapping_add(u64::from(*delivered_len)));
        // RFC 5041 §5.2: STag and TO of an empty segment are not checked.
        if size > 0 && (*stag != at || expected != start) {
            return Err(RdmapError::UnexpectedOpcode);
        }
        let total = delivered_len.checked_add(size).filter(|total| *total <= *len);
        let Some(total) = total else { return Err(RdmapError::Stream) };
        *delivered_len = total;
        if !last {
            return Ok(None);
        }
        if total != *len {
            return Err(RdmapError::Stream);
        }
        let work = entry.work;
        self.entries.pop_front();
        self.confirming &= work != CONFIRMATION;
        Ok(Some((work, total)))
    }

    /// Delivers an Atomic Response, in stream order, and returns its `work`.
    // spec: EXT-5.2.2-3, EXT-5.4-1, EXT-5.4-7
    pub(crate) fn deliver_atomic(&mut self, response_id: u32) -> Result<u64, RdmapError> {
        match self.entries.front() {
            Some(Entry { awaited: Awaited::Atomic { request_id }, work })
                if *request_id == response_id =>
            {
                let work = *work;
                self.entries.pop_front();
                Ok(work)
            }
            _ => Err(RdmapError::UnexpectedOpcode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stag: u32, to: u64, len: u32) -> Awaited {
        Awaited::Read { stag: Stag(stag), to: TaggedOffset(to), len, delivered_len: 0 }
    }

    #[test]
    fn outstanding_reads_never_exceed_ord() {
        let mut requester = Requester::new(2);
        requester.sent(read(1, 0, 8), 10);
        assert!(requester.has_room());
        requester.sent(read(1, 8, 8), 11);
        assert!(!requester.has_room());
        let done = requester.deliver_read(Stag(1), TaggedOffset(0), 8, true);
        assert_eq!(done, Ok(Some((10, 8))));
        assert!(requester.has_room());
    }

    #[test]
    fn confirmation_uses_its_own_or_a_shared_read_slot() {
        let mut shared = Requester::new(1);
        assert!(shared.can_confirm() && shared.may_confirm());
        shared.sent(read(1, 0, 0), CONFIRMATION);
        assert!(!shared.has_room() && !shared.may_confirm(), "there is one place");
        assert!(shared.is_clear() && !shared.is_idle(), "no fence waits for it");
        assert_eq!(
            shared.deliver_read(Stag(1), TaggedOffset(0), 0, true),
            Ok(Some((CONFIRMATION, 0)))
        );
        assert!(shared.has_room() && shared.may_confirm());
        let mut apart = Requester::new(1);
        apart.set_place_apart(true);
        apart.sent(read(1, 0, 0), CONFIRMATION);
        assert!(apart.has_room() && !apart.may_confirm(), "one at a time");
        apart.sent(read(1, 0, 8), 7);
        assert!(!apart.has_room() && !apart.is_clear());
        assert!(!apart.peer_closed(), "the program awaits a Response");
        assert!(!apart.may_confirm() && !Requester::new(0).can_confirm());
    }

    /// A peer that closes at once does not answer a ready-to-receive Read; no work fails for that.
    #[test]
    fn a_peer_that_closes_owes_no_answer_to_a_ready_to_receive_read() {
        let mut before = Requester::new(1);
        before.sent(read(1, 0, 0), RTR_WORK);
        assert!(before.peer_closed() && before.is_idle());
        let mut after = Requester::new(1);
        assert!(after.peer_closed());
        after.sent(read(1, 0, 0), RTR_WORK);
        assert!(after.is_idle() && !after.has_unanswerable());
        after.sent(read(1, 0, 8), 0);
        assert!(!after.is_idle() && after.has_unanswerable());
    }

    #[test]
    fn responses_are_placed_in_any_order_inside_their_sink_only() {
        let mut requester = Requester::new(4);
        requester.sent(read(1, 100, 50), 0);
        requester.sent(read(2, 0, 10), 1);
        let check = |stag, to, len| requester.check_placement(Stag(stag), TaggedOffset(to), len);
        assert_eq!(check(2, 0, 10), Ok(()));
        assert_eq!(check(1, 149, 1), Ok(()));
        assert_eq!(check(1, 149, 2), Err(RdmapError::UnexpectedOpcode));
        assert_eq!(check(1, 99, 1), Err(RdmapError::UnexpectedOpcode));
        assert_eq!(check(3, 0, 1), Err(RdmapError::UnexpectedOpcode));
        assert_eq!(check(1, u64::MAX, 1), Err(RdmapError::UnexpectedOpcode));
    }

    #[test]
    fn response_must_have_the_requested_length() {
        let mut requester = Requester::new(1);
        requester.sent(read(1, 0, 8), 0);
        let short = requester.deliver_read(Stag(1), TaggedOffset(0), 7, true);
        assert_eq!(short, Err(RdmapError::Stream));
    }

    #[test]
    fn a_read_is_found_by_any_octet_of_its_sink() {
        let mut requester = Requester::new(4);
        assert_eq!(requester.oldest(), None);
        requester.sent(Awaited::Atomic { request_id: 9 }, 3);
        requester.sent(read(1, 100, 50), 4);
        requester.sent(read(1, 150, 1), 5);
        assert_eq!(requester.oldest(), Some(3));
        let found = |stag, to| requester.read_into(Stag(stag), TaggedOffset(to));
        assert_eq!((found(1, 100), found(1, 149), found(1, 150)), (Some(4), Some(4), Some(5)));
        assert_eq!((found(1, 99), found(1, 151), found(2, 100)), (None, None, None));
    }

    /// siw sometimes answers so.
    #[test]
    fn a_confirmation_may_be_answered_by_bytes_that_are_dropped() {
        let mut requester = Requester::new(2);
        requester.sent(read(1, 0, 0), CONFIRMATION);
        requester.sent(read(7, 100, 8), 3);
        assert!(requester.awaits_own(Stag(1)) && !requester.awaits_own(Stag(7)));
        let placed = requester.check_placement(Stag(1), TaggedOffset(0), 64);
        assert_eq!(placed, Err(RdmapError::UnexpectedOpcode), "never placed");
        assert_eq!(requester.deliver_read(Stag(1), TaggedOffset(0), 64, false), Ok(None));
        let done = requester.deliver_read(Stag(1), TaggedOffset(64), 64, true);
        assert_eq!(done, Ok(Some((CONFIRMATION, 0))));
        assert!(!requester.awaits_own(Stag(1)));
        // A Read of the application gets what it asks for.
        let long = requester.deliver_read(Stag(7), TaggedOffset(100), 9, true);
        assert_eq!(long, Err(RdmapError::Stream));
    }

    #[test]
    fn an_empty_response_needs_no_valid_tag() {
        let mut requester = Requester::new(1);
        requester.sent(read(1, 77, 0), 5);
        let done = requester.deliver_read(Stag(0xdead), TaggedOffset(0), 0, true);
        assert_eq!(done, Ok(Some((5, 0))));
    }

    #[test]
    fn an_atomic_response_must_echo_its_request() {
        let mut requester = Requester::new(1);
        requester.sent(Awaited::Atomic { request_id: 9 }, 3);
        assert_eq!(requester.deliver_atomic(8), Err(RdmapError::UnexpectedOpcode));
        assert_eq!(requester.deliver_atomic(9), Ok(3));
        assert_eq!(requester.deliver_atomic(9), Err(RdmapError::UnexpectedOpcode));
    }
}
