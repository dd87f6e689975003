//! Actions of a connection when its timers expire, and the deadlines of these timers.

use tracing::debug;

use super::TRACE;
use super::connection::{Tcb, TcpEvent};
use super::state::{State, Trigger};
use super::timer::Timer;
use crate::time::Instant;

/// RFC 9293 §3.8.6.2.1: the override timeout is "in the range 0.1-1.0 seconds".
const OVERRIDE_MIN_NS: u64 = 100_000_000;
const OVERRIDE_MAX_NS: u64 = 1_000_000_000;
/// Most doublings of the persist timer, which reaches its ceiling long before.
const PERSIST_BACKOFF_MAX: u32 = 20;

impl Tcb {
    /// Time at which [`handle_timeout`](Self::handle_timeout) must be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Runs the timers that have expired at `now`. Calling it early or late is harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.take_expired(now) {
            match timer {
                Timer::Retransmit => self.on_retransmit_timeout(now),
                Timer::Reordering => self.on_reordering_timeout(now),
                Timer::LossProbe => self.on_loss_probe_timeout(now),
                // The caller asks for the budget again.
                Timer::Pacing => {}
                Timer::DelayedAck => self.acks.on_timeout(),
                Timer::Persist => self.on_persist_timeout(now),
                Timer::KeepAlive => self.on_keepalive_timeout(now),
                Timer::TimeWait => self.enter(Trigger::TimeWaitOver),
            }
        }
    }

    /// Abandons a connection that is not established within
    /// [`syn_timeout`](super::Config::syn_timeout), even if the SYN could not be sent.
    pub(crate) fn expire_handshake(&mut self, now: Instant) {
        let waiting = matches!(self.state, State::SynSent | State::SynReceived);
        if waiting && now >= self.handshake.started_at + self.config.syn_timeout {
            self.time_out();
        }
    }

    // spec: TCP-9293-11, TCP-6298-4
    fn on_retransmit_timeout(&mut self, now: Instant) {
        if !self.state.is_synchronized() {
            self.expire_handshake(now);
            if self.state == State::Closed {
                return;
            }
            self.handshake.syn_due = true;
            self.handshake.syn_timed_out = true;
            self.snd.rtt.back_off();
            self.tell("the SYN is not acknowledged");
            return self.arm_retransmit(now);
        }
        if self.snd.board.flight() == 0 {
            return;
        }
        // RFC 9293 §3.8.3: "when the number of transmissions reaches R2 [here: after that time],
        // close the connection".
        if self.snd.is_given_up(now, self.config.user_timeout) {
            return self.time_out();
        }
        self.counters.rtos += 1;
        if self.snd.on_timeout(now) {
            self.counters.reneges += 1;
        }
        self.tell("retransmission timeout");
        self.arm_retransmit(now);
    }

    #[cold]
    pub(super) fn tell(&self, what: &'static str) {
        let (local_port, remote_port) = (self.local_port, self.remote_port);
        let (una, in_flight) = (self.snd.board.una(), self.snd.board.flight());
        let (cwnd, rto_ns) = (self.snd.cwnd(), self.snd.rtt.rto_ns());
        debug!(target: TRACE, local_port, remote_port, %una, in_flight, cwnd, rto_ns, "{what}");
    }

    /// Records that a cookie has answered the peer's SYN on behalf of this connection.
    pub(super) fn syn_went_out(&mut self, now: Instant) {
        self.handshake.syn_due = false;
        self.handshake.syns_sent = 1;
        self.arm_retransmit(now);
    }

    /// Expires after the RTO, or earlier if the connection is given up before: at R2, or at the end
    /// of `syn_timeout`.
    pub(super) fn arm_retransmit(&mut self, now: Instant) {
        let deadline = if self.state.is_synchronized() {
            self.snd.give_up_at(self.config.user_timeout)
        } else {
            Some(self.handshake.started_at + self.config.syn_timeout)
        };
        let rto = now.plus_nanos(self.snd.rtt.rto_ns());
        self.timers.set(Timer::Retransmit, deadline.map_or(rto, |deadline| rto.min(deadline)));
    }

    /// Looks for overtaken segments that are overdue (RFC 8985 §6.2).
    fn on_reordering_timeout(&mut self, now: Instant) {
        if self.snd.detect_losses(now) {
            self.counters.fast_retransmits += 1;
            self.tell("losses found by time, recovery begins");
        }
        self.arm_reordering();
    }

    pub(super) fn arm_reordering(&mut self) {
        match self.snd.next_loss_at() {
            Some(at) => self.timers.set(Timer::Reordering, at),
            None => self.timers.clear(Timer::Reordering),
        }
    }

    /// Sends a probe if it is due. Every segment and acknowledgment moves the deadline, but it is
    /// computed only here.
    fn on_loss_probe_timeout(&mut self, now: Instant) {
        let at = self.snd.loss_probe_at();
        if at > now {
            if self.snd.may_probe() {
                self.timers.set(Timer::LossProbe, at);
            }
        } else if self.snd.begin_loss_probe() {
            self.counters.loss_probes += 1;
            self.tell("tail loss probe");
            // RFC 8985 §7.3: the timer restarts: the probe is answered before it expires.
            self.arm_retransmit(now);
        }
    }

    pub(super) fn arm_loss_probe(&mut self) {
        if !self.timers.is_set(Timer::LossProbe) && self.snd.may_probe() {
            self.timers.set(Timer::LossProbe, self.snd.loss_probe_at());
        }
    }

    fn on_persist_timeout(&mut self, now: Instant) {
        self.persist.override_armed = false;
        if self.snd.board.flight() > 0 {
            return;
        }
        if self.snd.window_room() > 0 {
            self.persist.override_due = true;
            return;
        }
        // RFC 9293 MUST-37: a connection stays open as long as probes are answered. The loss of one
        // probe, or of its answer, does not end it.
        if self.snd.is_given_up(now, self.config.user_timeout) {
            return self.time_out();
        }
        self.snd.note_unanswered();
        self.persist.probe_due = true;
        self.persist.backoff = (self.persist.backoff + 1).min(PERSIST_BACKOFF_MAX);
        self.arm_persist(now);
    }

    /// First after an RTO, then at exponentially growing intervals (RFC 9293 §3.8.6.1).
    // spec: TCP-9293-16
    pub(super) fn arm_persist(&mut self, now: Instant) {
        let interval_ns = self.snd.rtt.rto_ns().saturating_mul(1 << self.persist.backoff);
        let ceiling_ns = u64::try_from(self.config.rto_max.as_nanos()).unwrap_or(u64::MAX);
        self.timers.set(Timer::Persist, now.plus_nanos(interval_ns.min(ceiling_ns)));
    }

    /// RFC 9293 §3.8.6.2.1: when the timer expires, a window that is open but smaller than a
    /// segment is used. The time for which the window was closed before does not count.
    pub(super) fn arm_override(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.persist.override_armed, true) {
            let interval_ns = self.snd.rtt.rto_ns().clamp(OVERRIDE_MIN_NS, OVERRIDE_MAX_NS);
            self.timers.set(Timer::Persist, now.plus_nanos(interval_ns));
        }
    }

    fn on_keepalive_timeout(&mut self, now: Instant) {
        let Some(times) = self.keepalive_times() else { return };
        let due = self.keepalive.received_at + times.idle;
        if now < due {
            self.timers.set(Timer::KeepAlive, due);
            return;
        }
        // RFC 9293 §3.8.4: keep-alives are sent "when no sent data is outstanding", and one that
        // is not answered "MUST NOT be interpreted as a dead connection".
        if self.keepalive.unanswered >= times.probes {
            return self.time_out();
        }
        if self.snd.board.flight() == 0 {
            self.keepalive.unanswered += 1;
            self.persist.probe_due = true;
        }
        self.timers.set(Timer::KeepAlive, now + times.interval);
    }

    fn time_out(&mut self) {
        self.enter(Trigger::Abandoned);
        self.finish(TcpEvent::TimedOut);
    }
}
