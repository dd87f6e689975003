//! A socket: its state, the steps between states, and waiting calls.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use libc::c_int;
use urnic::{Connection, ConnectionEvent};

use super::iomap::IoMaps;
use super::options::Options;
use super::signal::{Signal, Sleeper, after, now};
use super::stream::{End, Stream};
use super::wire::{ConnData, Message};
use crate::cm::socket::{IdEvent, SocketId};
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::fork;
use crate::process::{Process, process};

/// Time that a call spins before it sleeps, as rdma-core's `polling_time`.
const SPIN: Duration = Duration::from_micros(20);
/// Maximum time that a close waits for a peer that takes nothing.
const LINGER: Duration = Duration::from_secs(10);
/// Backlog for an application that passes 0.
const BACKLOG: usize = 128;

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fd: RawFd,
    generation: u32,
    process: Arc<Process>,
    signal: Arc<Signal>,
    state: Mutex<State>,
    /// Number of attempts of waiting calls since one last succeeded.
    found_nothing: AtomicUsize,
    /// Held by a call while it sends, so that the data of two calls does not mix.
    pub(super) sending: Mutex<()>,
    /// Held by a call while it receives, for the same reason.
    pub(super) receiving: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct State {
    /// `None` once the socket is closed.
    pub(super) id: Option<SocketId>,
    waker: Waker,
    pub(super) phase: Phase,
    pub(super) options: Options,
    /// Error that `SO_ERROR` returns once.
    pub(super) error: Option<Errno>,
    pub(super) iomaps: IoMaps,
}

#[derive(Debug)]
pub(super) enum Phase {
    New,
    Listening {
        backlog: usize,
        requests: VecDeque<Request>,
    },
    /// Connecting, or accepted.
    Opening(Box<Stream>),
    Open(Box<Stream>, Option<Box<Connection>>),
    Failed,
}

#[derive(Debug)]
pub(super) struct Request {
    id: SocketId,
    peer: ConnData,
}

impl State {
    fn look(&mut self) {
        let Some(id) = &self.id else { return };
        match &mut self.phase {
            Phase::New | Phase::Failed => {}
            Phase::Listening { backlog, requests } => {
                while requests.len() < *backlog
                    && let Some(told) = id.next()
                {
                    let IdEvent::Request(id, private_data) = told else { continue };
                    match ConnData::of(&private_data) {
                        Some(peer) => requests.push_back(Request { id, peer }),
                        None => id.reject(),
                    }
                }
            }
            Phase::Opening(_) => {
                if let Some(told) = id.next() {
                    self.opened(told);
                }
            }
            Phase::Open(stream, connection) => look(stream, connection.as_deref()),
        }
    }

    fn opened(&mut self, told: IdEvent) {
        let Phase::Opening(mut stream) = std::mem::replace(&mut self.phase, Phase::Failed) else {
            return;
        };
        let connection = self.id.as_ref().and_then(SocketId::take_connection).map(Box::new);
        let is_passive = stream.is_met();
        match told {
            IdEvent::Established(private_data) => match ConnData::of(&private_data) {
                Some(peer) if !is_passive => {
                    stream.meet(&peer);
                    self.phase = Phase::Open(stream, connection);
                }
                _ if is_passive => self.phase = Phase::Open(stream, connection),
                // The peer is not an rsocket.
                _ => {
                    if let Some(connection) = connection {
                        connection.abort();
                    }
                    self.error = Some(Errno::NOT_SUPPORTED);
                }
            },
            IdEvent::Failed(errno) => self.error = Some(errno),
            IdEvent::Request(..) => {}
        }
        // A waiting call armed the wake-up before there was a connection.
        self.arm();
        if let Phase::Open(stream, connection) = &mut self.phase {
            look(stream, connection.as_deref());
        }
    }

    fn arm(&self) {
        if let Phase::Open(stream, connection) = &self.phase {
            stream.cq.req_notify(&self.waker);
            if let Some(connection) = connection {
                connection.notify(&self.waker);
            }
        }
    }

    /// Sets an option whose value is one number, or begins with one.
    pub(super) fn set(&mut self, level: c_int, name: c_int, value: c_int) -> Result<(), Errno> {
        let is_new = matches!(self.phase, Phase::New | Phase::Listening { .. });
        self.options.set(is_new, level, name, value)?;
        if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
            && let Some(id) = &self.id
        {
            id.set_only_ipv6(value != 0);
        }
        Ok(())
    }

    /// Returns the first of two numbers for `SO_LINGER`.
    pub(super) fn tell(&mut self, level: c_int, name: c_int) -> Result<c_int, Errno> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => Ok(self.error.take().map_or(0, |errno| errno.0)),
            _ => self.options.get(level, name),
        }
    }

    /// `None` while the attempt is in progress.
    pub(super) fn stream(&mut self) -> Option<Result<&mut Stream, Errno>> {
        match &mut self.phase {
            Phase::New | Phase::Listening { .. } => Some(Err(Errno(libc::ENOTCONN))),
            Phase::Opening(_) => None,
            Phase::Open(stream, _) => Some(Ok(stream)),
            Phase::Failed => Some(Err(self.error.take().unwrap_or(Errno(libc::ENOTCONN)))),
        }
    }
}

fn look(stream: &mut Stream, connection: Option<&Connection>) {
    let (mut is_closed, mut has_failed) = (connection.is_none(), false);
    while let Some(connection) = connection {
        match connection.next_event(Duration::ZERO) {
            Ok(None) => break,
            Ok(Some(ConnectionEvent::PeerEnding)) => {}
            Ok(Some(ConnectionEvent::PeerClosed)) => is_closed = true,
            Ok(Some(ConnectionEvent::Closed(_))) => {
                is_closed = true;
                break;
            }
            Ok(Some(_)) => has_failed = true,
            Err(_) => {
                has_failed = true;
                break;
            }
        }
    }
    // Completions of data before the end are in the queue by now.
    if !stream.look()
        && let Some(connection) = connection
    {
        connection.abort();
    }
    if has_failed {
        stream.fail(Errno(libc::ECONNRESET));
    } else if is_closed {
        stream.disconnected();
    }
    stream.give();
}

impl Socket {
    pub(super) fn new() -> Result<Self, Errno> {
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(Arc::clone(&signal));
        let id = SocketId::new(&waker)?;
        Self::of(id, signal, waker, Options::default(), Phase::New)
    }

    fn of(
        id: SocketId,
        signal: Arc<Signal>,
        waker: Waker,
        options: Options,
        phase: Phase,
    ) -> Result<Self, Errno> {
        let process = process()?;
        let fd = id.fd()?;
        let (error, iomaps) = (None, IoMaps::default());
        let state = Mutex::new(State { id: Some(id), waker, phase, options, error, iomaps });
        let (sending, receiving) = (Mutex::default(), Mutex::default());
        let generation = fork::generation();
        let found_nothing = AtomicUsize::new(0);
        Ok(Self { fd, generation, process, signal, state, found_nothing, sending, receiving })
    }

    /// A forked child lacks the threads that the socket needs.
    pub(super) fn is_own(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Processes new events first.
    pub(super) fn look(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        state.look();
        state
    }

    /// Runs the endpoint, so that this thread sends its own data.
    pub(super) fn turn(&self) {
        let _down_sends_nothing = self.process.network.endpoint.poll_turn(false);
    }

    /// Runs the endpoint while the call waits. Stays in it only after several attempts: an
    /// application that calls once or twice may then poll its memory, without calls.
    pub(super) fn spin(&self) {
        let stays = self.found_nothing.fetch_add(1, Ordering::Relaxed) > 2;
        let _down_brings_nothing = self.process.network.endpoint.poll_turn(stays);
    }

    pub(super) fn watch(&self, sleeper: &mut Sleeper) {
        sleeper.watch(&self.signal);
        self.process.network.endpoint.hand_over();
    }

    pub(super) fn arm(&self) {
        self.state().arm();
    }

    /// Repeats `attempt` until it returns a result, and sleeps in between. EAGAIN for a
    /// non-blocking call, or after `until`.
    pub(super) fn wait<R>(
        &self,
        nonblocking: bool,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut State) -> Option<Result<R, Errno>>,
    ) -> Result<R, Errno> {
        let (began, mut has_spun, mut sleeper) = (now(), false, None::<Sleeper>);
        loop {
            let mut state = self.state();
            if state.id.is_none() {
                return Err(Errno(libc::EBADF));
            }
            if sleeper.is_some() {
                state.arm();
            }
            state.look();
            let answer = attempt(&mut state);
            drop(state);
            if let Some(answer) = answer {
                self.found_nothing.store(0, Ordering::Relaxed);
                return answer;
            }
            if nonblocking {
                if has_spun {
                    return Err(Errno(libc::EAGAIN));
                }
                // Applications that call in a loop depend on no other thread.
                self.spin();
                has_spun = true;
                continue;
            }
            match &mut sleeper {
                None if now().saturating_duration_since(began) < SPIN => self.spin(),
                None => {
                    let mut made = Sleeper::new()?;
                    self.watch(&mut made);
                    sleeper = Some(made);
                }
                Some(sleeper) => {
                    if !sleeper.sleep(until)? {
                        return Err(Errno(libc::EAGAIN));
                    }
                }
            }
        }
    }

    pub(super) fn is_nonblocking(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.state().options.flags & libc::O_NONBLOCK != 0
    }

    pub(super) fn bind(&self, local: SocketAddr) -> Result<(), Errno> {
        self.state().id.as_ref().ok_or(Errno(libc::EBADF))?.bind(local)
    }

    pub(super) fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        let mut state = self.state();
        match &state.phase {
            Phase::New => {}
            Phase::Listening { .. } => return Ok(()),
            _ => return Err(Errno::INVALID),
        }
        state.id.as_ref().ok_or(Errno(libc::EBADF))?.listen(backlog)?;
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0);
        let (backlog, requests) = (backlog.unwrap_or(BACKLOG), VecDeque::new());
        state.phase = Phase::Listening { backlog, requests };
        Ok(())
    }

    /// The connection may not be established on return: calls of the new socket wait for it.
    pub(super) fn accept(&self) -> Result<Self, Errno> {
        let nonblocking = self.is_nonblocking(0);
        let (request, options) = self.wait(nonblocking, None, |state| match &mut state.phase {
            Phase::Listening { requests, .. } => {
                requests.pop_front().map(|request| Ok((request, state.options)))
            }
            _ => Some(Err(Errno::INVALID)),
        })?;
        let Request { id, peer } = request;
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(Arc::clone(&signal));
        id.watch(&waker)?;
        let mut stream = Stream::new(&self.process.rnic, options.sizes())?;
        stream.meet(&peer);
        id.accept(stream.qp.clone(), &stream.conn_data().to_octets())?;
        Self::of(id, signal, waker, options.inherited(), Phase::Opening(Box::new(stream)))
    }

    pub(super) fn connect(&self, remote: SocketAddr) -> Result<(), Errno> {
        let nonblocking = self.is_nonblocking(0);
        let mut state = self.look();
        match &state.phase {
            Phase::New => {
                let stream = Stream::new(&self.process.rnic, state.options.sizes())?;
                let octets = stream.conn_data().to_octets();
                let id = state.id.as_ref().ok_or(Errno(libc::EBADF))?;
                id.connect(remote, stream.qp.clone(), &octets)?;
                state.phase = Phase::Opening(Box::new(stream));
            }
            Phase::Opening(_) => {}
            // Returned once, as connect(2) does after a non-blocking call.
            Phase::Open(..) if !state.options.is_told_open => {
                state.options.is_told_open = true;
                return Ok(());
            }
            Phase::Open(..) => return Err(Errno(libc::EISCONN)),
            Phase::Listening { .. } => return Err(Errno::INVALID),
            Phase::Failed => return Err(state.error.take().unwrap_or(Errno(libc::ECONNABORTED))),
        }
        drop(state);
        let opened = self.wait(nonblocking, None, |state| {
            let opened = state.stream()?.map(|_| ());
            state.options.is_told_open |= opened.is_ok();
            Some(opened)
        });
        opened.map_err(|errno| match errno.0 {
            libc::EAGAIN => Errno(libc::EINPROGRESS),
            _ => errno,
        })
    }

    /// Waits until data sent before is delivered, at most [`LINGER`].
    pub(super) fn shutdown(&self, how: c_int) -> Result<(), Errno> {
        let [reads, writes] = match how {
            libc::SHUT_RD => [true, false],
            libc::SHUT_WR => [false, true],
            libc::SHUT_RDWR => [true, true],
            _ => return Err(Errno::INVALID),
        };
        let until = after(LINGER);
        let mut message = None;
        let told = self.wait(false, until, |state| {
            let stream = match state.stream()? {
                Ok(stream) => stream,
                Err(errno) => return Some(Err(errno)),
            };
            if message.is_none() {
                let was_writable = stream.writable;
                stream.readable &= !reads;
                stream.writable &= !writes;
                message = Some(match (stream.readable, stream.writable) {
                    (false, false) => Some(Message::Disconnect),
                    (true, false) if was_writable => Some(Message::Shutdown),
                    _ => None,
                });
            }
            match message.flatten() {
                Some(message) if stream.end.is_none() => stream.try_end(message).then_some(Ok(())),
                _ => Some(Ok(())),
            }
        });
        // Other waiting threads must see the change.
        self.signal.ring();
        told?;
        let _gone = self.wait(false, until, |state| match state.stream() {
            Some(Ok(stream)) if !stream.is_sent() => None,
            _ => Some(Ok(())),
        });
        if message.flatten() == Some(Message::Disconnect)
            && let Phase::Open(stream, Some(connection)) = &mut self.state().phase
        {
            stream.disconnected();
            connection.disconnect();
        }
        Ok(())
    }

    /// The descriptor is free when this returns.
    pub(super) fn close(&self) {
        let is_open = match &self.look().phase {
            Phase::Open(stream, _) => stream.end.is_none(),
            // An accepted peer may have sent something already, and waits for the end.
            Phase::Opening(stream) => stream.is_met(),
            _ => false,
        };
        if is_open {
            let _over = self.shutdown(libc::SHUT_RDWR);
        }
        let mut state = self.state();
        let id = state.id.take();
        let phase = std::mem::replace(&mut state.phase, Phase::Failed);
        drop(std::mem::take(&mut state.iomaps));
        drop(state);
        self.signal.ring();
        if let Phase::Open(stream, Some(connection)) = phase {
            super::lingering::close(stream, connection);
        }
        drop(id);
    }

    pub(super) fn addresses(&self) -> Result<[Option<SocketAddr>; 2], Errno> {
        let state = self.look();
        Ok(state.id.as_ref().ok_or(Errno(libc::EBADF))?.addresses())
    }
}

pub(super) const fn failure(end: Option<End>) -> Option<Errno> {
    match end {
        Some(End::Failed(errno)) => Some(errno),
        _ => None,
    }
}
