//! Virtqueue pair behind its lock, shared by its device and by the session, which changes it.

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

    /// Locks the pair. The only foreign code that runs under the lock is the sink of received
    /// frames. A panic there leaves no state that the next set-up does not replace.
    pub(super) fn lock(&self) -> MutexGuard<'_, P> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
