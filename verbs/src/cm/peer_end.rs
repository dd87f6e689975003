//! Imitates InfiniBand when a peer closes its side of a connection.
//!
//! On iWARP a peer's close also closes the local side, and flushes the posted receives. InfiniBand
//! has no close: its connection manager reports after a delay that the peer has disconnected, and
//! posted receives remain. Applications rely on this: they take flushed receives for errors, and
//! completions not polled before the event for lost. So this library delays the event and its own
//! close:
//!
//! 1. A turn of the id finds that the peer has closed its side, and calls
//!    [`peer_closes`](Id::peer_closes).
//! 2. The id reports `RDMA_CM_EVENT_DISCONNECTED` once no completion waits in the application's
//!    queue, which it checks each millisecond, or after [`COMPLETIONS_FIRST_FOR`].
//! 3. The id closes the local side when the application disconnects or destroys the id, or
//!    [`PROGRAM_ENDS_WITHIN`] after step 2.

use std::sync::Arc;

use urnic::{Connection, monotonic_now};
use urnic_engine::time::Duration;

use super::id::{Id, PeerEnd};
use crate::event_queue::locked;

impl Id {
    /// Each turn of the id then calls [`follow_peer`](Self::follow_peer).
    pub(super) fn peer_closes(&self) {
        *locked(&self.peer_end) = Some(PeerEnd::ToldAt(monotonic_now() + COMPLETIONS_FIRST_FOR));
    }

    /// Performs the steps that are due, and sets the timer. Does nothing if the peer has not
    /// closed.
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

    fn has_completions(&self) -> bool {
        locked(&self.qp).as_ref().is_some_and(|qp| qp.has_completions())
    }
}

/// Time that the application has to poll its completions before it gets the event.
const COMPLETIONS_FIRST_FOR: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Time that the application has after the event to disconnect.
const PROGRAM_ENDS_WITHIN: Duration = Duration::from_secs(1);
