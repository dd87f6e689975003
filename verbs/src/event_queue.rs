//! Queues of events with a descriptor that is readable while an event waits, and counts of the
//! unacknowledged ones.
//!
//! 1. A thread of the library pushes an event, which makes the descriptor readable.
//! 2. A thread of the application takes the event. The event is counted as taken for its object.
//! 3. The application acknowledges the event.
//! 4. A call that destroys the object removes its events from the queue, then waits until the taken
//!    ones are acknowledged. Before that it stops the source of its events.
//!
//! Racy cases:
//!
//! - *One thread takes an event while another one destroys the object.* An event moves from the
//!   queue to the count under the queue's lock. So the destroying call finds the event in one of
//!   the two.
//! - *Several threads wait, and one event arrives.* All wake, one takes the event, and the others
//!   wait again.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::OFlags;

use crate::errno::Errno;

/// The descriptor is an eventfd that counts the events, so `poll`, `epoll` and `select` work, and
/// `O_NONBLOCK` set by the application is respected.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, queue: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, event: T) {
        let mut queue = locked(&self.queue);
        queue.push_back(event);
        // The write cannot block: the counter would have to be full.
        let _counted = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Waits for an event unless the application made the descriptor non-blocking. Calls `taken`
    /// under the queue's lock.
    pub(crate) fn take(&self, taken: impl FnOnce(&T)) -> Result<T, Errno> {
        loop {
            let mut queue = locked(&self.queue);
            if let Some(event) = queue.pop_front() {
                self.uncount();
                taken(&event);
                return Ok(event);
            }
            drop(queue);
            if rustix::fs::fcntl_getfl(&self.fd)?.contains(OFlags::NONBLOCK) {
                return Err(Errno(libc::EAGAIN));
            }
            poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None)?;
        }
    }

    pub(crate) fn remove(&self, gone: impl Fn(&T) -> bool) -> Vec<T> {
        let mut queue = locked(&self.queue);
        let (out, kept): (Vec<_>, Vec<_>) = queue.drain(..).partition(gone);
        *queue = kept.into();
        for _ in &out {
            self.uncount();
        }
        out
    }

    /// The event was counted, so the read does not block.
    fn uncount(&self) {
        let _counted = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

/// Events of one object that C has taken and not acknowledged. C may acknowledge more than that.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Unacknowledged {
    pub(crate) fn taken(&self) {
        *locked(&self.count) += 1;
    }

    pub(crate) fn acknowledged(&self, events: u32) {
        let mut count = locked(&self.count);
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let count = locked(&self.count);
        drop(self.changed.wait_while(count, |count| *count > 0));
    }
}

/// Ignores poisoning: no change under these locks is left half done.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_and_those_removed_leave_no_count() {
        let events = EventQueue::new().unwrap();
        for event in 0..4 {
            events.push(event);
        }
        assert_eq!(events.remove(|event| event % 2 == 0), [0, 2]);
        let next = || events.take(|_| ());
        assert_eq!((next(), next()), (Ok(1), Ok(3)));
        rustix::io::ioctl_fionbio(&events.fd, true).unwrap();
        assert_eq!(next(), Err(Errno(libc::EAGAIN)), "a program may make it not blocking");
        events.push(4);
        assert_eq!(next(), Ok(4));
        // An application that polls the descriptor sleeps.
        events.push(5);
        assert_eq!(events.remove(|_| true), [5]);
        let mut polled = [PollFd::new(&events.fd, PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0);
    }

    /// Threads push, wait for and remove events at the same time.
    #[test]
    fn no_event_is_lost_between_threads_and_no_count_is_left() {
        const EVENTS: usize = 20_000;
        let (events, taken) = (EventQueue::new().unwrap(), Mutex::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Ok(Some(_)) = events.take(|_: &Option<usize>| *locked(&taken) += 1) {}
                });
            }
            let remover = scope.spawn(|| {
                let mut removed = 0;
                while *locked(&taken) + removed < EVENTS {
                    removed += events.remove(|event| event.is_some_and(|n| n % 3 == 0)).len();
                }
                removed
            });
            for event in 0..EVENTS {
                events.push(Some(event));
            }
            let removed = remover.join().unwrap();
            events.push(None);
            events.push(None);
            assert!(removed <= EVENTS.div_ceil(3));
        });
        rustix::io::ioctl_fionbio(&events.fd, true).unwrap();
        assert_eq!(events.take(|_| ()), Err(Errno(libc::EAGAIN)));
        assert_eq!(rustix::io::read(&events.fd, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));
    }

    #[test]
    fn more_may_be_acknowledged_than_was_taken() {
        let events = Unacknowledged::default();
        events.taken();
        events.acknowledged(7);
        events.wait();
    }
}
