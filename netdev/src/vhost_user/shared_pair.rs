//! Virtqueue pair behind a lock. The pair's device uses the queues; the session, in the thread of
//! the first device, sets them up and takes them away.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::peer::tell::Watch;

/// Virtqueue pair, and the descriptor set that its device sleeps on.
// The lock is taken for each frame, by the thread of the pair's device. The alignment keeps other
// pairs out of its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct SharedPair<P> {
    pair: Mutex<P>,
    pub(super) watch: Watch,
}

impl<P: Default> SharedPair<P> {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { pair: Mutex::default(), watch: Watch::new()? }))
    }

    /// Locks the pair, even after a panic: the only foreign code that runs under the lock is the
    /// sink of received frames, and the next set-up replaces all state that a panic there leaves.
    pub(super) fn lock(&self) -> MutexGuard<'_, P> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
