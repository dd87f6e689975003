//! Probes of an idle connection that the layer above asks for.

use super::config::KeepAliveTimes;
use super::connection::Tcb;
use super::timer::Timer;
use crate::time::Instant;

impl Tcb {
    /// Probes the peer at these times, if those of [`Config::keepalive`](super::Config::keepalive)
    /// are not sooner; without them, as that says.
    ///
    /// RFC 9293 §3.8.4: keep-alives are off unless the application asks for them. The layer above is
    /// the application, where its peer may be silent by right and this end has nothing to send.
    pub(crate) fn probe_idle_peer(&mut self, now: Instant, times: Option<KeepAliveTimes>) {
        self.probe_idle = times;
        self.keepalive.unanswered = 0;
        match self.keepalive_times().map(|times| times.idle) {
            Some(idle) if self.state.is_synchronized() => {
                self.timers.set(Timer::KeepAlive, now + idle);
            }
            _ => self.timers.clear(Timer::KeepAlive),
        }
    }

    /// Whether the layer above is to say whether it still wants the peer probed.
    pub(crate) fn is_probe_due(&self, now: Instant) -> bool {
        self.timers.is_expired(Timer::KeepAlive, now)
    }

    /// When the peer is probed.
    pub(super) fn keepalive_times(&self) -> Option<KeepAliveTimes> {
        let configured = self.config.keepalive.map(KeepAliveTimes::within_limits);
        self.probe_idle.into_iter().chain(configured).min_by_key(|times| times.idle)
    }
}
