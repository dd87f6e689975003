//! Readiness of sockets: an epoll set.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;

use crate::clock::time_left;
use crate::mail::wakeup::Wakeup;
use urnic_engine::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener(usize),
    Connection(usize),
}

impl Token {
    const fn data(self) -> EventData {
        EventData::new_u64(match self {
            Self::Listener(slot) => (slot as u64) << 1,
            Self::Connection(slot) => (slot as u64) << 1 | 1,
        })
    }

    fn from_data(data: EventData) -> Self {
        let bits = data.u64();
        let slot = usize::try_from(bits >> 1).expect("made from a usize");
        if bits & 1 == 0 { Self::Listener(slot) } else { Self::Connection(slot) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readiness {
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The socket has an error, or is at its end.
    pub(super) failed: bool,
    /// Reported only if no other event of the socket is requested.
    pub(super) peer_ended: bool,
}

impl Readiness {
    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.readable);
        flags.set(EventFlags::OUT, self.writable);
        // Errors and hang-ups are always reported. If nothing else is requested, they are reported
        // only once (edge-triggered), so that an unread socket is not ready at every turn.
        flags.set(EventFlags::ET | EventFlags::RDHUP, flags.is_empty());
        flags
    }
}

#[derive(Debug)]
pub(super) struct Events {
    epoll: OwnedFd,
}

impl Events {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll })
    }

    /// Closing the socket removes it.
    pub(super) fn add(&self, socket: &Socket, token: Token) -> io::Result<()> {
        let flags = match token {
            Token::Listener(_) => EventFlags::IN,
            Token::Connection(_) => EventFlags::IN | EventFlags::OUT,
        };
        Ok(epoll::add(&self.epoll, socket, token.data(), flags)?)
    }

    pub(super) fn watch_listener(
        &self,
        socket: &Socket,
        slot: usize,
        watched: bool,
    ) -> io::Result<()> {
        let flags = if watched { EventFlags::IN } else { EventFlags::empty() };
        Ok(epoll::modify(&self.epoll, socket, Token::Listener(slot).data(), flags)?)
    }

    /// `None` leaves the events.
    pub(super) fn update(
        &self,
        socket: &Socket,
        slot: usize,
        interest: Option<Readiness>,
    ) -> io::Result<()> {
        let Some(interest) = interest else { return Ok(()) };
        let data = Token::Connection(slot).data();
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    pub(super) fn poll(&self) -> ArrayVec<(Token, Readiness), EVENTS_MAX> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        // Interrupted: the next turn polls again.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&at_once)) else {
            return ArrayVec::new();
        };
        let read = |event: &mut Event| {
            let (flags, data) = (event.flags, event.data);
            // The next read or write reports errors and hang-ups.
            let failed = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            let readable = failed || flags.contains(EventFlags::IN);
            let writable = failed || flags.contains(EventFlags::OUT);
            let peer_ended = flags.contains(EventFlags::RDHUP);
            (Token::from_data(data), Readiness { readable, writable, failed, peer_ended })
        };
        ready.iter_mut().map(read).collect()
    }

    /// Sleeps until a socket is ready, `wakeup` is rung, or `deadline` is reached.
    pub(super) fn wait(&self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup) {
        let left = deadline.map(|deadline| time_left(now, deadline));
        let epoll = self.epoll.as_fd();
        let mut descriptors =
            [PollFd::new(wakeup, PollFlags::IN), PollFd::new(&epoll, PollFlags::IN)];
        // Interrupted, or refused for lack of memory: the worker looks for work and returns.
        let _woken = poll(&mut descriptors, left.as_ref());
    }
}

const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

    use socket2::SockRef;

    use super::*;

    /// A socket at its end in both directions that must not be read yet: the kernel always reports
    /// that, and the report must not keep the engine from sleeping.
    #[test]
    fn end_of_an_unawaited_socket_is_reported_once() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, _) = listener.accept().unwrap();
        let (events, own) = (Events::new().unwrap(), Socket::from(own));
        events.add(&own, Token::Connection(3)).unwrap();
        SockRef::from(&peer).send(b"unread").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        own.shutdown(Shutdown::Write).unwrap();
        let told = || loop {
            let found = events.poll();
            if !found.is_empty() {
                return found;
            }
            std::thread::yield_now();
        };
        while !told()[0].1.failed {}
        assert!(events.poll()[0].1.failed, "again and again");
        events.update(&own, 3, Some(Readiness::default())).unwrap();
        events.poll();
        assert!(events.poll().is_empty() && events.poll().is_empty());
        let wanted = Readiness { readable: true, ..Readiness::default() };
        events.update(&own, 3, Some(wanted)).unwrap();
        assert!(told()[0].1.readable, "what was not read is still there");
    }
}
