//! Waiting for completions by descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::Waker;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::clock::{monotonic_now, time_left};
use crate::error::Error;
use crate::mail::wakeup::Wakeup;
use urnic_engine::time::Duration;
use urnic_engine::verbs::{Cq, Wc};

/// The completion event channel of one completion queue (`ibv_comp_channel`). Its descriptor
/// becomes readable when completions arrive, so the queue can be part of an epoll set.
///
/// ```no_run
#[doc = include_str!("../../examples/wait_by_descriptor.rs")]
/// ```
#[derive(Debug)]
pub struct CompChannel {
    cq: Cq,
    wakeup: Arc<Wakeup>,
    waker: Waker,
}

impl CompChannel {
    /// Creates a channel for `cq`. A queue may have several: the next completion notifies all that
    /// have asked, and the first thread to poll takes it.
    ///
    /// # Errors
    /// If the process may not open another descriptor.
    pub fn new(cq: &Cq) -> Result<Self, Error> {
        let wakeup = Wakeup::new()?;
        let waker = Waker::from(Arc::clone(&wakeup));
        Ok(Self { cq: cq.clone(), wakeup, waker })
    }

    /// Asks for the descriptor to become readable at the next completion. Poll the queue once more
    /// afterwards: earlier completions are not reported.
    pub fn req_notify(&self) {
        self.cq.req_notify(&self.waker);
    }

    /// Makes the descriptor unreadable until the next notification.
    pub fn clear(&self) {
        self.wakeup.clear();
    }

    /// Takes the oldest completion, waiting for at most `timeout` (`None`: for ever); `Ok(None)` if
    /// none came in time. Needs an endpoint with a thread of its own
    /// ([`EndpointConfig::own_thread`](crate::EndpointConfig)), or another thread that runs it.
    ///
    /// # Errors
    /// If the operating system refuses to wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Wc>, Error> {
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
                Err(error) => return Err(Error::system("waiting for a completion", &error.into())),
            }
        }
    }
}

impl Drop for CompChannel {
    fn drop(&mut self) {
        self.cq.cancel_notify(&self.waker);
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.wakeup.as_fd().as_raw_fd()
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use urnic_engine::verbs::{Rnic, RnicConfig};

    use super::*;

    /// A queue that has had many channels would wake descriptors of none.
    #[test]
    fn a_channel_that_is_dropped_leaves_nothing_at_its_queue() {
        let cq = Rnic::new(RnicConfig { seed: 1.into() }).create_cq(4).unwrap();
        let channel = CompChannel::new(&cq).unwrap();
        channel.req_notify();
        let wakeup = Arc::downgrade(&channel.wakeup);
        drop(channel);
        assert!(wakeup.upgrade().is_none());
    }
}
