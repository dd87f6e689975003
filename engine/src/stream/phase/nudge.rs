//! Empty Writes that remind a silent responder of data sent after its Reply.
//!
//! An option of [`StartupConfig`](crate::mpa::startup::StartupConfig) turns them on.

use crate::limits::{NUDGE_AFTER_NS, NUDGE_PAUSE_MAX_NS};
use crate::mpa::startup::RtrKind;
use crate::stream::Stream;
use crate::stream::phase::Phase;
use crate::time::Instant;

/// Time of the next check for a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nudge {
    at: Instant,
    pause_ns: u64,
}

impl Nudge {
    pub(super) const fn first(now: Instant) -> Self {
        Self { at: now.plus_nanos(NUDGE_AFTER_NS), pause_ns: NUDGE_AFTER_NS }
    }

    fn next(self, now: Instant) -> Option<Self> {
        let pause_ns = 2 * self.pause_ns;
        (pause_ns <= NUDGE_PAUSE_MAX_NS).then(|| Self { at: now.plus_nanos(pause_ns), pause_ns })
    }
}

impl Stream {
    /// Time at which [`nudge_silent_peer`](Self::nudge_silent_peer) has something to do.
    pub(super) fn nudge_at(&self) -> Option<Instant> {
        match &self.phase {
            Phase::AwaitingReply { nudge, .. } => nudge.map(|nudge| nudge.at),
            Phase::Full(full) => full.nudge.map(|nudge| nudge.at),
            _ => None,
        }
    }

    /// Appends an RDMA Write without payload to the data sent, if the peer has sent nothing.
    pub(super) fn nudge_silent_peer(&mut self, now: Instant) {
        if self.nudge_at().is_none_or(|at| at > now) {
            return;
        }
        match &mut self.phase {
            Phase::AwaitingReply { nudge, .. } => *nudge = Some(Nudge::first(now)),
            Phase::Full(full) if !self.closing && full.mpa.counters().fpdus == 0 => {
                if full.tx.fpdus_framed() > 0 {
                    full.tx.messages.set_rtr(RtrKind::WriteZero);
                }
                full.nudge = full.nudge.and_then(|nudge| nudge.next(now));
            }
            Phase::Full(full) => full.nudge = None,
            _ => {}
        }
    }
}
