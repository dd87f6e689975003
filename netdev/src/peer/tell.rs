//! Events between the two processes: descriptors that are written to, and waited for.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// What is waited for, in one descriptor.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
    /// Readable for ever.
    ready: OwnedFd,
}

impl Watch {
    /// # Errors
    /// What `epoll_create1(2)` and `eventfd(2)` answer.
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { epoll, ready })
    }

    /// Watches a descriptor of the peer by its edges: each write to it is an event, and it is never
    /// read, which could wait.
    ///
    /// # Errors
    /// What `epoll_ctl(2)` answers.
    pub(crate) fn add_queue(&self, kick: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, kick, epoll::EventData::new_u64(QUEUE), flags)?)
    }

    /// # Errors
    /// What `epoll_ctl(2)` answers.
    pub(crate) fn add_socket(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(SOCKET), flags)?)
    }

    /// Watches the socket that peers connect to, if there is one; not while it `is_held`, since it stays readable
    /// then.
    ///
    /// # Errors
    /// What `epoll_ctl(2)` answers.
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

    /// Watches a descriptor no more. The peer may have it open for longer.
    pub(crate) fn remove(&self, descriptor: BorrowedFd<'_>) {
        let _was_not_watched = epoll::delete(&self.epoll, descriptor);
    }

    /// Takes the events that have come. Returns whether the socket is among them.
    pub(crate) fn take(&self) -> bool {
        let mut room = [MaybeUninit::uninit(); EVENTS_MAX];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let taken = epoll::wait(&self.epoll, &mut room, Some(&now));
        taken.is_ok_and(|(events, _)| events.iter().any(|event| event.data.u64() == SOCKET))
    }

    /// A descriptor that is readable now.
    pub(crate) fn always(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Tells the other process. An event that was told already and not seen is enough.
pub(crate) fn tell(event: impl AsFd) {
    let _told_already = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// An event of this process, to be shared with the peer.
///
/// # Errors
/// What `eventfd(2)` answers.
pub(crate) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Events taken in one go: two queues and two sockets can be ready.
const EVENTS_MAX: usize = 4;
/// What an event is of.
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
