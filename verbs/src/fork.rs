//! Forks: the child has the parent's objects, but not the threads that serve them.
//!
//! 1. The first call of [`generation`] registers a handler with C's library, which runs in each
//!    forked child and counts the forks.
//! 2. An object that needs threads stores the generation in which it was made.
//! 3. A call in the child finds that the generation of the process's network or thread is not its
//!    own. It makes new ones, and leaks the parent's network ([`forget`]).
//! 4. Objects with a thread of their own, and rsockets, compare generations, too: calls for an
//!    inherited rsocket fail, and dropping an inherited object waits for no thread. Other inherited
//!    objects cannot be used.
//!
//! Racy case: *another thread of the parent is inside a call of this library during the fork.* The
//! child inherits the locks that this thread holds, and nothing releases them there. Calls of the
//! child that need such a lock never return. POSIX permits only async-signal-safe calls in a child
//! of a process with several threads.
#![expect(unsafe_code, reason = "a handler for forks is registered with C's library")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

/// Returns the number of forks between the process that called this function first and this
/// process.
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

/// `ibv_fork_init`: does nothing. The device pins no memory, so copy-on-write works as usual.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> libc::c_int {
    0
}

/// `ibv_is_fork_initialized`: reports that `ibv_fork_init` is not needed.
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
