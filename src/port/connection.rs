//! One connection of a port: its stream, its addresses, and how frames reach its peer.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use urnic_netdev::Medium;

use crate::counters::{MpaRxCounters, RdmaRxCounters};
use crate::port::PortConfig;
use crate::port::neighbour::Neighbours;
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
    pub(crate) route: Option<Route>,
    /// Whether it stands in the port's list of those that may send.
    pub(crate) ready: bool,
    /// Whether it stands in the port's list of those that did something.
    pub(crate) touched: bool,
    /// The listener in whose backlog it still counts.
    listener: Option<u16>,
}

impl Connection {
    pub(crate) fn new(
        tuple: Tuple,
        optimized: Optimized,
        generation: u32,
        listener: Option<u16>,
    ) -> Self {
        Self { tuple, optimized, generation, route: None, ready: false, touched: false, listener }
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
        medium: Medium,
    ) -> Option<Route> {
        if self.route.is_none() {
            let (local, remote) = (self.tuple.local().ip(), self.tuple.remote().ip());
            let link = if medium == Medium::Ethernet {
                Some((config.mac, neighbours.lookup(config.next_hop(remote))?))
            } else {
                None
            };
            self.route = Some(Route::new(link, local, remote));
        }
        self.route
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.optimized.poll_timeout()
    }

    pub(crate) fn release_bell(&self) {
        if let Some(bell) = self.optimized.stream.qp().and_then(|qp| qp.bell.get()) {
            bell.release();
        }
    }

    /// The listener whose backlog the connection just left: MPA has started, or never will.
    pub(crate) fn leaves_backlog(&mut self) -> Option<u16> {
        if self.optimized.stream.is_starting() { None } else { self.listener.take() }
    }

    pub(crate) const fn take_listener(&mut self) -> Option<u16> {
        self.listener.take()
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
