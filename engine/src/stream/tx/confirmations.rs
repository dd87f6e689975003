//! The confirmed part of the send queue, the confirmations still to request
//! ([`CompletionLevel::Placed`](crate::verbs::CompletionLevel::Placed)), and the unsignaled Writes
//! that the peer may still refuse.

use std::collections::VecDeque;

use crate::limits::{UNCONFIRMED_BYTES, UNCONFIRMED_REQUESTS, UNSIGNALED_KEPT_MAX};
use crate::types::{Stag, StreamOffset, TaggedOffset, WrId};
use crate::verbs::{RemoteBuffer, SendOp, SendWr, WcOpcode};

#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// No further Response will arrive.
    pub(super) are_over: bool,
    /// Requests before this number are placed at the peer.
    confirmed: u64,
    /// Requests before this number are placed once all outstanding Reads and Atomics are answered.
    asked: u64,
    /// Requests before this are placed once the engine's last request is answered.
    asked_last: u64,
    /// One more than the number of the last framed request that needs confirmation.
    framed: u64,
    /// Stream ends of the first and the last framed request whose confirmation was not requested.
    first_end: StreamOffset,
    last_end: StreamOffset,
    pub(super) count: u64,
    /// Unsignaled Writes that are done for TCP and that no confirmation covers.
    unsignaled: VecDeque<Unsignaled>,
    refused: Option<Unsignaled>,
}

#[derive(Clone, Copy, Debug)]
struct Unsignaled {
    number: u64,
    id: WrId,
    opcode: WcOpcode,
    remote: RemoteBuffer,
    len: u32,
}

impl Confirmations {
    #[inline]
    pub(super) const fn lack(&self, number: u64) -> bool {
        !self.are_over && number >= self.confirmed
    }

    pub(super) const fn framed(&mut self, number: u64, end: StreamOffset) {
        if !self.are_awaited() {
            self.first_end = end;
        }
        (self.framed, self.last_end) = (number + 1, end);
    }

    #[inline]
    pub(super) const fn are_awaited(&self) -> bool {
        !self.are_over && self.framed > self.asked
    }

    /// The engine should request a confirmation before it sends more: else completions are late.
    #[inline]
    pub(super) const fn are_due(&self) -> bool {
        self.are_awaited()
            && (self.framed - self.asked >= UNCONFIRMED_REQUESTS
                || self.last_end.0 - self.first_end.0 >= UNCONFIRMED_BYTES)
    }

    /// A completion ends all requests before it. Keeps an unsignaled Write as long as the peer may
    /// refuse it; the refusal of one forgotten for lack of room concerns no request.
    #[inline]
    pub(super) fn completed(&mut self, number: u64, wr: &SendWr, len: u32) {
        if wr.signaled {
            self.unsignaled.clear();
        } else {
            self.keep_unsignaled(number, wr, len);
        }
    }

    fn keep_unsignaled(&mut self, number: u64, wr: &SendWr, len: u32) {
        while let Some(oldest) = self.unsignaled.front()
            && (!self.lack(oldest.number) || self.unsignaled.len() >= UNSIGNALED_KEPT_MAX)
        {
            self.unsignaled.pop_front();
        }
        if self.lack(number)
            && let SendOp::RdmaWrite { remote } | SendOp::RdmaWriteImmediate { remote, .. } = wr.op
        {
            let (id, opcode) = (wr.id, wr.op.wc_opcode());
            self.unsignaled.push_back(Unsignaled { number, id, opcode, remote, len });
        }
    }

    /// The first of several kept Writes to one place is blamed, as the peer refuses all of them.
    pub(super) fn refused_at(&mut self, stag: Stag, to: TaggedOffset) {
        let is_it = |write: &&Unsignaled| {
            let at = to.0.wrapping_sub(write.remote.to.0);
            let is_there = at == 0 || at < u64::from(write.len);
            write.remote.stag == stag && is_there && self.lack(write.number)
        };
        self.refused = self.unsignaled.iter().find(is_it).copied();
    }

    pub(super) fn take_refused(&mut self) -> Option<(WrId, WcOpcode)> {
        self.refused.take().map(|write| (write.id, write.opcode))
    }

    pub(super) const fn asked(&mut self, number: u64) {
        self.count += 1;
        self.asked_last = number;
        self.asked_behind(number);
    }

    pub(super) const fn asked_behind(&mut self, number: u64) {
        if number > self.asked {
            self.asked = number;
        }
    }

    pub(super) const fn confirmed(&mut self) {
        self.confirmed_before(self.asked_last);
    }

    pub(super) const fn confirmed_before(&mut self, number: u64) {
        if number > self.confirmed {
            self.confirmed = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_confirmation_covers_all_requests_framed_before_it() {
        let mut all = Confirmations::default();
        for number in 0..3 {
            all.framed(number, StreamOffset(100 + number));
        }
        assert!(all.are_awaited() && !all.are_due());
        // A fourth request that raises no completion was begun, too.
        all.asked(4);
        assert!(!all.are_awaited(), "never more than needed");
        all.framed(4, StreamOffset(200));
        assert!(all.are_awaited());
        all.confirmed();
        assert_eq!([0, 3, 4].map(|number| all.lack(number)), [false, false, true]);
    }

    #[test]
    fn application_read_response_confirms_too() {
        let mut all = Confirmations::default();
        all.framed(0, StreamOffset(100));
        all.asked_behind(1);
        assert!(!all.are_awaited());
        all.framed(2, StreamOffset(200));
        all.asked(3);
        all.confirmed_before(1);
        assert_eq!([0, 1, 2].map(|number| all.lack(number)), [false, true, true]);
        all.confirmed();
        all.confirmed_before(1);
        assert!(!all.lack(2), "what is confirmed stays so");
    }

    #[test]
    fn a_long_run_of_requests_is_confirmed_on_its_way() {
        let mut all = Confirmations::default();
        all.framed(0, StreamOffset(1000));
        all.framed(1, StreamOffset(999 + UNCONFIRMED_BYTES));
        assert!(!all.are_due());
        all.framed(2, StreamOffset(1000 + UNCONFIRMED_BYTES));
        assert!(all.are_due());
        all.asked(3);
        all.framed(3, StreamOffset(5000 + UNCONFIRMED_BYTES));
        assert!(!all.are_due(), "counted from there");
    }

    #[test]
    fn request_behind_many_is_confirmed_at_once() {
        let mut all = Confirmations::default();
        all.framed(UNCONFIRMED_REQUESTS - 2, StreamOffset(1));
        assert!(!all.are_due());
        all.framed(UNCONFIRMED_REQUESTS - 1, StreamOffset(2));
        assert!(all.are_due());
        all.asked(UNCONFIRMED_REQUESTS);
        all.framed(UNCONFIRMED_REQUESTS, StreamOffset(3));
        assert!(!all.are_due(), "counted from there");
    }

    #[test]
    fn without_an_answering_peer_no_confirmation_is_due() {
        let mut all = Confirmations::default();
        all.framed(0, StreamOffset(1));
        assert!(all.lack(0) && all.are_awaited());
        all.are_over = true;
        assert!(!all.lack(0) && !all.are_awaited() && !all.are_due());
    }
}
