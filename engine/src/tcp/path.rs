//! What the layers below learn about the path, and what TCP makes of it.

use super::connection::{Tcb, TcpEvent};
use super::seq::SeqNum;
use super::state::{State, Trigger};
use super::timer::Timer;
use crate::time::Instant;

/// Timeouts in a row from which the way to the peer is doubted (RFC 9293 §3.8.3, R1: at least 3
/// transmissions, of which the first is no retransmission).
const SUSPECT_TIMEOUTS: u32 = 2;

impl Tcb {
    /// Whether `seq` is that of a segment of ours that is still unanswered, a SYN included: an ICMP
    /// message that quotes another number is not believed (RFC 5927 §4.1).
    #[must_use]
    pub(crate) fn is_unanswered(&self, seq: SeqNum) -> bool {
        let in_handshake = matches!(self.state, State::SynSent | State::SynReceived);
        if in_handshake && self.handshake.syns_sent > 0 && seq == self.snd.space.isn() {
            return true;
        }
        self.is_in_flight(seq)
    }

    /// The network says that the peer cannot be reached. Gives up a connection whose SYN was not
    /// answered yet; an established one goes on (RFC 5927 §5.2, RFC 5461 §4.1: "treat soft and hard
    /// errors" of a connection that is being opened alike). Returns whether it was given up.
    pub fn refuse(&mut self) -> bool {
        let refused = self.state == State::SynSent;
        if refused {
            self.enter(Trigger::Abandoned);
            self.finish(TcpEvent::Refused);
        }
        refused
    }

    /// The connection is over and says nothing more, not even a RST: its address is gone.
    pub fn vanish(&mut self) {
        self.enter(Trigger::Abandoned);
        self.reset = None;
    }

    /// The link has returned: what was lost meanwhile goes out again at once, not after a timeout
    /// that has grown long.
    pub(crate) fn retransmit_now(&mut self, now: Instant) {
        self.snd.link_returned(now);
        for timer in [Timer::Retransmit, Timer::Persist] {
            if self.timers.is_set(timer) {
                self.timers.set(timer, now);
            }
        }
    }

    /// Whether the peer has not answered for so long that the way to it is in doubt.
    #[must_use]
    pub(crate) const fn is_path_suspect(&self) -> bool {
        self.snd.timeouts() >= SUSPECT_TIMEOUTS || self.handshake.syn_timed_out
    }

    /// Length of the oldest segment in flight, in bytes with its header and options (a FIN counts
    /// as 1); 0 when there is none. It is the one that timeouts repeat.
    #[must_use]
    pub(crate) fn oldest_in_flight_len(&self) -> usize {
        match usize::try_from(self.snd.board.first_len()).unwrap_or(usize::MAX) {
            0 => 0,
            data_len => data_len.saturating_add(self.snd.header_len()),
        }
    }
}
