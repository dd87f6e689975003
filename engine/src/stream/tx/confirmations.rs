//! What of the send queue the peer has confirmed, and what is to be asked for
//! ([`CompletionMeans::Placed`](crate::verbs::CompletionMeans::Placed)).

use crate::limits::{UNCONFIRMED_BYTES, UNCONFIRMED_REQUESTS};
use crate::types::StreamOffset;

/// Requests by the numbers that they have in the send queue.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// No Response comes any more.
    pub(super) are_over: bool,
    /// Those before this number are placed at the peer.
    confirmed: u64,
    /// Those before this number are, when all that is asked for is answered.
    asked: u64,
    /// Those before this number are, when what the engine itself has asked for last is answered.
    asked_last: u64,
    /// One more than the number of the last one that is framed and to be confirmed.
    framed: u64,
    /// Where the first and the last of those end that are framed and not asked for.
    first_end: StreamOffset,
    last_end: StreamOffset,
    /// How often the engine has asked.
    pub(super) count: u64,
}

impl Confirmations {
    /// Whether the request with this number is not confirmed.
    #[inline]
    pub(super) const fn lack(&self, number: u64) -> bool {
        !self.are_over && number >= self.confirmed
    }

    /// A request that is to be confirmed is framed up to its `end`.
    pub(super) const fn framed(&mut self, number: u64, end: StreamOffset) {
        if !self.are_awaited() {
            self.first_end = end;
        }
        (self.framed, self.last_end) = (number + 1, end);
    }

    /// Whether something is framed that was not asked for.
    #[inline]
    pub(super) const fn are_awaited(&self) -> bool {
        !self.are_over && self.framed > self.asked
    }

    /// Whether that is so much that completions would come late if all that waits were sent first.
    #[inline]
    pub(super) const fn are_due(&self) -> bool {
        self.are_awaited()
            && (self.framed - self.asked >= UNCONFIRMED_REQUESTS
                || self.last_end.0 - self.first_end.0 >= UNCONFIRMED_BYTES)
    }

    /// The engine asks for those before `number`.
    pub(super) const fn asked(&mut self, number: u64) {
        self.count += 1;
        self.asked_last = number;
        self.asked_behind(number);
    }

    /// A Response will confirm those before `number`.
    pub(super) const fn asked_behind(&mut self, number: u64) {
        if number > self.asked {
            self.asked = number;
        }
    }

    /// What the engine has asked for is answered.
    pub(super) const fn confirmed(&mut self) {
        self.confirmed_before(self.asked_last);
    }

    /// A Response confirms those before `number`.
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
    fn one_confirmation_is_for_all_that_was_framed_before_it() {
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
    fn a_response_to_the_program_confirms_as_well() {
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
    fn one_that_is_behind_many_is_confirmed_at_once() {
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
    fn without_a_peer_that_answers_nothing_lacks_confirmation() {
        let mut all = Confirmations::default();
        all.framed(0, StreamOffset(1));
        assert!(all.lack(0) && all.are_awaited());
        all.are_over = true;
        assert!(!all.lack(0) && !all.are_awaited() && !all.are_due());
    }
}
