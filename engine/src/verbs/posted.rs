//! Work requests that were posted and not yet taken by the engine.

use std::collections::VecDeque;

use crate::verbs::sync::{AtomicUsize, Mutex, Ordering, lock};

/// A queue of at most `depth` work requests, first in, first out, for any number of threads. Its
/// memory grows with the posted requests, and is not freed when the queue empties: an unused queue
/// has none, and a queue in steady use allocates nothing.
#[derive(Debug)]
pub(crate) struct Posted<T> {
    requests: Mutex<VecDeque<T>>,
    /// Number of requests, so that an empty queue is detected without the lock.
    len: AtomicUsize,
    depth: usize,
}

impl<T> Posted<T> {
    pub(super) fn new(depth: usize) -> Self {
        Self { requests: Mutex::new(VecDeque::new()), len: AtomicUsize::new(0), depth }
    }

    /// Adds a request, or returns it if there is no room.
    pub(super) fn push(&self, request: T) -> Result<(), T> {
        let mut requests = lock(&self.requests);
        if requests.len() == self.depth {
            return Err(request);
        }
        make_room(&mut requests, 1);
        requests.push_back(request);
        self.len.store(requests.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Adds all requests; the caller has reserved room for them.
    pub(super) fn extend(&self, added: impl Iterator<Item = T>) {
        let mut requests = lock(&self.requests);
        make_room(&mut requests, added.size_hint().0);
        requests.extend(added);
        assert!(requests.len() <= self.depth, "the queue has room for every reserved place");
        self.len.store(requests.len(), Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mut requests = lock(&self.requests);
        let request = requests.pop_front();
        self.len.store(requests.len(), Ordering::SeqCst);
        request
    }

    /// If `taken` is empty, moves all requests by swapping the two deques; otherwise up to `max` of
    /// the oldest.
    pub(crate) fn take_into(&self, taken: &mut VecDeque<T>, max: usize) {
        if self.is_empty() {
            return;
        }
        let mut requests = lock(&self.requests);
        if taken.is_empty() {
            // The head of the empty ring goes back to the start: the next requests are contiguous.
            taken.clear();
            std::mem::swap(&mut *requests, taken);
        } else {
            let count = max.min(requests.len());
            make_room(taken, count);
            taken.extend(requests.drain(..count));
        }
        self.len.store(requests.len(), Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) const fn depth(&self) -> usize {
        self.depth
    }
}

/// The first reservation is exact, because a request takes a third of a KiB and many connections
/// have one at a time. Later ones at least double the memory.
pub(crate) fn make_room<T>(requests: &mut VecDeque<T>, more: usize) {
    if requests.capacity() - requests.len() < more {
        requests.reserve_exact(more.max(requests.capacity()));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
