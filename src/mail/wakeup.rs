//! An eventfd that wakes a sleeping thread of the worker or of the application.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::{EventfdFlags, eventfd};

use crate::error::Error;

/// A descriptor that becomes readable when it is rung, and stays readable until it is cleared.
#[derive(Debug)]
pub(crate) struct Wakeup {
    fd: OwnedFd,
}

impl Wakeup {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::system("opening an eventfd", &errno.into()))?;
        Ok(Arc::new(Self { fd }))
    }

    pub(crate) fn ring(&self) {
        // The only error is a full counter, in which case the descriptor is readable already.
        let _readable_anyway = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        // The only error is an empty counter: it is clear.
        let _clear_anyway = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
