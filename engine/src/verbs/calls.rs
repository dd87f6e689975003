//! Calls of wakers, held back while the thread has locks that a waker may want.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::task::Waker;

thread_local! {
    /// How many [`HeldCalls`] this thread has.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// What is to be called when the last of them goes.
    static HELD: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// While it exists, wakers that this thread would call wait; they are called when it goes.
///
/// A program's waker may do anything: revoke memory, take a lock that another thread holds while it
/// revokes memory. So it is never called under a lease of the region table: make this before the
/// lease, and it goes after it.
#[derive(Debug)]
pub(crate) struct HeldCalls {
    /// Counted for one thread: it stays there.
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
        // The allocation is kept. What the calls have rung was called at once.
        HELD.set(held);
    }
}

/// Calls the wakers now, or when this thread holds calls back no more. `wakers` is empty afterwards.
pub(super) fn call(wakers: &mut Vec<Waker>) {
    if DEPTH.get() > 0 {
        HELD.with_borrow_mut(|held| held.append(wakers));
    } else {
        wakers.drain(..).for_each(Waker::wake);
    }
}
