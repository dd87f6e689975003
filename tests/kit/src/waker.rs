//! A waker that counts its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

/// Number of calls of a waker.
#[derive(Default)]
pub struct Calls(AtomicUsize);

impl Calls {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.add();
    }
}

/// Returns a waker and the count of its calls.
pub fn counting() -> (Arc<Calls>, Waker) {
    let calls = Arc::new(Calls::default());
    (Arc::clone(&calls), Waker::from(calls))
}
