//! Forks: the child has the parent's objects, but not the threads that serve them.
#![expect(unsafe_code, reason = "a handler for forks is registered with C's library")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

/// Returns the number of forks between the start of counting, at the first call, and this process.
pub(crate) fn generation() -> u32 {
    HANDLER.call_once(|| {
        // SAFETY: the handler is a function of this library, which applications do not unload: the
        // endpoint's thread runs in it. It only writes an atomic number.
        let _no_memory = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Acquire)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Leaks a parent's object: dropping it would wait for threads that this process does not have.
#[expect(clippy::mem_forget, reason = "that is what it is for")]
pub(crate) fn forget<T>(inherited: Arc<T>) {
    std::mem::forget(inherited);
}

/// `ibv_fork_init`: does nothing. No device locks memory, so parent and child have their own pages
/// as usual.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> libc::c_int {
    0
}

/// `ibv_is_fork_initialized`: reports that it is not needed.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> libc::c_uint {
    crate::abi::IBV_FORK_UNNEEDED
}

/// `ibv_dontfork_range`: see [`ibv_fork_init`].
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: usize) -> libc::c_int {
    0
}

/// `ibv_dofork_range`: see [`ibv_fork_init`].
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: usize) -> libc::c_int {
    0
}
