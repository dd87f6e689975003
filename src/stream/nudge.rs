//! A responder that is silent after its Reply is reminded of what was sent to it
//! ([`StartupConfig::nudge`](crate::mpa::startup::StartupConfig::nudge)).

use crate::limits::{NUDGE_AFTER_NS, NUDGE_PAUSE_MAX_NS};
use crate::mpa::startup::RtrKind;
use crate::stream::startup::Phase;
use crate::stream::{Stream, rtr_message};
use crate::time::Instant;

/// When to look again whether the peer is still silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nudge {
    at: Instant,
    pause_ns: u64,
}

impl Nudge {
    pub(super) const fn first(now: Instant) -> Self {
        Self { at: now.plus_nanos(NUDGE_AFTER_NS), pause_ns: NUDGE_AFTER_NS }
    }

    pub(super) const fn at(self) -> Instant {
        self.at
    }

    fn next(self, now: Instant) -> Option<Self> {
        let pause_ns = 2 * self.pause_ns;
        (pause_ns <= NUDGE_PAUSE_MAX_NS).then(|| Self { at: now.plus_nanos(pause_ns), pause_ns })
    }
}

impl Stream {
    /// Puts an RDMA Write without payload behind what was sent, if the peer has sent nothing.
    pub(super) fn nudge_silent_peer(&mut self, now: Instant) {
        let Some(nudge) = self.nudge.filter(|nudge| nudge.at <= now) else { return };
        self.nudge = match (&self.phase, &mut self.full) {
            (Phase::AwaitingReply { .. }, _) => Some(Nudge::first(now)),
            (Phase::Full, Some(full)) if !self.closing && full.mpa.counters().fpdus == 0 => {
                if full.tx.fpdus_framed() > 0 {
                    full.tx.messages.set_rtr(rtr_message(RtrKind::WriteZero));
                }
                nudge.next(now)
            }
            _ => None,
        };
    }
}
