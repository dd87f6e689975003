//! Deferred calls of wakers, while the thread holds locks that a waker may need.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::task::Waker;

thread_local! {
    /// Number of [`HeldCalls`] of this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Wakers to call when the last [`HeldCalls`] is dropped.
    static HELD: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// Defers calls of wakers by this thread until it is dropped. A waker may do anything: revoke
/// memory, or take a lock whose holder revokes memory. So none may be called under a lease of the
/// region table: create this before the lease; it is dropped after it.
#[derive(Debug)]
pub(crate) struct HeldCalls {
    /// Bound to its thread, since it is counted there.
    of_this_thread: PhantomData<*const ()>,
}

impl HeldCalls {
    pub(crate) fn new() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self { of_this_thread: PhantomData }
    }
}

impl Drop for HeldCalls {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth > 0 || HELD.with_borrow(Vec::is_empty) {
            return;
        }
        let mut held = HELD.take();
        held.drain(..).for_each(Waker::wake);
        // Keeps the allocation. Alarms that the calls have rung were called at once.
        HELD.set(held);
    }
}

/// Now, or when the thread's last [`HeldCalls`] is dropped. `wakers` is empty afterwards.
pub(super) fn call(wakers: &mut Vec<Waker>) {
    if DEPTH.get() > 0 {
        HELD.with_borrow_mut(|held| held.append(wakers));
    } else {
        wakers.drain(..).for_each(Waker::wake);
    }
}
