//! Handles a peer that has closed its end of a connection, in the way of InfiniBand.
//!
//! On iWARP a peer's close ends this end too, and flushes its receives. InfiniBand has no close:
//! its connection manager reports the peer's end after a delay, and posted receives stay until the
//! application ends its own end. Applications poll their completions and their events alternately.
//! They take flushed receives for errors, and they take completions that they have not polled
//! before the event for lost. So the event waits until the application has polled its completions,
//! and this end stays open until the application ends it; both have a time limit.

use std::sync::Arc;

use urnic::{Connection, monotonic_now};
use urnic_engine::time::{Duration, Instant};

use super::id::Id;
use crate::event_queue::locked;

/// Progress of an id after its peer has closed.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerEnd {
    /// C gets the event when no completion waits, or at this time.
    ToldAt(Instant),
    /// C got the event; this end closes when the application ends it, or at this time.
    ClosesAt(Instant),
}

impl Id {
    /// Records that the peer has closed its end; from now on the id [follows](Self::follow_peer).
    pub(super) fn peer_closes(&self) {
        *locked(&self.peer_end) = Some(PeerEnd::ToldAt(monotonic_now() + COMPLETIONS_FIRST_FOR));
    }

    /// Performs due steps after the peer has closed its end, and sets the timer for later steps.
    pub(super) fn follow_peer(self: &Arc<Self>, connection: &Connection) {
        let mut peer_end = locked(&self.peer_end);
        let Some(end) = *peer_end else { return };
        let now = monotonic_now();
        let closes_at = match end {
            PeerEnd::ToldAt(at) if now < at && self.has_completions() => {
                return self.timer.set(self, now + LOOK_AGAIN);
            }
            PeerEnd::ToldAt(_) => {
                self.tell_disconnected();
                now + PROGRAM_ENDS_WITHIN
            }
            PeerEnd::ClosesAt(at) => at,
        };
        if closes_at <= now {
            *peer_end = None;
            return connection.disconnect();
        }
        *peer_end = Some(PeerEnd::ClosesAt(closes_at));
        self.timer.set(self, closes_at);
    }

    /// Returns true if completions wait that may be of the id's queue pair.
    fn has_completions(&self) -> bool {
        locked(&self.qp).as_ref().is_some_and(|qp| qp.has_completions())
    }
}

/// Time that an application has to poll its completions before it gets the event of the peer's end.
const COMPLETIONS_FIRST_FOR: Duration = Duration::from_millis(100);
/// Interval of the checks for waiting completions.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Time that the application then has to end its own end.
const PROGRAM_ENDS_WITHIN: Duration = Duration::from_secs(1);
