//! Forks: the child has the parent's objects, but not the threads that serve them.
//!
//! 1. The first call of [`generation`] registers a handler with C's library, which runs in each
//!    forked child and counts the forks.
//! 2. What the library has once per process is [`PerProcess`]: its network, the channel to its
//!    thread, its sockets. The first use in a child makes a new value, and leaks the parent's.
//! 3. Objects with a thread of their own, and rsockets, compare generations: calls for an
//!    inherited rsocket fail, and dropping an inherited object waits for no thread. Other inherited
//!    objects cannot be used.
//!
//! Racy cases:
//!
//! - *Another thread of the parent holds a lock during the fork.* The library's own threads may do
//!   so at any time. The child inherits the lock as held, and nothing releases it there. The child
//!   does not need it: locks in values of [`PerProcess`] are not used again, and the log is written
//!   without a lock. Only calls for inherited objects need the locks of these objects.
//! - *Another thread of the parent ends during the fork.* Rust's library locks a list of threads for
//!   that, so threads of the child may never end. Calls wait for what a thread does, and for the end
//!   of none.
//! - *Another thread of the parent uses the library for the first time during the fork.* The child
//!   inherits a [`Once`] that never ends. Calls that need it do not return.
//!
//! No loom model: loom cannot fork. Tests fork processes.
#![expect(unsafe_code, reason = "a handler for forks is registered with C's library")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Once};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HANDLER: Once = Once::new();

/// Returns the number of forks from the process that called this first to this process.
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

/// A value that each process has for itself: a forked child lacks the threads that may have held
/// the parent's locks.
pub(crate) struct PerProcess<T: 'static> {
    /// Value of the process that used it last, or NULL. Values live as long as the process.
    value: AtomicPtr<OfProcess<T>>,
    /// The argument is the parent's value in a forked child, if the parent had one. A lock in it
    /// may be held by a thread that does not exist.
    make: fn(Option<&T>) -> T,
}

struct OfProcess<T> {
    generation: u32,
    value: T,
}

impl<T: Sync> PerProcess<T> {
    pub(crate) const fn new(make: fn(Option<&T>) -> T) -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// Returns the value that was made last, by this process or by a parent, and its address.
    fn last(&self) -> (*mut OfProcess<T>, Option<&'static OfProcess<T>>) {
        let place = self.value.load(Ordering::Acquire);
        // SAFETY: NULL, or a leaked box that a `Release` has published; nothing changes or frees it.
        (place, unsafe { place.as_ref() })
    }

    /// Allocates nothing.
    pub(crate) fn present(&self) -> Option<&'static T> {
        let (_, last) = self.last();
        last.filter(|last| last.generation == generation()).map(|own| &own.value)
    }

    pub(crate) fn of_this(&self) -> &'static T {
        let generation = generation();
        loop {
            // One load: a value that another thread makes meanwhile is never taken for a parent's.
            let (place, last) = self.last();
            let inherited = match last {
                Some(own) if own.generation == generation => return &own.value,
                inherited => inherited.map(|inherited| &inherited.value),
            };
            let made = Box::new(OfProcess { generation, value: (self.make)(inherited) });
            let made = Box::into_raw(made);
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            if self.value.compare_exchange(place, made, success, failure).is_err() {
                // SAFETY: from `into_raw` above, and not published: another thread was first.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

/// Leaks a parent's object: dropping it would wait for threads that this process does not have.
#[expect(clippy::mem_forget, reason = "that is what it is for")]
pub(crate) fn forget<T>(inherited: Arc<T>) {
    std::mem::forget(inherited);
}

/// Does nothing. The device pins no memory, so copy-on-write works as usual.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> libc::c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> libc::c_uint {
    crate::abi::IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut libc::c_void, _size: usize) -> libc::c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut libc::c_void, _size: usize) -> libc::c_int {
    0
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};
    use std::thread;

    use super::*;

    static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(|inherited| {
        Mutex::new(inherited.map_or(0, |inherited| inherited.try_lock().map_or(1, |value| *value)))
    });

    /// Returns the exit status of a child that runs `body`.
    fn status_of_child(body: impl FnOnce() -> u32) -> i32 {
        // SAFETY: the child only runs `body`, which reads and allocates, and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: ends the child without the handlers of this process.
            unsafe { libc::_exit(body().cast_signed()) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and memory for its status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(ended == child && libc::WIFEXITED(status), "{status}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_child_does_not_need_a_lock_that_its_parent_holds() {
        assert!(VALUE.present().is_none());
        let held = VALUE.of_this().lock().unwrap();
        let status = status_of_child(|| {
            let is_absent = VALUE.present().is_none();
            let value = VALUE.of_this().try_lock().map_or(9, |value| *value);
            if is_absent && VALUE.present().is_some() { value } else { 8 }
        });
        assert_eq!(status, 1, "a new value, made while the parent's was locked");
        drop(held);
        *VALUE.of_this().lock().unwrap() = 5;
        assert_eq!(status_of_child(|| VALUE.of_this().try_lock().map_or(9, |value| *value)), 5);
        assert_eq!(*VALUE.of_this().lock().unwrap(), 5);
    }

    #[test]
    fn threads_that_use_a_value_first_at_the_same_time_have_the_same() {
        for _ in 0..500 {
            let value: &PerProcess<Mutex<u32>> =
                Box::leak(Box::new(PerProcess::new(|_inherited| Mutex::default())));
            let together = Barrier::new(4);
            let first = || {
                together.wait();
                ptr::from_ref(value.of_this()).addr()
            };
            let places = thread::scope(|scope| {
                [(); 4].map(|()| scope.spawn(first)).map(|thread| thread.join().unwrap())
            });
            assert_eq!(places, [places[0]; 4]);
            assert_eq!(ptr::from_ref(value.of_this()).addr(), places[0]);
        }
    }
}
