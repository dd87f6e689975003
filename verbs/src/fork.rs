//! What a fork means: the child has the parent's objects, but not the threads that serve them.
#![expect(unsafe_code, reason = "a handler for forks is told to C's library")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

/// How many forks lie between the program's start and this process, counted from the first call.
pub(crate) fn generation() -> u32 {
    HANDLER.call_once(|| {
        // SAFETY: the handler is a function of this library, which programs do not unload: the
        // endpoint's thread runs in it. It only writes an atomic number.
        let _no_memory = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Acquire)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// Leaves a parent's object alone: its end would wait for threads that this process does not have.
#[expect(clippy::mem_forget, reason = "that is what it is for")]
pub(crate) fn forget<T>(inherited: Arc<T>) {
    std::mem::forget(inherited);
}

/// `ibv_fork_init`: nothing is to be done. Memory is not locked for any device, so parent and child
/// have their own pages as always.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> libc::c_int {
    0
}

/// `ibv_is_fork_initialized`: not needed.
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
