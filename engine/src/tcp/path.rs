//! Reactions of TCP to what the layers below learn about the path.

use super::connection::{Tcb, TcpEvent};
use super::seq::SeqNum;
use super::state::{State, Trigger};
use super::timer::Timer;
use crate::time::Instant;

/// Consecutive timeouts from which on the path to the peer is suspect (RFC 9293 §3.8.3, R1: at
/// least 3 transmissions, the first of them no retransmission).
const SUSPECT_TIMEOUTS: u32 = 2;

impl Tcb {
    /// A segment of ours that is unanswered, a SYN included. An ICMP message that quotes another
    /// number is ignored (RFC 5927 §4.1).
    // spec: TCP-PMTU-5, SEC-T-7
    #[must_use]
    pub(crate) fn is_unanswered(&self, seq: SeqNum) -> bool {
        let in_handshake = matches!(self.state, State::SynSent | State::SynReceived);
        if in_handshake && self.handshake.syns_sent > 0 && seq == self.snd.space.isn() {
            return true;
        }
        self.is_in_flight(seq)
    }

    /// The network reports that the peer refuses or is unreachable (`event`). Returns true if a
    /// connection whose SYN was unanswered was abandoned; an established one continues (RFC 5927
    /// §5.2, RFC 5461 §4.1: "treat soft and hard errors" alike while a connection is being opened).
    pub fn give_up_opening(&mut self, event: TcpEvent) -> bool {
        let is_opening = self.state == State::SynSent;
        if is_opening {
            self.enter(Trigger::Abandoned);
            self.finish(event);
        }
        is_opening
    }

    /// Ends the connection without sending anything, not even a RST: its address was removed.
    pub fn vanish(&mut self) {
        self.enter(Trigger::Abandoned);
        self.reset = None;
    }

    /// Retransmits at once what the link lost while it was down: the timeout has grown long.
    pub(crate) fn retransmit_now(&mut self, now: Instant) {
        self.snd.link_returned(now);
        for timer in [Timer::Retransmit, Timer::Persist] {
            if self.timers.is_set(timer) {
                self.timers.set(timer, now);
            }
        }
    }

    #[must_use]
    pub(crate) const fn is_path_suspect(&self) -> bool {
        self.snd.timeouts() >= SUSPECT_TIMEOUTS || self.handshake.syn_timed_out
    }

    /// In bytes with header and options (a FIN counts as 1); 0 if none is in flight. Timeouts
    /// retransmit it.
    #[must_use]
    pub(crate) fn oldest_in_flight_len(&self) -> usize {
        match usize::try_from(self.snd.board.first_len()).unwrap_or(usize::MAX) {
            0 => 0,
            data_len => data_len.saturating_add(self.snd.header_len()),
        }
    }
}
