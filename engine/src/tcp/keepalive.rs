//! Probes of an idle connection at the request of the layer above.

use super::config::KeepAliveTimes;
use super::connection::Tcb;
use super::timer::Timer;
use crate::time::Instant;

impl Tcb {
    /// Probes the peer at these times, unless those of
    /// [`Config::keepalive`](super::Config::keepalive) are sooner. RFC 9293 §3.8.4: keep-alives are
    /// off unless the application asks. The layer above counts as the application: it asks where
    /// its peer may be silent and this end has nothing to send.
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

    /// If so, the layer above must decide if it still wants the peer probed.
    pub(crate) fn is_probe_due(&self, now: Instant) -> bool {
        self.timers.is_expired(Timer::KeepAlive, now)
    }

    // spec: TCP-9293-13
    pub(super) fn keepalive_times(&self) -> Option<KeepAliveTimes> {
        let configured = self.config.keepalive.map(KeepAliveTimes::within_limits);
        self.probe_idle.into_iter().chain(configured).min_by_key(|times| times.idle)
    }
}
