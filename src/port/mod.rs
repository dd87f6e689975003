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

mod change;
mod config;
mod connection;
mod control;
mod demux;
mod emit;
mod framing;
mod group;
pub mod host;
mod icmp;
mod neighbour;
mod path;
mod reassembly;
mod receive;
mod route;
mod timers;
mod transmit;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::ops::RangeInclusive;
use std::sync::Arc;

use slab::Slab;
use urnic_netdev::Capabilities;

pub use config::{ConnectParams, ListenParams, LowerLayer, PortConfig, VlanId};
pub use connection::{ConnectionCounters, ConnectionId};
pub use group::{Handover, Recipient};
pub use transmit::BURST_OCTETS;

use crate::limits::CONNECTIONS_MAX;
use crate::mpa::pieces::PieceStore;
use crate::port::connection::{Connection, Tuple, TupleHasher};
use crate::port::framing::Framing;
use crate::port::group::Membership;
use crate::port::host::Host;
use crate::port::neighbour::Neighbours;
use crate::port::path::PathMtu;
use crate::port::reassembly::Reassembly;
use crate::port::receive::Place;
use crate::port::route::Route;
use crate::port::timers::Timers;
use crate::stream::optimized::Optimized;
use crate::stream::{PhaseError, Scratch, Stream, StreamEvent};
use crate::tcp;
use crate::time::{Duration, Instant};
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
    /// DHCP has given the port an address.
    AddressAcquired {
        /// The address.
        address: IpAddr,
        /// Bits of it that its network has in common.
        prefix_len: u8,
    },
    /// The lease of an address has ended, or another has taken its place. Connections of that
    /// address are over.
    AddressLost {
        /// The address.
        address: IpAddr,
    },
    /// The device's link is down. Connections wait for its return.
    LinkDown,
    /// The device's link is up again.
    LinkUp,
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
    /// DHCP was asked for an address and has not given one yet; see
    /// [`PortEvent::AddressAcquired`].
    #[error("DHCP has not given the port an IPv4 address yet, so that it cannot reach {0}")]
    AddressPending(IpAddr),
    /// Somebody listens on that TCP port already.
    #[error("TCP port {0} is taken")]
    PortTaken(u16),
    /// No free TCP port or connection slot.
    #[error("no connection slot is free")]
    Exhausted,
    /// The ports cannot be one station; see [`Port::join`].
    #[error("ports of one station need the same addresses, not by DHCP, and no connections yet")]
    NotOneStation,
    /// The call does not fit what the connection is doing.
    #[error(transparent)]
    Phase(#[from] PhaseError),
}

#[derive(Debug)]
struct Listener {
    params: ListenParams,
    backlog: tcp::Backlog,
    /// Places for peers that came back with a cookie.
    redeemed: tcp::Backlog,
    /// When the last cookie was given out.
    cookie_sent_at: Option<Instant>,
}

impl Listener {
    fn new(params: ListenParams) -> Self {
        let (backlog, redeemed) = (params.backlog, params.backlog);
        Self {
            params,
            backlog: tcp::Backlog::new(backlog),
            redeemed: tcp::Backlog::new(redeemed),
            cookie_sent_at: None,
        }
    }

    /// Whether a cookie may come back.
    fn expects_cookies(&self, now: Instant) -> bool {
        self.cookie_sent_at.is_some_and(|at| now.nanos_since(at) < tcp::COOKIE_VALID_NS)
    }
}

/// One interface with its connections.
#[derive(Debug)]
pub struct Port {
    rnic: Rnic,
    config: PortConfig,
    capabilities: Capabilities,
    framing: Framing,
    link_up: bool,
    connections: Slab<Connection>,
    generation: u32,
    by_tuple: HashMap<Tuple, u32, BuildHasherDefault<TupleHasher>>,
    last_hit: Option<(Tuple, u32)>,
    listeners: HashMap<u16, Listener>,
    neighbours: Neighbours,
    reassembly: Reassembly,
    host: Host,
    cookies: tcp::SynCookies,
    /// SYN-ACKs with cookies to send.
    cookie_answers: VecDeque<(Route, tcp::Header)>,
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
    /// The TCP port to try next for a connection opened here.
    ephemeral: u16,
    ephemeral_range: RangeInclusive<u16>,
    /// The station of several ports that this one is part of.
    group: Option<Membership>,
    counters: PortCounters,
}

/// What a port counts besides its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames dropped before any connection saw them.
    pub drops: PortDrops,
    /// IP datagrams put together from fragments.
    pub reassembled: u64,
    /// ICMP errors about a segment in flight that changed something.
    pub icmp_heeded: u64,
    /// SYNs answered with a cookie because the backlog was full (RFC 4987).
    pub cookies_sent: u64,
    /// Connections opened by a cookie that came back.
    pub cookies_redeemed: u64,
    /// Frames for connections of other ports of the group.
    pub handed_over: u64,
}

/// Frames a port dropped before any connection saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortDrops {
    /// Not a well-formed frame of a known kind, or TCP to or from an address of no single host.
    pub malformed: u64,
    /// IPv4 header checksum wrong.
    pub ip_checksum: u64,
    /// TCP checksum wrong.
    pub tcp_checksum: u64,
    /// IP fragments that overlap others, contradict them, are too many, or are not for this port.
    pub fragments: u64,
    /// Of another VLAN.
    pub vlan: u64,
    /// ICMP errors that quote no segment in flight (RFC 5927 §4.1).
    pub icmp: u64,
    /// For other ports of the group, which did not keep up.
    pub handover: u64,
}

impl AddAssign for PortDrops {
    fn add_assign(&mut self, other: Self) {
        let Self { malformed, ip_checksum, tcp_checksum, fragments, vlan, icmp, handover } = other;
        self.malformed += malformed;
        self.ip_checksum += ip_checksum;
        self.tcp_checksum += tcp_checksum;
        self.fragments += fragments;
        self.vlan += vlan;
        self.icmp += icmp;
        self.handover += handover;
    }
}

/// First TCP port used for connections opened here (RFC 6335 §6: dynamic ports).
const EPHEMERAL_FIRST: u16 = 49152;
/// Frames one connection may send before the next has its turn.
const TURN_FRAMES: usize = 32;
/// Octets that one connection may send before the next has its turn: two large super-frames.
const TURN_OCTETS: usize = 128 << 10;

impl Port {
    /// A port of `rnic` for a device with these capabilities.
    #[must_use]
    pub fn new(rnic: &Rnic, config: PortConfig, capabilities: Capabilities) -> Self {
        let seed = rnic.shared.seed;
        let key = (seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15);
        let framing = Framing::new(capabilities.medium, config.vlan);
        Self {
            rnic: rnic.clone(),
            host: Host::new(&config, &capabilities, framing, seed),
            neighbours: Neighbours::new(),
            reassembly: Reassembly::default(),
            capabilities,
            framing,
            link_up: true,
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
            pieces: PieceStore::new(config.piece_blocks),
            scratch: Scratch::default(),
            isn: tcp::IsnGenerator::new(key),
            cookies: tcp::SynCookies::new(key),
            cookie_answers: VecDeque::new(),
            ephemeral: EPHEMERAL_FIRST,
            ephemeral_range: EPHEMERAL_FIRST..=u16::MAX,
            group: None,
            counters: PortCounters::default(),
            config,
        }
    }

    /// Frames dropped before any connection saw them.
    #[must_use]
    pub const fn drops(&self) -> PortDrops {
        self.counters.drops
    }

    /// What the port counts besides its connections.
    #[must_use]
    pub const fn port_counters(&self) -> &PortCounters {
        &self.counters
    }

    /// The host stack beside the engine, with ordinary TCP and UDP sockets.
    ///
    /// What is done to them takes effect when the port is polled next.
    pub const fn host_mut(&mut self) -> &mut Host {
        self.host.touch();
        &mut self.host
    }

    /// The port's addresses as they are now: DHCP changes them.
    #[must_use]
    pub const fn config(&self) -> &PortConfig {
        &self.config
    }

    /// Lets connections hold acknowledgments for as long, at least: see
    /// [`tcp::Config::ack_hold`]. For connections from now on.
    pub fn hold_acks(&mut self, hold: Duration) {
        self.config.tcp.ack_hold = self.config.tcp.ack_hold.max(hold);
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
            let (mtu, link_up) = (self.capabilities.mtu, self.link_up);
            self.connections[slot as usize].handle_timeout(now, mtu, link_up);
            self.after_input(slot);
        }
        self.neighbours.handle_timeout(now);
        self.wake_those_who_waited();
        self.reassembly.expire(now);
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
        place: Option<Place>,
    ) -> Result<ConnectionId, PortError> {
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(PortError::Exhausted);
        }
        if self.group.as_ref().is_some_and(|group| !group.claim(tuple)) {
            return Err(PortError::PortTaken(tuple.local_port()));
        }
        self.generation = self.generation.wrapping_add(1);
        let policy = self.config.rx_policy(lower_layer);
        let stream = Stream::new(Arc::clone(&self.rnic.shared), policy);
        let aligned = lower_layer == LowerLayer::Optimized;
        let optimized = Optimized::new(tcp, stream, aligned);
        let (mtu, floor) = (self.capabilities.mtu, self.config.path_mtu_min);
        let path = PathMtu::new(tuple.remote().ip(), mtu, floor);
        let connection = Connection::new(tuple, optimized, path, self.generation, place);
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

    /// Wakes connections whose neighbour has answered, or is to be asked again.
    fn wake_those_who_waited(&mut self) {
        while let Some(slot) = self.neighbours.next_woken() {
            self.wake(slot);
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
        let place = connection.leaves_backlog();
        let over = connection.is_over();
        if let Some(place) = place {
            self.release_backlog(place);
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
        if let Some(place) = connection.take_place() {
            self.release_backlog(place);
        }
        self.by_tuple.remove(&connection.tuple);
        if let Some(group) = &self.group {
            group.release(&connection.tuple);
        }
        self.last_hit = None;
        self.timers.forget(id.slot);
        let counters = Box::new(connection.counters());
        self.events.push_back(PortEvent::Closed { connection: id, counters });
    }

    fn release_backlog(&mut self, place: Place) {
        if let Some(listener) = self.listeners.get_mut(&place.listener) {
            let backlog =
                if place.by_cookie { &mut listener.redeemed } else { &mut listener.backlog };
            backlog.release();
        }
    }

    fn free_port(&mut self, local: IpAddr, remote: SocketAddr) -> Result<u16, PortError> {
        let (first, last) = self.ephemeral_range.clone().into_inner();
        for _ in first..=last {
            let candidate = self.ephemeral;
            self.ephemeral = if candidate < last { candidate + 1 } else { first };
            let tuple = Tuple::new(local, candidate, remote.ip(), remote.port());
            if !self.by_tuple.contains_key(&tuple) && !self.listeners.contains_key(&candidate) {
                return Ok(candidate);
            }
        }
        Err(PortError::Exhausted)
    }
}
