//! Waiting for completions by descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::driver::clock::{monotonic_now, time_left};
use crate::driver::wakeup::Wakeup;
use crate::time::Duration;
use crate::verbs::{Cq, Wc};

/// The completion event channel of one completion queue (`ibv_comp_channel`): its descriptor
/// becomes readable when completions arrive, so the queue can stand in an epoll set.
///
/// ```no_run
/// # fn wait_readable(_: std::os::fd::BorrowedFd<'_>) {}
/// # use urnic::driver::CompChannel;
/// # fn print_completions(cq: &urnic::verbs::Cq) -> std::io::Result<()> {
/// let channel = CompChannel::new(cq)?;
/// loop {
///     channel.req_notify();
///     while let Some(wc) = cq.poll() {
///         println!("{wc:?}");
///     }
///     wait_readable(std::os::fd::AsFd::as_fd(&channel)); // poll, epoll, an async runtime …
///     channel.clear();
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct CompChannel {
    cq: Cq,
    wakeup: Arc<Wakeup>,
    waker: Waker,
}

impl CompChannel {
    /// Makes a channel for `cq`. A queue has one channel at a time: the last to ask is called.
    ///
    /// # Errors
    /// When the process may not open another descriptor.
    pub fn new(cq: &Cq) -> io::Result<Self> {
        let wakeup = Wakeup::new()?;
        let waker = Waker::from(Arc::clone(&wakeup));
        Ok(Self { cq: cq.clone(), wakeup, waker })
    }

    /// Asks for the descriptor to become readable at the next completion. Poll the queue once more
    /// afterwards: completions that were there before are not announced.
    pub fn req_notify(&self) {
        self.cq.req_notify(&self.waker);
    }

    /// Makes the descriptor unreadable until the next announcement.
    pub fn clear(&self) {
        self.wakeup.clear();
    }

    /// Takes the oldest completion, waiting for one for at most `timeout` (`None`: for ever).
    /// `Ok(None)` when none came in time.
    ///
    /// Needs a port that is driven by another thread.
    ///
    /// # Errors
    /// When the operating system refuses to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Wc>> {
        let deadline = timeout.map(|timeout| monotonic_now() + timeout);
        loop {
            if let Some(wc) = self.cq.poll() {
                return Ok(Some(wc));
            }
            self.req_notify();
            if let Some(wc) = self.cq.poll() {
                return Ok(Some(wc));
            }
            let now = monotonic_now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            let left = deadline.map(|deadline| time_left(now, deadline));
            match poll(&mut [PollFd::new(&self.wakeup, PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => self.clear(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}
