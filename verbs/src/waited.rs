//! Objects at which threads wait for events, found by C's pointers, which may be of destroyed
//! objects.
//!
//! Applications such as `rping` destroy a channel or close a device, and then end, while another
//! thread waits there or is between two waits. With a kernel's descriptor such a thread keeps
//! waiting, or gets EBADF. So a call that waits looks its pointer up here, and reads nothing
//! through the pointer before.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use crate::errno::Errno;
use crate::exit;
use crate::fork::PerProcess;

/// Time that a call waits for the end of the process after its object was destroyed. An error would
/// make the thread report it, and end the process with another exit code.
const END_AWAITED_FOR: Duration = Duration::from_secs(1);

type Objects<T> = RwLock<BTreeMap<usize, Arc<T>>>;

/// The existing objects of one kind.
pub(crate) struct WaitedAt<T: 'static>(PerProcess<Objects<T>>);

impl<T: Send + Sync> WaitedAt<T> {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new(inherit))
    }

    /// Registers the object under C's pointer, until it is [`remove`](Self::remove)d.
    pub(crate) fn insert<C>(&self, c: *mut C, object: &Arc<T>) {
        let mut objects = self.0.of_this().write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(c.addr(), Arc::clone(object));
    }

    /// Removes the object. A thread that waits at it keeps a reference.
    pub(crate) fn remove<C>(&self, c: *mut C) {
        let mut objects = self.0.of_this().write().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&c.addr());
    }

    /// Returns the object behind C's pointer.
    ///
    /// # Errors
    /// EBADF if the object does not exist and the process has not ended within a second.
    /// NULL fails at once.
    pub(crate) fn find<C>(&self, c: *mut C) -> Result<Arc<T>, Errno> {
        let objects = self.0.of_this().read().unwrap_or_else(PoisonError::into_inner);
        let found = objects.get(&c.addr()).cloned();
        drop(objects);
        if found.is_none() && !c.is_null() {
            thread::park_timeout(END_AWAITED_FOR);
            exit::wait_if_under_way();
        }
        found.ok_or(Errno(libc::EBADF))
    }
}

/// Returns the parent's objects for a forked child. None if another thread of the parent was making
/// or destroying one during the fork.
fn inherit<T>(parents: Option<&Objects<T>>) -> Objects<T> {
    let inherited = parents.and_then(|parents| parents.try_read().ok());
    inherited.map(|objects| RwLock::new(objects.clone())).unwrap_or_default()
}
