//! A peer that has closed its end of a connection, where this end follows it as on InfiniBand.
//!
//! On iWARP that ends this end too, and flushes its receives. InfiniBand has no close: its connection manager
//! tells of the peer's end, after a while on the way, and what is posted stays until the program ends its own
//! end. Programs look at their completions and at their events by turns, and take for an error what is flushed,
//! and for lost what has completed and was not looked at when they hear of the end. So the event waits for the
//! program to look at its completions, and this end for the program; neither for ever.

use std::sync::Arc;

use urnic::{Connection, monotonic_now};
use urnic_engine::time::{Duration, Instant};

use super::id::Id;
use crate::event_queue::locked;

/// How far an id has followed it.
#[derive(Clone, Copy, Debug)]
pub(super) enum PeerEnd {
    /// C is told when no completion waits, or at this time.
    ToldAt(Instant),
    /// C was told; this end closes when the program ends it, or at this time.
    ClosesAt(Instant),
}

impl Id {
    /// The peer has closed its end: from now on the id [follows](Self::follow_peer).
    pub(super) fn peer_closes(&self) {
        *locked(&self.peer_end) = Some(PeerEnd::ToldAt(monotonic_now() + COMPLETIONS_FIRST_FOR));
    }

    /// Does what is due where the peer has closed its end, and asks for a turn for what is not.
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

    /// Whether completions wait that may be of the id's queue pair.
    fn has_completions(&self) -> bool {
        locked(&self.qp).as_ref().is_some_and(|qp| qp.has_completions())
    }
}

/// How long a program has to look at its completions before it hears of the peer's end.
const COMPLETIONS_FIRST_FOR: Duration = Duration::from_millis(100);
/// How often is looked whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long it has then to end its own end.
const PROGRAM_ENDS_WITHIN: Duration = Duration::from_secs(1);
