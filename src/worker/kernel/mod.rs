//! An engine over the kernel's TCP: layered streams (RFC 5044 §5) on unprivileged sockets.

mod accept;
mod acks;
mod answers;
mod events;
mod listeners;
mod probes;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;
use tracing::debug;

use crate::config::{ConnectOptions, EndpointConfig};
use crate::error::Error;
use crate::mail::channel::WorkerEnd;
use crate::mail::command::outbox::Outbox;
use crate::mail::command::{Command, ConnectionKey};
use crate::mail::events::EventFeed;
use crate::mail::notice::Notice;
use crate::mail::wakeup::Wakeup;
use crate::worker::engine::{Engine, Owed};
use crate::worker::kernel::events::{Events, Token};
use crate::worker::kernel::listeners::{ACCEPT_BURST, KernelListener, listen_error};
use crate::worker::kernel::socket::{BacklogSlot, KernelConnection, Opened, Terms};
use crate::worker::registry::Registry;
use urnic_engine::limits::CONNECTIONS_MAX;
use urnic_engine::port::timers::TimerQueue;
use urnic_engine::port::{PortDrops, PortError};
use urnic_engine::stream::{PhaseError, Scratch};
use urnic_engine::time::Instant;
use urnic_engine::verbs::{Doorbell, Qp, Rnic};

/// The kernel's TCP copies all bytes; walking the list of fragments costs little in comparison.
const GATHER_LEN_MIN: usize = 0;

#[derive(Debug)]
pub(crate) struct KernelEngine {
    rnic: Rnic,
    terms: Terms,
    connections_max: usize,
    /// Answers to RDMA Reads of no bytes may wait for a message of the application. Set if the
    /// application polls, and a thread takes over when it does not.
    answers_wait: bool,
    doorbell: Arc<Doorbell>,
    connections: Slab<KernelConnection>,
    listeners: Slab<KernelListener>,
    registry: Registry<usize>,
    events: Events,
    ready: Vec<usize>,
    timers: TimerQueue,
    /// `None` if no listener is paused.
    accept_retry: Option<Instant>,
    buffer: Box<[u8]>,
    scratch: Scratch,
    /// Dropping the feed reports the end of the engine; there are no events.
    _feed: EventFeed,
}

impl KernelEngine {
    pub(crate) fn new(
        rnic: &Rnic,
        outbox: Outbox,
        config: &EndpointConfig,
        feed: EventFeed,
    ) -> Result<Self, Error> {
        let EndpointConfig { user_timeout, life, .. } = *config;
        let terms = Terms { user_timeout, life };
        Ok(Self {
            rnic: rnic.clone(),
            terms,
            connections_max: config.connections_max.min(CONNECTIONS_MAX),
            answers_wait: config.polled && config.own_thread,
            doorbell: Doorbell::new(),
            connections: Slab::new(),
            listeners: Slab::new(),
            registry: Registry::new(outbox),
            events: Events::new().map_err(|error| Error::system("opening an epoll set", &error))?,
            ready: Vec::new(),
            timers: TimerQueue::default(),
            accept_retry: None,
            buffer: vec![0; RECEIVE_LEN].into_boxed_slice(),
            scratch: Scratch::new(config.send_path, GATHER_LEN_MIN),
            _feed: feed,
        })
    }

    fn connect(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        remote: SocketAddr,
        qp: &Qp,
        options: &ConnectOptions,
        notices: &WorkerEnd<Notice>,
    ) -> Result<(), Error> {
        if self.connections.len() >= self.connections_max {
            return Err(PortError::Exhausted.into());
        }
        let ConnectOptions { local, traffic_class, .. } = *options;
        let opened = Opened { remote, local, traffic_class };
        let mut connection =
            KernelConnection::connect(&self.rnic, opened, self.terms).map_err(io_error)?;
        connection.set_keepalive(options.keepalive).map_err(io_error)?;
        connection.layered.initiate(now, qp, &options.startup, &options.offer())?;
        let slot = self.connections.vacant_key();
        self.events.add(&connection.socket, Token::Connection(slot)).map_err(io_error)?;
        self.connections.insert(connection);
        self.attach(slot, qp);
        self.registry.opened(slot, key, remote, notices.clone());
        self.ready.push(slot);
        Ok(())
    }

    fn attach(&mut self, slot: usize, qp: &Qp) {
        qp.attach(&self.doorbell, slot32(slot));
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
                        connection.handle_readiness(now, readiness);
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
                connection.release_button();
                self.ready.push(slot as usize);
            }
        }
        if self.doorbell.take_missed() {
            for (slot, connection) in &self.connections {
                connection.release_button();
                self.ready.push(slot);
            }
        }
        moved
    }

    fn expire(&mut self, now: Instant) {
        if self.accept_retry().is_some_and(|at| at <= now) {
            self.resume_accepting();
        }
        let connections = &mut self.connections;
        while let Some(slot) = self.timers.pop_due(now, |slot| timeout_of(connections, slot)) {
            // The next service of the connection sets its next timer.
            connections[slot as usize].handle_timeout(now);
            self.ready.push(slot as usize);
        }
    }

    /// Reports the connection's events, too.
    fn service(&mut self, now: Instant, slot: usize) -> usize {
        let Some(connection) = self.connections.get_mut(slot) else { return 0 };
        let mut moved = connection.receive(now, &mut self.buffer);
        moved += connection.send(now, &mut self.scratch, self.answers_wait);
        if connection.layered.wants_retry() {
            self.reconnect(now, slot);
            return moved + 1;
        }
        connection.watch(now);
        if let Some(error) = connection.take_error() {
            self.registry.refused(slot, Error::Io(error));
        }
        if connection.take_peer_ending() {
            self.registry.peer_ending(slot);
        }
        let mut wanted = true;
        while let Some(event) = connection.layered.poll_event() {
            wanted &= self.registry.event(slot, event);
            // The thread that runs this engine may wait for the event.
            moved += 1;
        }
        if !wanted {
            connection.abort();
        }
        if let Some(deadline) = connection.poll_timeout() {
            self.timers.arm(slot32(slot), deadline);
        }
        self.update_place(slot);
        let connection = &mut self.connections[slot];
        let interest = connection.interest();
        if connection.is_over() {
            self.remove(slot);
            moved += 1;
        } else if self.events.update(&connection.socket, slot, interest).is_err() {
            connection.abort();
            self.remove(slot);
            moved += 1;
        } else if connection.has_more() {
            self.ready.push(slot);
        }
        moved
    }

    /// Replaces a socket on which MPA could not be started.
    fn reconnect(&mut self, now: Instant, slot: usize) {
        self.ready.push(slot);
        let connection = &mut self.connections[slot];
        let old = connection.opened_again().and_then(|opened| {
            let mut socket = KernelConnection::connect(&self.rnic, opened, self.terms)?;
            socket.set_keepalive(connection.keepalive())?;
            self.events.add(&socket.socket, Token::Connection(slot))?;
            Ok(std::mem::replace(connection, socket))
        });
        match old {
            Ok(mut old) => {
                let connection = &mut self.connections[slot];
                connection.qp = old.qp.take();
                if let Some((retry, qp)) = old.layered.take_retry() {
                    // A startup that was possible once is possible again with fewer features.
                    let started =
                        connection.layered.initiate(now, &qp, &retry.startup, &retry.offer());
                    if let Err(error) = started {
                        self.registry.refused(slot, error.into());
                    }
                }
                // The peer has ended the old connection, or need not be awaited.
                old.abort();
            }
            Err(error) => {
                self.registry.refused(slot, Error::Io(error.kind()));
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
        if let Some(BacklogSlot { listener, place, .. }) = connection.backlog_slot
            && let Some(listener) = self.listeners.get_mut(listener)
        {
            listener.waiting.release(place);
        }
        self.timers.forget(slot32(slot));
        self.registry.closed(slot, Box::new(connection.counters()));
        // Frees the descriptor: the next turn may accept a connection that waits for one.
        drop(connection);
        self.resume_accepting();
    }

    fn release_qp(&mut self, now: Instant, qp: &Qp) {
        for (slot, connection) in &mut self.connections {
            if connection.qp.as_ref().is_some_and(|own| own.is_same(qp)) {
                connection.layered.release_qp(now);
                self.ready.push(slot);
            }
        }
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
                    debug!(target: "urnic", %remote, %error, "cannot connect");
                    // The handle may have been dropped.
                    notices.tell(Notice::Refused(Box::new(error)));
                    notices.tell(Notice::Closed(Box::default()));
                }
            }
            Command::Listen { local, params, requests, reply } => {
                let listening = self.listen(local, params, requests);
                drop(reply.send(listening.map_err(|error| listen_error(&error, local))));
            }
            Command::Unlisten { local, reply } => {
                self.unlisten(local);
                drop(reply);
            }
            Command::Release { qp, reply } => {
                self.release_qp(now, &qp);
                drop(reply);
            }
            Command::Accept { key, qp, offer } => {
                let mut accepted = false;
                self.with_connection(key, |connection| {
                    // The time of the peer starts now, however long the application took.
                    connection.layered.watch(now);
                    connection.layered.accept(&qp, &offer.offer())?;
                    accepted = true;
                    Ok(())
                });
                if let (true, Some(slot)) = (accepted, self.registry.id(key)) {
                    self.attach(slot, &qp);
                }
            }
            Command::Reject { key, offer } => {
                self.registry.rejected();
                self.with_connection(key, |connection| {
                    let rejected = connection.layered.reject(&offer.offer());
                    connection.layered.close(now);
                    rejected
                });
            }
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
            Command::Figures { reply } => {
                let figures = self.registry.figures(|slot| self.connections[slot].counters());
                drop(reply.send(figures));
            }
            // All addresses of the machine are its own.
            Command::AwaitAddress { reply, .. } => {
                let _gone = reply.send(Some(Ipv4Addr::UNSPECIFIED.into()));
            }
            Command::Drops { reply } => drop(reply.send(PortDrops::default())),
            // Handled by the worker.
            Command::Finish { .. } | Command::Shutdown => {}
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
        // Connections that became ready meanwhile are in the other list; keeps the allocation.
        if self.ready.is_empty() {
            self.ready = ready;
        }
        moved + self.ready.len()
    }

    fn next_wakeup(&mut self) -> Option<Instant> {
        let connections = &self.connections;
        let timeout = self.timers.next(|slot| timeout_of(connections, slot));
        earlier(timeout, self.accept_retry())
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        self.doorbell.arm(waker);
        !self.doorbell.has_rung() && self.ready.is_empty()
    }

    fn disarm(&mut self, waker: &Waker) {
        self.doorbell.disarm(waker);
    }

    fn wait(&mut self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup) {
        self.events.wait(now, deadline, wakeup);
    }

    fn shutdown(&mut self, now: Instant) {
        for slot in self.registry.all() {
            let connection = &mut self.connections[slot];
            if self.answers_wait {
                connection.send(now, &mut self.scratch, false);
            }
            connection.abort();
            self.remove(slot);
        }
    }

    fn close_all(&mut self, now: Instant) {
        for (slot, connection) in &mut self.connections {
            connection.layered.close(now);
            self.ready.push(slot);
        }
    }

    fn owed(&self) -> Owed {
        let each = self.connections.iter().map(|(_, connection)| connection.owed());
        each.max().unwrap_or(Owed::Nothing)
    }

    fn abort_owing(&mut self) {
        for (slot, connection) in &mut self.connections {
            if connection.has_unsent() {
                connection.abort();
                self.ready.push(slot);
            }
        }
    }
}

impl Drop for KernelEngine {
    /// Like the port's: no connection outlives its engine.
    fn drop(&mut self) {
        for (_, connection) in &mut self.connections {
            let connection = AssertUnwindSafe(connection);
            // A second panic adds nothing to the first.
            let _panicked = catch_unwind(|| { connection }.abort());
        }
    }
}

fn slot32(slot: usize) -> u32 {
    u32::try_from(slot).expect("bounded by CONNECTIONS_MAX")
}

fn timeout_of(connections: &Slab<KernelConnection>, slot: u32) -> Option<Instant> {
    connections.get(slot as usize).and_then(KernelConnection::poll_timeout)
}

fn io_error(error: io::Error) -> Error {
    Error::Io(error.kind())
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Half of a core's second-level cache: the bytes are still there when they are placed.
const RECEIVE_LEN: usize = 256 << 10;
