//! One connection of a port: its stream, its addresses, and how frames reach its peer.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::counters::{MpaRxCounters, RdmaRxCounters};
use crate::port::PortConfig;
use crate::port::framing::Framing;
use crate::port::neighbour::Neighbours;
use crate::port::path::PathMtu;
use crate::port::receive::Place;
use crate::port::route::Route;
use crate::stream::PhaseError;
use crate::stream::optimized::{AlignmentCounters, Optimized};
use crate::tcp;
use crate::time::Instant;

/// Names a connection of one port. Never reused while the port lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// The addresses of both ends, in a form that compares in a few instructions: IPv4 addresses as
/// IPv4-mapped IPv6 ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tuple {
    local: u128,
    remote: u128,
    /// Local port in the high half.
    ports: u32,
}

impl Tuple {
    #[inline]
    pub(crate) fn new(local: IpAddr, local_port: u16, remote: IpAddr, remote_port: u16) -> Self {
        let ports = u32::from(local_port) << 16 | u32::from(remote_port);
        Self { local: mapped(local), remote: mapped(remote), ports }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.local), self.local_port())
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.remote), (self.ports & 0xffff) as u16)
    }

    pub(crate) const fn local_port(&self) -> u16 {
        (self.ports >> 16) as u16
    }
}

#[inline]
fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => 0xffff << 32 | u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn unmapped(bits: u128) -> IpAddr {
    Ipv6Addr::from_bits(bits).to_canonical()
}

/// Mixes the few words of a [`Tuple`]. What an outsider can choose, addresses and ports, is
/// bounded by [`CONNECTIONS_MAX`](crate::limits::CONNECTIONS_MAX) connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TupleHasher(u64);

#[expect(clippy::cast_possible_truncation, reason = "a hash folds its input")]
impl Hasher for TupleHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64 ^ (word >> 64) as u64);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// Everything a connection has counted, by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// TCP.
    pub tcp: tcp::Counters,
    /// Segments sent, by alignment.
    pub alignment: AlignmentCounters,
    /// FPDUs framed for sending.
    pub fpdus_framed: u64,
    /// MPA reception.
    pub mpa: MpaRxCounters,
    /// Placement and delivery.
    pub rdma: RdmaRxCounters,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) tuple: Tuple,
    pub(crate) optimized: Optimized,
    pub(crate) generation: u32,
    pub(crate) path: PathMtu,
    route: Option<Route>,
    /// What [`Neighbours::changes`] was when the route was made.
    route_at: u64,
    /// The way to the peer is to be asked for anew.
    pub(crate) doubts_route: bool,
    /// Whether it stands in the port's list of those that may send.
    pub(crate) ready: bool,
    /// Whether it stands in the port's list of those that did something.
    pub(crate) touched: bool,
    /// The place in a backlog that it still has.
    place: Option<Place>,
}

impl Connection {
    pub(crate) fn new(
        tuple: Tuple,
        optimized: Optimized,
        path: PathMtu,
        generation: u32,
        place: Option<Place>,
    ) -> Self {
        Self {
            tuple,
            optimized,
            path,
            generation,
            route: None,
            route_at: 0,
            doubts_route: false,
            ready: false,
            touched: false,
            place,
        }
    }

    /// Starts over on another TCP connection, with the startup that the stream of the last one, which
    /// is over, has left.
    pub(crate) fn reopen(
        &mut self,
        now: Instant,
        tuple: Tuple,
        tcp: tcp::Connection,
    ) -> Result<(), PhaseError> {
        let old = &mut self.optimized.stream;
        let mut stream = old.successor();
        let retried = match old.take_retry() {
            Some((retry, qp)) => stream.initiate(now, &qp, &retry.startup, &retry.offer()),
            None => Err(PhaseError::NotStreaming),
        };
        let aligned = self.optimized.is_aligned();
        self.optimized = Optimized::new(tcp, stream, aligned);
        self.tuple = tuple;
        retried
    }

    pub(crate) fn next_hop(&self, config: &PortConfig) -> IpAddr {
        config.next_hop(self.tuple.remote().ip())
    }

    /// How frames reach the peer; `None` while its link address is not known.
    pub(crate) fn resolve(
        &mut self,
        config: &PortConfig,
        neighbours: &Neighbours,
        framing: Framing,
    ) -> Option<Route> {
        if self.route.is_none() || self.route_at != neighbours.changes() {
            let (local, remote) = (self.tuple.local().ip(), self.tuple.remote().ip());
            let next_hop = config.next_hop(remote);
            self.route_at = neighbours.changes();
            if !framing.has_link_layer() {
                self.route = Some(Route::new(None, local, remote));
            } else if let Some(mac) = neighbours.lookup(next_hop) {
                let link = config.link_header(framing, mac);
                self.route = Some(Route::new(Some(link), local, remote));
            }
        }
        self.route
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match (self.optimized.poll_timeout(), self.path.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Time has passed; the device's MTU and whether its link is up.
    pub(crate) fn handle_timeout(&mut self, now: Instant, device_mtu: usize, link_up: bool) {
        self.optimized.handle_timeout(now);
        let tcp = &mut self.optimized.tcp;
        if !link_up {
            self.path.forgive(tcp.consecutive_timeouts());
        }
        self.path.handle_timeout(now, tcp, device_mtu);
        self.doubts_route |= tcp.is_path_suspect();
    }

    pub(crate) fn release_bell(&self) {
        if let Some(bell) = self.optimized.stream.qp().and_then(|qp| qp.bell.get()) {
            bell.release();
        }
    }

    /// The place in a backlog that the connection just left: MPA has started, or never will.
    pub(crate) fn leaves_backlog(&mut self) -> Option<Place> {
        if self.optimized.stream.is_starting() { None } else { self.place.take() }
    }

    pub(crate) const fn take_place(&mut self) -> Option<Place> {
        self.place.take()
    }

    /// Whether TCP has nothing more to do.
    pub(crate) fn is_over(&self) -> bool {
        self.optimized.tcp.is_finished()
    }

    pub(crate) fn counters(&self) -> ConnectionCounters {
        let stream = &self.optimized.stream;
        ConnectionCounters {
            tcp: *self.optimized.tcp.counters(),
            alignment: self.optimized.alignment(),
            fpdus_framed: stream.fpdus_framed(),
            mpa: stream.mpa_counters(),
            rdma: stream.rdma_counters(),
        }
    }
}
