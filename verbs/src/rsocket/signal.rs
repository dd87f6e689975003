//! Wake-ups for calls that wait at a socket. Each call has a descriptor of its own, so that a
//! signal of the kernel ends its sleep, as it ends that of a system call.
//!
//! 1. A call that has to wait makes a [`Sleeper`], and [watches](Sleeper::watch) the [`Signal`] of
//!    each of its sockets.
//! 2. The call arms the wake-up of each socket. Then the call looks at the sockets.
//! 3. If the call finds nothing, it [sleeps](Sleeper::sleep) until its descriptor is readable.
//! 4. An event rings the signal, which makes the descriptors of all waiting calls readable.
//! 5. The call clears its descriptor, and continues with step 2.
//!
//! Racy case: *an event occurs after the look of step 2.* The wake-up is armed, so the event makes
//! the descriptor readable, and step 3 ends at once. A ring that step 5 clears is not lost: the
//! look that follows finds its event.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::errno::Errno;
use crate::event_queue::locked;

/// An event wakes all of them, and each looks at the socket itself.
#[derive(Debug, Default)]
pub(super) struct Signal {
    sleepers: Mutex<Vec<Arc<OwnedFd>>>,
}

impl Signal {
    pub(super) fn ring(&self) {
        for sleeper in &*locked(&self.sleepers) {
            // The write cannot block: the counter would have to be full.
            let _counted = rustix::io::write(&**sleeper, &1_u64.to_ne_bytes());
        }
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[derive(Debug)]
pub(super) struct Sleeper {
    fd: Arc<OwnedFd>,
    at: Vec<Arc<Signal>>,
}

impl Sleeper {
    pub(super) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd: Arc::new(fd), at: Vec::new() })
    }

    pub(super) fn watch(&mut self, signal: &Arc<Signal>) {
        locked(&signal.sleepers).push(Arc::clone(&self.fd));
        self.at.push(Arc::clone(signal));
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn clear(&self) {
        let _none = rustix::io::read(&*self.fd, &mut [0; 8]);
    }

    /// Returns true after a wake-up; EINTR after a signal of the kernel.
    pub(super) fn sleep(&self, until: Option<Instant>) -> Result<bool, Errno> {
        let woken = poll(&mut [PollFd::new(&*self.fd, PollFlags::IN)], time_left(until).as_ref())?;
        self.clear();
        Ok(woken > 0)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        for signal in &self.at {
            locked(&signal.sleepers).retain(|sleeper| !Arc::ptr_eq(sleeper, &self.fd));
        }
    }
}

pub(super) fn time_left(until: Option<Instant>) -> Option<Timespec> {
    let left = until?.saturating_duration_since(now());
    Some(Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

#[expect(clippy::disallowed_methods, reason = "programs say how long they wait, in real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// `None` if the time cannot be represented.
pub(super) fn after(while_: Duration) -> Option<Instant> {
    now().checked_add(while_)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_watchers_are_woken_until_they_leave() {
        let signal = Arc::new(Signal::default());
        let sleepers = [(); 2].map(|()| {
            let mut sleeper = Sleeper::new().unwrap();
            sleeper.watch(&signal);
            sleeper
        });
        assert_eq!(sleepers[0].sleep(after(Duration::from_millis(1))), Ok(false));
        signal.ring();
        signal.ring();
        for sleeper in &sleepers {
            assert_eq!(sleeper.sleep(None), Ok(true));
            assert_eq!(sleeper.sleep(after(Duration::ZERO)), Ok(false), "rung twice, seen once");
        }
        drop(sleepers);
        assert!(locked(&signal.sleepers).is_empty());
    }
}
