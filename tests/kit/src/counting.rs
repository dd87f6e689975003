//! A global allocator that counts the allocations of each thread.
#![allow(clippy::print_stderr, reason = "a test that fails says where it allocated")]
#![allow(
    unsafe_code,
    reason = "a global allocator is an unsafe trait; it only counts and forwards"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;

thread_local! {
    /// Allocations and reallocations of this thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread has allocated and not freed.
    static LIVE: Cell<i64> = const { Cell::new(0) };
    /// This thread's next allocation prints a backtrace.
    static LOUD: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator with counts. A test binary that counts makes it its
/// `#[global_allocator]`; benches do not.
pub struct Counting;

fn add(octets: usize) {
    LIVE.set(LIVE.get().wrapping_add_unsigned(octets as u64));
}

fn subtract(octets: usize) {
    LIVE.set(LIVE.get().wrapping_sub_unsigned(octets as u64));
}

/// Returns the bytes of the heap that the current thread has allocated and not freed.
pub fn live_bytes() -> i64 {
    LIVE.get()
}

fn count() {
    // The cells need neither a first-time allocation nor a destructor.
    COUNT.with(|count| count.set(count.get() + 1));
    if LOUD.replace(false) {
        let before = COUNT.get();
        eprintln!("allocated here:\n{}", Backtrace::force_capture());
        COUNT.set(before);
    }
}

// SAFETY: every method forwards its arguments unchanged to `System` and returns what that returned,
// so the contract holds because `System` keeps it. Counting does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        add(layout.size());
        // SAFETY: the caller fulfils the contract of `System.alloc`: a layout of non-zero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        add(layout.size());
        // SAFETY: the caller fulfils the contract of `System.alloc_zeroed`: a layout of non-zero
        // size.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        subtract(layout.size());
        add(new_size);
        // SAFETY: the caller promises that `ptr` came from this allocator, hence from `System`,
        // with this layout, and that `new_size` is not zero and does not overflow.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: the caller promises that `ptr` came from this allocator, hence from `System`,
        // with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Counts the allocations of the current thread from its beginning to its end.
#[derive(Debug)]
pub struct Census {
    before: u64,
}

impl Census {
    /// Starts to count; the first allocation prints a backtrace.
    pub fn begin() -> Self {
        LOUD.set(true);
        Self::begin_quietly()
    }

    /// Starts to count.
    pub fn begin_quietly() -> Self {
        Self { before: COUNT.get() }
    }

    /// Returns the number of allocations so far.
    pub fn so_far(&self) -> u64 {
        COUNT.get() - self.before
    }

    /// Ends the count and returns it.
    pub fn end(self) -> u64 {
        let allocations = self.so_far();
        LOUD.set(false);
        allocations
    }
}
