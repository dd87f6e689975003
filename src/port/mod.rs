//! One interface: frames in and out, connections, and the host stack beside them.
//!
//! ```text
//! frame ─ demux ─┬─ TCP of a connection or listener here ─→ stream::optimized
//!                └─ everything else ─────────────────────→ host (smoltcp: ARP, NDP, ping, RST …)
//! ```
//!
//! A [`Port`] is sans-IO like everything under it: the caller brings frames and the time to
//! `handle_*`, then drains [`poll_transmit`](Port::poll_transmit), [`poll_event`](Port::poll_event)
//! and [`poll_timeout`](Port::poll_timeout) until they are empty.

mod config;
mod connection;
mod control;
mod demux;
mod emit;
mod host;
mod neighbour;
mod route;
mod timers;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use slab::Slab;
use urnic_netdev::{Capabilities, RxChecksum, RxFrame, TransmitError, TxFrame};

pub use config::{ConnectParams, ListenParams, LowerLayer, PortConfig};
pub use connection::{ConnectionCounters, ConnectionId};

use crate::limits::{CONNECTIONS_MAX, FRAGMENTS_MAX, PIECE_BLOCKS_MAX};
use crate::mem::TableLease;
use crate::mpa::pieces::PieceStore;
use crate::port::connection::{Connection, Tuple, TupleHasher};
use crate::port::demux::{Inbound, Parsed};
use crate::port::emit::{Emitter, Turn};
use crate::port::host::Host;
use crate::port::neighbour::Neighbours;
use crate::port::timers::Timers;
use crate::stream::optimized::{Optimized, TxLimits};
use crate::stream::{PhaseError, Scratch, Stream, StreamEvent};
use crate::tcp;
use crate::time::Instant;
use crate::verbs::{Bell, Doorbell, Qp, Rnic};

/// Something that happened at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// A peer has opened a connection to a listener; MPA has not started yet.
    Incoming {
        /// The new connection.
        connection: ConnectionId,
        /// The port it came to.
        local: SocketAddr,
        /// Where it came from.
        remote: SocketAddr,
    },
    /// Something happened to a connection's stream.
    Stream {
        /// The connection.
        connection: ConnectionId,
        /// What happened.
        event: StreamEvent,
    },
    /// A connection is over; its identifier means nothing any more.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// What it counted.
        counters: Box<ConnectionCounters>,
    },
}

/// Why a call to a port was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// No such connection, or it is over.
    #[error("no such connection")]
    NoConnection,
    /// The port has no address of the peer's family.
    #[error("the port has no address of the same family as {0}")]
    NoAddress(IpAddr),
    /// Somebody listens on that TCP port already.
    #[error("TCP port {0} is taken")]
    PortTaken(u16),
    /// No free TCP port or connection slot.
    #[error("no connection slot is free")]
    Exhausted,
    /// The call does not fit what the connection is doing.
    #[error(transparent)]
    Phase(#[from] PhaseError),
}

#[derive(Debug)]
struct Listener {
    params: ListenParams,
    backlog: tcp::Backlog,
}

/// One interface with its connections.
#[derive(Debug)]
pub struct Port {
    rnic: Rnic,
    config: PortConfig,
    capabilities: Capabilities,
    connections: Slab<Connection>,
    generation: u32,
    by_tuple: HashMap<Tuple, u32, BuildHasherDefault<TupleHasher>>,
    last_hit: Option<(Tuple, u32)>,
    listeners: HashMap<u16, Listener>,
    neighbours: Neighbours,
    host: Host,
    doorbell: Arc<Doorbell>,
    timers: Timers,
    /// Connections that may have something to send.
    ready: VecDeque<u32>,
    /// Connections that did something since they were last looked at.
    touched: Vec<u32>,
    /// Connections to be opened once more, with less asked of the peer.
    retries: Vec<u32>,
    events: VecDeque<PortEvent>,
    pieces: PieceStore,
    scratch: Scratch,
    isn: tcp::IsnGenerator,
    ephemeral: u16,
    dropped: PortDrops,
}

/// Frames a port dropped before any connection saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortDrops {
    /// Not a well-formed frame of a known kind.
    pub malformed: u64,
    /// IPv4 header checksum wrong.
    pub ip_checksum: u64,
    /// TCP checksum wrong.
    pub tcp_checksum: u64,
    /// IP fragments.
    pub fragments: u64,
}

/// First TCP port used for connections opened here (RFC 6335 §6: dynamic ports).
const EPHEMERAL_FIRST: u16 = 49152;
/// Frames one connection may send before the next has its turn.
const TURN_FRAMES: usize = 32;
/// Octets that one connection may send before the next has its turn: two large super-frames.
const TURN_OCTETS: usize = 128 << 10;
/// Octets after which [`Port::poll_transmit`] returns, so that what was sent is still in the cache
/// when the device, or the other end, looks at it.
pub const BURST_OCTETS: usize = 256 << 10;

impl Port {
    /// A port of `rnic` for a device with these capabilities.
    #[must_use]
    pub fn new(rnic: &Rnic, config: PortConfig, capabilities: Capabilities) -> Self {
        let seed = rnic.shared.seed;
        Self {
            rnic: rnic.clone(),
            host: Host::new(&config, &capabilities, seed),
            neighbours: Neighbours::new(),
            capabilities,
            connections: Slab::new(),
            generation: 0,
            by_tuple: HashMap::default(),
            last_hit: None,
            listeners: HashMap::new(),
            doorbell: Doorbell::new(),
            timers: Timers::default(),
            ready: VecDeque::with_capacity(64),
            touched: Vec::with_capacity(64),
            retries: Vec::new(),
            events: VecDeque::with_capacity(16),
            pieces: PieceStore::new(PIECE_BLOCKS_MAX),
            scratch: Scratch::default(),
            isn: tcp::IsnGenerator::new((seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15)),
            ephemeral: EPHEMERAL_FIRST,
            dropped: PortDrops::default(),
            config,
        }
    }

    /// Frames dropped before any connection saw them.
    #[must_use]
    pub const fn drops(&self) -> PortDrops {
        self.dropped
    }

    /// Most octets that were held for unfinished FPDUs at one time, over all connections.
    #[must_use]
    pub const fn bytes_held_peak(&self) -> u64 {
        self.pieces.octets_held_peak()
    }

    /// Octets held for unfinished FPDUs now, over all connections.
    #[must_use]
    pub const fn bytes_held(&self) -> u64 {
        self.pieces.octets_held()
    }

    /// Connections that exist now, in whatever state.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    // ---- frames in ----

    /// Takes a received frame. Several at a time cost less by [`handle_burst`](Self::handle_burst).
    pub fn handle_frame(&mut self, now: Instant, frame: &RxFrame<'_>) {
        self.handle_burst(now, |sink| sink(frame));
    }

    /// Takes the received frames that `receive` hands to its argument; returns what `receive`
    /// returns.
    ///
    /// Registered memory cannot be revoked meanwhile, so `receive` must not wait for anything that
    /// revokes it.
    pub fn handle_burst<R>(
        &mut self,
        now: Instant,
        receive: impl FnOnce(&mut dyn FnMut(&RxFrame<'_>)) -> R,
    ) -> R {
        let rnic = Arc::clone(&self.rnic.shared);
        let mut lease = TableLease::new(&rnic.table);
        receive(&mut |frame| self.take_frame(now, frame, &mut lease))
    }

    fn take_frame(&mut self, now: Instant, frame: &RxFrame<'_>, lease: &mut TableLease<'_>) {
        let verify = frame.checksum == RxChecksum::Unverified;
        match demux::parse(self.capabilities.medium, frame.bytes, verify) {
            Ok(Parsed::Tcp(inbound)) => self.handle_tcp(now, frame, &inbound, lease),
            Ok(Parsed::Other) => {
                self.neighbours.learn_from(frame.bytes);
                self.wake_resolved();
                self.host.handle_frame(frame.bytes);
            }
            Err(reason) => reason.count(&mut self.dropped),
        }
    }

    fn handle_tcp(
        &mut self,
        now: Instant,
        frame: &RxFrame<'_>,
        inbound: &Inbound<'_>,
        lease: &mut TableLease<'_>,
    ) {
        let Ok((header, payload_at)) = tcp::Header::parse(inbound.segment) else {
            self.dropped.malformed += 1;
            return;
        };
        let (source, destination) = (inbound.source, inbound.destination);
        let tuple = Tuple::new(destination, header.dst_port, source, header.src_port);
        let payload = &inbound.segment[payload_at..];
        let slot = match self.find(&tuple) {
            Some(slot) if !self.gives_way(slot, &header) => slot,
            _ => match self.handle_syn(now, tuple, &header, inbound) {
                Some(slot) => return self.after_input(slot),
                None => return self.host.handle_frame(frame.bytes),
            },
        };
        let segments = frame
            .segment_size
            .map_or(1, |size| payload.len().div_ceil(usize::from(size.get())).max(1));
        let connection = &mut self.connections[slot as usize];
        let pieces = &mut self.pieces;
        connection.optimized.handle_segment(now, &header, payload, segments, pieces, lease);
        self.after_input(slot);
    }

    fn find(&mut self, tuple: &Tuple) -> Option<u32> {
        if let Some((last, slot)) = &self.last_hit
            && last == tuple
        {
            return Some(*slot);
        }
        let slot = *self.by_tuple.get(tuple)?;
        self.last_hit = Some((*tuple, slot));
        Some(slot)
    }

    /// Whether a connection in TIME-WAIT made room for the one that a SYN opens (RFC 9293 §3.6.1,
    /// RFC 6191).
    #[inline]
    fn gives_way(&mut self, slot: u32, header: &tcp::Header) -> bool {
        let connection = &self.connections[slot as usize];
        let gives_way = header.flags.contains(tcp::Flags::SYN)
            && connection.optimized.tcp.may_be_replaced_by(header);
        if gives_way {
            let id = ConnectionId { slot, generation: connection.generation };
            self.settle();
            self.remove(id);
        }
        gives_way
    }

    /// A segment for no connection: opens one if it is a SYN for a listener.
    fn handle_syn(
        &mut self,
        now: Instant,
        tuple: Tuple,
        header: &tcp::Header,
        inbound: &Inbound<'_>,
    ) -> Option<u32> {
        let (local, remote) = (tuple.local(), tuple.remote());
        // RFC 9293 MUST-57: a SYN to a broadcast or multicast address is not for us.
        if !self.config.owns(local.ip()) {
            return None;
        }
        let listener = self.listeners.get_mut(&local.port())?;
        listener.backlog.admit(header).ok()?;
        let params = listener.params.clone();
        let tcp_config = self.config.tcp_for(remote.ip(), self.capabilities.mtu);
        let iss = self.isn.isn(now, local, remote);
        let ts_offset = self.isn.timestamp_offset(local, remote);
        let tcp = tcp::Connection::accept(now, &tcp_config, header, iss, ts_offset);
        let Ok(id) = self.insert(tuple, tcp, params.lower_layer, Some(local.port())) else {
            self.release_backlog(local.port());
            return None;
        };
        if let Some(mac) = inbound.source_mac {
            self.neighbours.learn(remote.ip(), mac);
        }
        let stream = &mut self.connections[id.slot as usize].optimized.stream;
        if !params.delayed {
            stream.respond(now, &params.startup).ok()?;
        }
        self.events.push_back(PortEvent::Incoming { connection: id, local, remote });
        Some(id.slot)
    }

    // ---- frames out ----

    /// Hands frames that are due to `transmit`: at most `room`, and not many more octets than
    /// [`BURST_OCTETS`]. Returns how many were taken; 0 means that nothing is due.
    ///
    /// A refused frame is lost as on a wire; TCP brings its octets again. Do not call while the
    /// device is full.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        room: usize,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        self.reopen(now);
        let mut sent = self.host.poll_transmit(now, transmit);
        while let Some(slot) = self.doorbell.next() {
            if let Some(connection) = self.connections.get(slot as usize) {
                connection.release_bell();
            }
            self.wake(slot);
        }
        let mut octets = 0;
        while sent < room && octets < BURST_OCTETS {
            let Some(slot) = self.ready.pop_front() else { break };
            let turn = self.transmit_turn(now, slot, (room - sent).min(TURN_FRAMES), transmit);
            sent += turn.frames;
            octets += turn.octets;
        }
        sent
    }

    fn transmit_turn(
        &mut self,
        now: Instant,
        slot: u32,
        room: usize,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> Turn {
        let Some(connection) = self.connections.get_mut(slot as usize) else {
            return Turn::default();
        };
        connection.ready = false;
        let Some(route) =
            connection.resolve(&self.config, &self.neighbours, self.capabilities.medium)
        else {
            let next_hop = connection.next_hop(&self.config);
            let frames = self.neighbours.solicit(now, &self.config, next_hop, transmit);
            connection.optimized.while_unreachable(now);
            self.touch(slot);
            return Turn { frames, octets: 0 };
        };
        let limits = TxLimits {
            super_frame_len_max: self
                .capabilities
                .segmentation_len_max
                .map_or(0, std::num::NonZeroUsize::get),
            fragments_max: self.capabilities.fragments_max.min(FRAGMENTS_MAX),
        };
        let mut emitter = Emitter::new(&route, &self.capabilities, transmit);
        let mut more = true;
        while more && emitter.may_continue(room) {
            more =
                connection.optimized.poll_transmit(now, &limits, &mut self.scratch, &mut emitter);
        }
        let turn = emitter.turn();
        if more {
            self.wake(slot);
        }
        self.touch(slot);
        turn
    }

    // ---- time ----

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.settle();
        if !self.retries.is_empty() {
            return Some(Instant::ZERO);
        }
        let connections = &self.connections;
        let of = |slot: u32| connections.get(slot as usize).and_then(Connection::poll_timeout);
        let own = self.timers.next(of);
        [own, self.host.poll_timeout(), self.neighbours.poll_timeout()].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.settle();
        while let Some(slot) = {
            let connections = &self.connections;
            self.timers.pop_due(now, |slot| {
                connections.get(slot as usize).and_then(Connection::poll_timeout)
            })
        } {
            self.connections[slot as usize].optimized.handle_timeout(now);
            self.after_input(slot);
        }
        if self.neighbours.take_retry_due(now) {
            self.wake_unresolved();
        }
        self.reopen(now);
    }

    /// What has happened since the last call.
    pub fn poll_event(&mut self) -> Option<PortEvent> {
        self.settle();
        self.events.pop_front()
    }

    // ---- bookkeeping ----

    fn connection(&mut self, id: ConnectionId) -> Result<&mut Connection, PortError> {
        self.connections
            .get_mut(id.slot as usize)
            .filter(|connection| connection.generation == id.generation)
            .ok_or(PortError::NoConnection)
    }

    fn insert(
        &mut self,
        tuple: Tuple,
        tcp: tcp::Connection,
        lower_layer: LowerLayer,
        listener: Option<u16>,
    ) -> Result<ConnectionId, PortError> {
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(PortError::Exhausted);
        }
        self.generation = self.generation.wrapping_add(1);
        let policy = self.config.rx_policy(lower_layer);
        let stream = Stream::new(Arc::clone(&self.rnic.shared), policy);
        let aligned = lower_layer == LowerLayer::Optimized;
        let optimized = Optimized::new(tcp, stream, aligned);
        let connection = Connection::new(tuple, optimized, self.generation, listener);
        let slot = u32::try_from(self.connections.insert(connection)).expect("bounded above");
        self.by_tuple.insert(tuple, slot);
        self.wake(slot);
        Ok(ConnectionId { slot, generation: self.generation })
    }

    fn attach(&mut self, id: ConnectionId, qp: &Qp) {
        let bell = Bell::new(Arc::clone(&self.doorbell), id.slot);
        // A queue pair serves one connection in its life; the stream has checked that it is new.
        let _set_once = qp.shared.bell.set(bell);
        self.wake(id.slot);
    }

    /// The connection may have something to send.
    fn wake(&mut self, slot: u32) {
        if let Some(connection) = self.connections.get_mut(slot as usize)
            && !connection.ready
        {
            connection.ready = true;
            self.ready.push_back(slot);
        }
    }

    fn wake_resolved(&mut self) {
        if self.neighbours.take_news() {
            self.wake_unresolved();
        }
    }

    fn wake_unresolved(&mut self) {
        for slot in 0..self.connections.capacity() {
            if self.connections.get(slot).is_some_and(|connection| connection.route.is_none()) {
                self.wake(u32::try_from(slot).expect("bounded by CONNECTIONS_MAX"));
            }
        }
    }

    /// A connection has handled input: it may send, and [`settle`](Self::settle) has to look at it.
    #[inline]
    fn after_input(&mut self, slot: u32) {
        self.wake(slot);
        self.touch(slot);
    }

    #[inline]
    fn touch(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if !connection.touched {
            connection.touched = true;
            self.touched.push(slot);
        }
    }

    /// Collects events and deadlines of connections that did something, and removes those that are
    /// over: once per burst, not per frame.
    fn settle(&mut self) {
        while let Some(slot) = self.touched.pop() {
            if let Some(connection) = self.connections.get_mut(slot as usize) {
                connection.touched = false;
                self.settle_connection(slot);
            }
        }
    }

    fn settle_connection(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.optimized.stream.wants_retry() {
            return self.settle_retry(slot);
        }
        let id = ConnectionId { slot, generation: connection.generation };
        while let Some(event) = connection.optimized.stream.poll_event() {
            self.events.push_back(PortEvent::Stream { connection: id, event });
        }
        if let Some(deadline) = connection.poll_timeout() {
            self.timers.arm(slot, deadline);
        }
        let listener = connection.leaves_backlog();
        let over = connection.is_over();
        if let Some(tcp_port) = listener {
            self.release_backlog(tcp_port);
        }
        if over {
            self.remove(id);
        }
    }

    /// MPA could not be started on a connection, and another may do: when TCP is through with this
    /// one, another takes its place.
    fn settle_retry(&mut self, slot: u32) {
        let connection = &mut self.connections[slot as usize];
        if connection.is_over() {
            self.retries.push(slot);
        } else {
            // The peer has ended the connection, or need not be waited for.
            connection.optimized.tcp.abort();
            self.wake(slot);
        }
    }

    fn remove(&mut self, id: ConnectionId) {
        let mut connection = self.connections.remove(id.slot as usize);
        connection.optimized.stream.connection_lost();
        connection.optimized.stream.release(&mut self.pieces);
        while let Some(event) = connection.optimized.stream.poll_event() {
            self.events.push_back(PortEvent::Stream { connection: id, event });
        }
        if let Some(tcp_port) = connection.take_listener() {
            self.release_backlog(tcp_port);
        }
        self.by_tuple.remove(&connection.tuple);
        self.last_hit = None;
        self.timers.forget(id.slot);
        let counters = Box::new(connection.counters());
        self.events.push_back(PortEvent::Closed { connection: id, counters });
    }

    fn release_backlog(&mut self, tcp_port: u16) {
        if let Some(listener) = self.listeners.get_mut(&tcp_port) {
            listener.backlog.release();
        }
    }

    fn free_port(&mut self, local: IpAddr, remote: SocketAddr) -> Result<u16, PortError> {
        for _ in EPHEMERAL_FIRST..=u16::MAX {
            let candidate = self.ephemeral;
            self.ephemeral = self.ephemeral.checked_add(1).unwrap_or(EPHEMERAL_FIRST);
            let tuple = Tuple::new(local, candidate, remote.ip(), remote.port());
            if !self.by_tuple.contains_key(&tuple) && !self.listeners.contains_key(&candidate) {
                return Ok(candidate);
            }
        }
        Err(PortError::Exhausted)
    }
}
