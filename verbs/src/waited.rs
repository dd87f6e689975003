//! Where threads wait for events, by C's pointers: these may be of objects that are not there any more.
//!
//! Programs destroy a channel, or close a device, while another thread waits there, or is between two waits,
//! and then end: so does `rping`. With a kernel's descriptor such a thread waits on, or is told that there is
//! none (EBADF). So a call that waits looks its pointer up here, and reads nothing through it before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::errno::Errno;
use crate::event_queue::locked;
use crate::exit;

/// How long a call waits for the end of the process that has destroyed what it is about. Its error would
/// have the thread report it, and end the process with another code.
const END_AWAITED_FOR: Duration = Duration::from_secs(1);

/// The objects of one kind that there are.
#[derive(Debug)]
pub(crate) struct WaitedAt<T>(Mutex<BTreeMap<usize, Arc<T>>>);

impl<T> WaitedAt<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// C knows the object by this pointer, until it is [`remove`](Self::remove)d.
    pub(crate) fn insert<C>(&self, c: *mut C, object: &Arc<T>) {
        locked(&self.0).insert(c.addr(), Arc::clone(object));
    }

    /// C knows it no more. A thread that waits holds it.
    pub(crate) fn remove<C>(&self, c: *mut C) {
        locked(&self.0).remove(&c.addr());
    }

    /// What C's pointer is of.
    ///
    /// # Errors
    /// EBADF: of nothing that there is, and the process has not ended in a second.
    pub(crate) fn find<C>(&self, c: *mut C) -> Result<Arc<T>, Errno> {
        let found = locked(&self.0).get(&c.addr()).cloned();
        if found.is_none() && !c.is_null() {
            thread::park_timeout(END_AWAITED_FOR);
            exit::wait_if_under_way();
        }
        found.ok_or(Errno(libc::EBADF))
    }
}
