//! Events between the two processes, and the set of descriptors that a device waits for.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Descriptors that a device waits for, combined in one.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
    /// Always readable.
    ready: OwnedFd,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { epoll, ready })
    }

    /// Edge-triggered: each write is an event. The descriptor is never read, since a read could
    /// block.
    pub(crate) fn add_queue(&self, kick: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, kick, epoll::EventData::new_u64(QUEUE), flags)?)
    }

    pub(crate) fn add_socket(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(SOCKET), flags)?)
    }

    /// Adds the listening socket, if there is one; removes it while it `is_held`: it stays
    /// readable.
    pub(crate) fn set_listener(
        &self,
        listener: Option<BorrowedFd<'_>>,
        is_held: bool,
    ) -> io::Result<()> {
        let Some(listener) = listener else { return Ok(()) };
        if is_held {
            self.remove(listener);
            return Ok(());
        }
        match self.add_socket(listener) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            added => added,
        }
    }

    /// Removes a descriptor, which the peer may keep open.
    pub(crate) fn remove(&self, descriptor: BorrowedFd<'_>) {
        let _was_not_watched = epoll::delete(&self.epoll, descriptor);
    }

    /// Takes pending events. Returns true if the socket is among them.
    pub(crate) fn take(&self) -> bool {
        let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let taken = epoll::wait(&self.epoll, &mut room, Some(&now));
        taken.is_ok_and(|(events, _)| events.iter().any(|event| event.data.u64() == SOCKET))
    }

    pub(crate) fn always(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Notifies the other process. One pending event is enough.
pub(crate) fn tell(event: impl AsFd) {
    let _told_already = rustix::io::write(event, &1_u64.to_ne_bytes());
}

pub(crate) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Events taken in one call: two queues and two sockets can be ready.
const EVENTS_MAX: usize = 4;
/// Source of an event.
const QUEUE: u64 = 0;
const SOCKET: u64 = 1;

#[cfg(test)]
pub(crate) mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Returns true if a wait for the descriptor would end now.
    pub(crate) fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).unwrap() > 0
    }
}
