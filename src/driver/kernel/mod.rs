//! An engine over the kernel's TCP: layered streams (RFC 5044 §5) on ordinary sockets, which need
//! no privilege and speak to anything.

mod events;
mod socket;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use crossbeam::channel::Sender;
use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};

use crate::driver::command::{Command, ConnectionKey};
use crate::driver::connection::{ConnectRequest, Notice};
use crate::driver::endpoint::{ConnectOptions, EndpointError};
use crate::driver::engine::Engine;
use crate::driver::kernel::events::{Events, Token};
use crate::driver::kernel::socket::KernelConnection;
use crate::driver::link::Link;
use crate::driver::registry::Registry;
use crate::driver::wakeup::Wakeup;
use crate::limits::CONNECTIONS_MAX;
use crate::port::{ListenParams, PortDrops, PortError};
use crate::stream::PhaseError;
use crate::time::{Duration, Instant};
use crate::verbs::{Bell, Doorbell, Qp, Rnic};

#[derive(Debug)]
struct KernelListener {
    socket: Socket,
    local: SocketAddr,
    params: ListenParams,
    /// Connections in setup.
    starting: usize,
}

/// The sockets of one endpoint and the streams on them.
#[derive(Debug)]
pub(crate) struct KernelEngine {
    rnic: Rnic,
    /// How long a peer may leave data unacknowledged.
    user_timeout: Duration,
    doorbell: Arc<Doorbell>,
    connections: Slab<KernelConnection>,
    listeners: Slab<KernelListener>,
    registry: Registry<usize>,
    events: Events,
    /// Connections to be looked at.
    ready: Vec<usize>,
    /// No connection's timer runs out before this.
    timeout: Option<Instant>,
    buffer: Box<[u8]>,
}

impl KernelEngine {
    pub(crate) fn new(rnic: &Rnic, link: Link, user_timeout: Duration) -> io::Result<Self> {
        Ok(Self {
            rnic: rnic.clone(),
            user_timeout,
            doorbell: Doorbell::new(),
            connections: Slab::new(),
            listeners: Slab::new(),
            registry: Registry::new(link),
            events: Events::new()?,
            ready: Vec::new(),
            timeout: None,
            buffer: vec![0; RECEIVE_LEN].into_boxed_slice(),
        })
    }

    fn connect(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        remote: SocketAddr,
        qp: &Qp,
        options: &ConnectOptions,
        notices: &Sender<Notice>,
    ) -> Result<(), EndpointError> {
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(PortError::Exhausted.into());
        }
        let mut connection =
            KernelConnection::connect(&self.rnic, remote, self.user_timeout).map_err(io_error)?;
        connection.layered.initiate(now, qp, &options.startup, &options.offer())?;
        let slot = self.connections.vacant_key();
        self.events.add(&connection.socket, Token::Connection(slot)).map_err(io_error)?;
        self.connections.insert(connection);
        self.attach(slot, qp);
        self.registry.opened(slot, key, remote, notices.clone());
        self.ready.push(slot);
        Ok(())
    }

    fn listen(
        &mut self,
        local: SocketAddr,
        params: ListenParams,
        requests: Sender<ConnectRequest>,
    ) -> io::Result<SocketAddr> {
        let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&local.into())?;
        socket.listen(i32::try_from(params.backlog).unwrap_or(i32::MAX))?;
        let bound = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        let slot = self.listeners.vacant_key();
        self.events.add(&socket, Token::Listener(slot))?;
        self.listeners.insert(KernelListener { socket, local: bound, params, starting: 0 });
        self.registry.listen(bound, requests);
        Ok(bound)
    }

    fn unlisten(&mut self, local: SocketAddr) {
        // Closing a socket takes it out of the event set.
        self.listeners.retain(|_, listener| listener.local != local);
        for (_, connection) in &mut self.connections {
            if connection.listener.is_some_and(|slot| !self.listeners.contains(slot)) {
                connection.listener = None;
            }
        }
        self.registry.unlisten(local);
    }

    /// Takes connections that peers have opened.
    fn accept_incoming(&mut self, now: Instant, slot: usize) -> usize {
        let mut accepted = 0;
        while accepted < ACCEPT_BURST {
            let Some(listener) = self.listeners.get_mut(slot) else { break };
            // What cannot be taken for lack of descriptors waits in the kernel's backlog.
            let Ok((socket, remote)) = listener.socket.accept() else { break };
            accepted += 1;
            let Some(remote) = remote.as_socket() else { continue };
            let full = listener.starting >= listener.params.backlog
                || self.connections.len() >= CONNECTIONS_MAX;
            if full {
                continue;
            }
            let Ok(mut connection) =
                KernelConnection::accepted(&self.rnic, socket, self.user_timeout)
            else {
                continue;
            };
            let token = Token::Connection(self.connections.vacant_key());
            if connection.layered.respond(now, &listener.params.startup).is_err()
                || self.events.add(&connection.socket, token).is_err()
            {
                continue;
            }
            listener.starting += 1;
            connection.listener = Some(slot);
            let local = listener.local;
            let id = self.connections.insert(connection);
            self.registry.incoming(id, local, remote);
            self.ready.push(id);
        }
        accepted
    }

    fn attach(&mut self, slot: usize, qp: &Qp) {
        let connection = u32::try_from(slot).expect("bounded by CONNECTIONS_MAX");
        let bell = Bell::new(Arc::clone(&self.doorbell), connection);
        // A queue pair serves one connection in its life; the stream has checked that it is new.
        let _set_once = qp.shared.bell.set(bell);
        self.connections[slot].qp = Some(qp.clone());
        self.ready.push(slot);
    }

    fn collect_events(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        let mut listeners = [0; ACCEPT_BURST];
        let mut listener_count = 0;
        for (token, readiness) in self.events.poll() {
            match token {
                Token::Listener(slot) => {
                    if let Some(place) = listeners.get_mut(listener_count) {
                        *place = slot;
                        listener_count += 1;
                    }
                }
                Token::Connection(slot) => {
                    if let Some(connection) = self.connections.get_mut(slot) {
                        connection.handle_readiness(readiness);
                        self.ready.push(slot);
                    }
                }
            }
        }
        for slot in &listeners[..listener_count] {
            moved += self.accept_incoming(now, *slot);
        }
        while let Some(slot) = self.doorbell.next() {
            if let Some(connection) = self.connections.get(slot as usize) {
                connection.release_bell();
                self.ready.push(slot as usize);
            }
        }
        moved
    }

    fn expire(&mut self, now: Instant) {
        if self.timeout.is_none_or(|at| at > now) {
            return;
        }
        self.timeout = None;
        for (slot, connection) in &mut self.connections {
            match connection.poll_timeout() {
                Some(at) if at <= now => {
                    connection.handle_timeout(now);
                    self.ready.push(slot);
                }
                later => self.timeout = earlier(self.timeout, later),
            }
        }
    }

    /// Moves one connection's octets and tells what happened.
    fn service(&mut self, now: Instant, slot: usize) -> usize {
        let Some(connection) = self.connections.get_mut(slot) else { return 0 };
        let moved = connection.receive(now, &mut self.buffer) + connection.send(now);
        if connection.layered.wants_retry() {
            self.reconnect(now, slot);
            return moved + 1;
        }
        if let Some(error) = connection.take_error() {
            self.registry.refused(slot, EndpointError::Io(error));
        }
        let mut wanted = true;
        while let Some(event) = connection.layered.poll_event() {
            wanted &= self.registry.event(slot, event);
        }
        if !wanted {
            connection.abort();
        }
        self.timeout = earlier(self.timeout, connection.poll_timeout());
        if connection.leaves_backlog()
            && let Some(listener) = connection.listener.take()
            && let Some(listener) = self.listeners.get_mut(listener)
        {
            listener.starting -= 1;
        }
        let interest = connection.interest();
        if connection.is_over() {
            self.remove(slot);
        } else if self.events.update(&connection.socket, slot, interest).is_err() {
            connection.abort();
            self.remove(slot);
        } else if connection.has_more() {
            self.ready.push(slot);
        }
        moved
    }

    /// Starts over on another socket in the place of the one on which MPA could not be started.
    fn reconnect(&mut self, now: Instant, slot: usize) {
        self.ready.push(slot);
        let connection = &mut self.connections[slot];
        let old = connection.remote().and_then(|remote| {
            let socket = KernelConnection::connect(&self.rnic, remote, self.user_timeout)?;
            self.events.add(&socket.socket, Token::Connection(slot))?;
            Ok(std::mem::replace(connection, socket))
        });
        match old {
            Ok(mut old) => {
                let connection = &mut self.connections[slot];
                connection.qp = old.qp.take();
                if let Some((retry, qp)) = old.layered.take_retry() {
                    // What could be asked for once can be asked for again, with less in it.
                    let started =
                        connection.layered.initiate(now, &qp, &retry.startup, &retry.offer());
                    if let Err(error) = started {
                        self.registry.refused(slot, error.into());
                    }
                }
                // The peer has ended the old connection, or need not be waited for.
                old.abort();
            }
            Err(error) => {
                self.registry.refused(slot, EndpointError::Io(error.kind()));
                connection.layered.give_up_retry();
            }
        }
    }

    fn remove(&mut self, slot: usize) {
        let mut connection = self.connections.remove(slot);
        connection.end();
        while let Some(event) = connection.layered.poll_event() {
            self.registry.event(slot, event);
        }
        if let Some(listener) =
            connection.listener.and_then(|listener| self.listeners.get_mut(listener))
        {
            listener.starting -= 1;
        }
        self.registry.closed(slot, Box::new(connection.counters()));
    }

    fn with_connection(
        &mut self,
        key: ConnectionKey,
        act: impl FnOnce(&mut KernelConnection) -> Result<(), PhaseError>,
    ) {
        if let Some(slot) = self.registry.id(key) {
            if let Err(error) = act(&mut self.connections[slot]) {
                self.registry.refused(slot, error.into());
            }
            self.ready.push(slot);
        }
    }
}

impl Engine for KernelEngine {
    fn handle_command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Connect { key, remote, qp, options, notices } => {
                if let Err(error) = self.connect(now, key, remote, &qp, &options, &notices) {
                    // The handle may be gone already.
                    drop(notices.send(Notice::Refused(error)));
                    drop(notices.send(Notice::Closed(Box::default())));
                }
            }
            Command::Listen { local, params, requests, reply } => {
                drop(reply.send(self.listen(local, params, requests).map_err(io_error)));
            }
            Command::Unlisten { local } => self.unlisten(local),
            Command::Accept { key, qp, offer } => {
                let mut accepted = false;
                self.with_connection(key, |connection| {
                    connection.layered.accept(&qp, &offer.offer())?;
                    accepted = true;
                    Ok(())
                });
                if let (true, Some(slot)) = (accepted, self.registry.id(key)) {
                    self.attach(slot, &qp);
                }
            }
            Command::Reject { key, offer } => self.with_connection(key, |connection| {
                let rejected = connection.layered.reject(&offer.offer());
                connection.layered.close(now);
                rejected
            }),
            Command::Disconnect { key } => self.with_connection(key, |connection| {
                connection.layered.close(now);
                Ok(())
            }),
            Command::Abort { key } => self.with_connection(key, |connection| {
                connection.abort();
                Ok(())
            }),
            Command::Counters { key, reply } => {
                if let Some(slot) = self.registry.id(key) {
                    drop(reply.send(Box::new(self.connections[slot].counters())));
                }
            }
            // All addresses of the machine are its own.
            Command::AwaitAddress { reply, .. } => drop(reply.send(Ipv4Addr::UNSPECIFIED.into())),
            Command::Drops { reply } => drop(reply.send(PortDrops::default())),
            Command::Shutdown => {}
        }
    }

    fn turn(&mut self, now: Instant) -> usize {
        let mut moved = self.collect_events(now);
        self.expire(now);
        let mut ready = std::mem::take(&mut self.ready);
        ready.sort_unstable();
        ready.dedup();
        for slot in ready.drain(..) {
            moved += self.service(now, slot);
        }
        // What became ready meanwhile is behind; the allocation is kept.
        if self.ready.is_empty() {
            self.ready = ready;
        }
        moved + self.ready.len()
    }

    fn next_wakeup(&mut self) -> Option<Instant> {
        self.timeout
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.doorbell.arm(waker);
        !self.doorbell.has_rung() && self.ready.is_empty()
    }

    fn disarm(&mut self) {
        self.doorbell.disarm();
    }

    fn wait(&mut self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup) {
        self.events.wait(now, deadline, wakeup);
    }

    fn shutdown(&mut self, _now: Instant) {
        for slot in self.registry.all() {
            self.connections[slot].abort();
            self.remove(slot);
        }
    }
}

fn io_error(error: io::Error) -> EndpointError {
    EndpointError::Io(error.kind())
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Octets read from a socket at once: half of a core's second-level cache, so that they are still
/// there when they are placed.
const RECEIVE_LEN: usize = 256 << 10;
/// Connections taken from one listener in one turn.
const ACCEPT_BURST: usize = 64;
