//! A pair of queues behind its lock: shared by the device that uses it and by the session that changes
//! it.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::peer::tell::Watch;

/// A pair, and what its device sleeps on.
//
// The lock is taken for each frame, by the thread of its queue: no other pair is in the same cache line.
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

    /// The pair. No caller's code runs under the lock but what frames are handed to, so a panic
    /// there leaves nothing half changed that the next set-up does not replace.
    pub(super) fn lock(&self) -> MutexGuard<'_, P> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
