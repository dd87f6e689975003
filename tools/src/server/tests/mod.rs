//! A server with its peers: the work of a turn, the memory of a session, and sessions that come and
//! go.

mod churn;
mod evict;
mod many;
mod memory;
mod polls;
mod scene;

use std::sync::Arc;

use super::Limits;
use super::places::Places;
use crate::transfer::Room;

/// Limits of a server with 1 MiB for a peer.
pub(crate) fn limits() -> Limits {
    Limits {
        folder: None,
        key: None,
        no_get: None,
        no_put: None,
        allow_overwrite: false,
        memory_max: 1 << 20,
        file_max: 1 << 40,
        room: Arc::new(Room::new(None, 0)),
        places: Places {
            peers_max: 4,
            peers_per_source_max: 4,
            memory_max: 1 << 30,
            memory_per_source_max: 1 << 30,
        },
    }
}
