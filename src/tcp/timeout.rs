//! The timers of a connection: retransmission, persist, keep-alive, TIME-WAIT.

use super::connection::{Connection, TcpEvent};
use super::state::{State, Trigger};
use super::timer::Timer;
use crate::time::{Duration, Instant};

/// RFC 9293 §3.8.6.2.1: the override timeout is between 0.1 and 1 s.
pub(super) const OVERRIDE_NS: u64 = 100_000_000;
/// Doublings of the persist timer, which meets its ceiling long before.
const PERSIST_BACKOFF_MAX: u32 = 20;
/// Time between keep-alive probes, and how many go unanswered before the connection is given up.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);
const KEEPALIVE_PROBES_MAX: u32 = 9;

impl Connection {
    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Runs the timers that have run out at `now`. Calling it early or late is harmless.
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

    /// Gives up a connection whose SYN was not answered for as long as
    /// [`syn_timeout`](super::Config::syn_timeout), sent or not.
    pub fn expire_handshake(&mut self, now: Instant) {
        let waiting = matches!(self.state, State::SynSent | State::SynReceived);
        if waiting && now >= self.handshake.started_at + self.config.syn_timeout {
            self.time_out();
        }
    }

    fn on_retransmit_timeout(&mut self, now: Instant) {
        if !self.state.is_synchronized() {
            self.expire_handshake(now);
            if self.state == State::Closed {
                return;
            }
            self.handshake.syn_due = true;
            self.handshake.syn_timed_out = true;
            self.snd.rtt.back_off();
            return self.arm_retransmit(now);
        }
        if self.snd.board.flight() == 0 {
            return;
        }
        // RFC 9293 §3.8.3: "when the number of transmissions reaches R2 [here: after that time],
        // close the connection".
        if now >= self.snd.progress_at() + self.config.user_timeout {
            return self.time_out();
        }
        self.counters.rtos += 1;
        if self.snd.on_timeout(now) {
            self.counters.reneges += 1;
        }
        self.arm_retransmit(now);
    }

    /// The answer to the peer's SYN went out without this connection, as a cookie.
    pub(super) fn syn_went_out(&mut self, now: Instant) {
        self.handshake.syn_due = false;
        self.handshake.syns_sent = 1;
        self.arm_retransmit(now);
    }

    /// Starts the retransmission timer anew, never beyond R2.
    pub(super) fn arm_retransmit(&mut self, now: Instant) {
        let deadline = if self.state.is_synchronized() {
            self.snd.progress_at() + self.config.user_timeout
        } else {
            self.handshake.started_at + self.config.syn_timeout
        };
        let rto = now.plus_nanos(self.snd.rtt.rto_ns());
        self.timers.set(Timer::Retransmit, rto.min(deadline));
    }

    /// Something that was overtaken did not arrive in time (RFC 8985 §6.2).
    fn on_reordering_timeout(&mut self, now: Instant) {
        if self.snd.detect_losses(now) {
            self.counters.fast_retransmits += 1;
        }
        self.arm_reordering();
    }

    pub(super) fn arm_reordering(&mut self) {
        match self.snd.next_loss_at() {
            Some(at) => self.timers.set(Timer::Reordering, at),
            None => self.timers.clear(Timer::Reordering),
        }
    }

    /// The deadline moves with every segment and acknowledgment; it is only looked at when the
    /// timer runs out.
    fn on_loss_probe_timeout(&mut self, now: Instant) {
        let at = self.snd.loss_probe_at();
        if at > now {
            if self.snd.may_probe() {
                self.timers.set(Timer::LossProbe, at);
            }
        } else if self.snd.begin_loss_probe() {
            self.counters.loss_probes += 1;
            // RFC 8985 §7.3: the retransmission timer starts anew, so that the probe is answered
            // before it runs out.
            self.arm_retransmit(now);
        }
    }

    /// Starts the timer of the tail loss probe, unless it runs.
    pub(super) fn arm_loss_probe(&mut self) {
        if !self.timers.is_set(Timer::LossProbe) && self.snd.may_probe() {
            self.timers.set(Timer::LossProbe, self.snd.loss_probe_at());
        }
    }

    fn on_persist_timeout(&mut self, now: Instant) {
        if now >= self.snd.progress_at() + self.config.user_timeout {
            return self.time_out();
        }
        if self.snd.board.flight() > 0 {
            return;
        }
        if self.snd.window_room() > 0 {
            self.persist.override_due = true;
            return;
        }
        self.persist.probe_due = true;
        self.persist.backoff = (self.persist.backoff + 1).min(PERSIST_BACKOFF_MAX);
        self.arm_persist(now, 0);
    }

    /// RFC 9293 §3.8.6.1: the first probe after an RTO, then at exponentially growing intervals.
    pub(super) fn arm_persist(&mut self, now: Instant, at_least_ns: u64) {
        let interval_ns = self.snd.rtt.rto_ns().saturating_mul(1 << self.persist.backoff);
        let ceiling_ns = u64::try_from(self.config.rto_max.as_nanos()).unwrap_or(u64::MAX);
        let interval_ns = interval_ns.min(ceiling_ns).max(at_least_ns);
        self.timers.set(Timer::Persist, now.plus_nanos(interval_ns));
    }

    fn on_keepalive_timeout(&mut self, now: Instant) {
        let Some(idle) = self.config.keepalive else { return };
        let heard_at = self.keepalive.heard_at;
        if self.keepalive.unanswered == 0 && now < heard_at + idle {
            self.timers.set(Timer::KeepAlive, heard_at + idle);
            return;
        }
        // RFC 9293 §3.8.4: keep-alives are sent "when no sent data is outstanding", and one that
        // is not answered "MUST NOT be interpreted as a dead connection".
        if self.keepalive.unanswered >= KEEPALIVE_PROBES_MAX {
            return self.time_out();
        }
        if self.snd.board.flight() == 0 {
            self.keepalive.unanswered += 1;
            self.persist.probe_due = true;
        }
        self.timers.set(Timer::KeepAlive, now + KEEPALIVE_INTERVAL);
    }

    fn time_out(&mut self) {
        self.enter(Trigger::Abandoned);
        self.finish(TcpEvent::TimedOut);
    }
}
