//! Objects at which threads wait for events, found by C's pointers, which may be stale.
//!
//! Applications such as `rping` destroy a channel or close a device while another thread waits
//! there; with a kernel's descriptor it keeps waiting, or gets EBADF. So a waiting call looks its
//! pointer up here, and reads nothing through the pointer before.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use crate::errno::Errno;
use crate::exit;
use crate::fork::PerProcess;

/// Wait for the end of the process after the object was destroyed: a thread that got an error would
/// end the process with another exit code.
const END_AWAITED_FOR: Duration = Duration::from_secs(1);

type Objects<T> = RwLock<BTreeMap<usize, Arc<T>>>;

pub(crate) struct WaitedAt<T: 'static>(PerProcess<Objects<T>>);

impl<T: Send + Sync> WaitedAt<T> {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new(inherit))
    }

    /// Registers an object until it is [`remove`](Self::remove)d.
    pub(crate) fn insert<C>(&self, c: *mut C, object: &Arc<T>) {
        let mut objects = self.0.of_this().write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(c.addr(), Arc::clone(object));
    }

    /// A thread that waits at it keeps a reference.
    pub(crate) fn remove<C>(&self, c: *mut C) {
        let mut objects = self.0.of_this().write().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&c.addr());
    }

    /// EBADF if the object does not exist, after waiting for the end of the process; NULL at once.
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

/// None if another thread of the parent was making or destroying one during the fork.
fn inherit<T>(parents: Option<&Objects<T>>) -> Objects<T> {
    let inherited = parents.and_then(|parents| parents.try_read().ok());
    inherited.map(|objects| RwLock::new(objects.clone())).unwrap_or_default()
}
