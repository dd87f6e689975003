//! Synchronisation primitives of the standard library, or loom's (`tests/loom`), which tries every
//! order of the steps.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use crossbeam::queue::ArrayQueue;

#[cfg(loom)]
pub(crate) use stand_in::ArrayQueue;

/// Takes a lock, even after a panic of another holder: these locks protect no partial updates.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
mod stand_in {
    use std::collections::VecDeque;

    #[derive(Debug)]
    pub(crate) struct ArrayQueue<T> {
        items: loom::sync::Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self { items: loom::sync::Mutex::new(VecDeque::new()), capacity }
        }

        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            let mut items = super::lock(&self.items);
            if items.len() == self.capacity {
                return Err(item);
            }
            items.push_back(item);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            super::lock(&self.items).pop_front()
        }

        pub(crate) fn is_empty(&self) -> bool {
            super::lock(&self.items).is_empty()
        }
    }
}
