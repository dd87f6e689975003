//! One connection of a port: its stream, its addresses, and the route to its peer.

use std::mem::offset_of;
use std::net::IpAddr;
use std::ops::Range;

use crate::counters::{MpaRxCounters, RdmaRxCounters, RdmaTxCounters};
use crate::port::config::PortConfig;
use crate::port::interface::framing::LinkFraming;
use crate::port::interface::neighbour::Neighbours;
use crate::port::interface::path::{KnownPaths, PathMtu};
use crate::port::interface::route::{LinkHeader, Route};
use crate::port::listeners::BacklogSlot;
use crate::port::tuple::Tuple;
use crate::stream::PhaseError;
use crate::stream::carrier::{AlignmentCounters, OwnTcp};
use crate::tcp;
use crate::time::Instant;

/// Identifies a connection of one port. Never reused while the port lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    pub(in crate::port) slot: u32,
    pub(in crate::port) generation: u32,
}

/// All counters of a connection, by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Bytes of the stream sent for the first time, by either TCP.
    pub bytes_sent: u64,
    /// Bytes of the stream that have arrived without a gap before them.
    pub bytes_received: u64,
    /// Bytes currently held because their FPDU is incomplete.
    pub bytes_held_now: u64,
    /// TCP; 0 if the kernel's TCP is used.
    pub tcp: tcp::Counters,
    /// Frames of any kind, a super-frame as one. 0 if the kernel's TCP sends.
    pub frames_sent: u64,
    /// Segments sent, by alignment.
    pub alignment: AlignmentCounters,
    /// FPDUs framed for sending.
    pub fpdus_framed: u64,
    /// MPA reception.
    pub mpa: MpaRxCounters,
    /// Placement and delivery.
    pub rdma: RdmaRxCounters,
    /// Copies made for sending.
    pub rdma_tx: RdmaTxCounters,
    /// Accesses of the peer to memory without permission: at most one, because it ends the stream.
    pub accesses_refused: u64,
}

// The fields that a message touches are contiguous, here and in the parts ([`HOT`]): with many
// connections nothing is in the cache, and each cache line costs a wait.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct PortConnection {
    tuple: Tuple,
    pub(crate) generation: u32,
    /// The neighbour's link address must be verified (RFC 1122 §2.3.2.1).
    pub(crate) confirm_neighbour: bool,
    /// An answer to the neighbour query wakes the connection.
    pub(crate) awaits_neighbour: bool,
    pub(crate) ready: bool,
    /// Its queue pair has signalled new work, and its `DoorbellButton` is not released yet.
    pub(crate) rung: bool,
    pub(crate) touched: bool,
    /// Its close was reported: only its addresses remain.
    pub(crate) retired: bool,
    pub(crate) frames_sent: u64,
    /// Value of [`Neighbours::changes`] when the route was made.
    route_at: u64,
    route: Option<Route>,
    backlog_slot: Option<BacklogSlot>,
    pub(crate) carrier: OwnTcp,
    pub(crate) path: PathMtu,
}

impl PortConnection {
    pub(super) const HOT: [Range<usize>; 3] = {
        let (carrier, [head, tail]) = (offset_of!(Self, carrier), OwnTcp::HOT);
        [0..carrier + head.end, carrier + tail.start..carrier + tail.end, Self::PATH]
    };
    pub(super) const WOKEN: Range<usize> = offset_of!(Self, ready)..offset_of!(Self, rung) + 1;
    /// Bytes that show if a deadline has expired, or that an expired delayed acknowledgment needs.
    pub(super) const DUE: [Range<usize>; 4] = {
        let (carrier, [stream, tcp]) = (offset_of!(Self, carrier), OwnTcp::DUE);
        [
            0..offset_of!(Self, retired) + 1,
            carrier + stream.start..carrier + stream.end,
            carrier + tcp.start..carrier + tcp.end,
            Self::PATH,
        ]
    };
    const PATH: Range<usize> = {
        let path = offset_of!(Self, path);
        path..path + PathMtu::HOT_HEAD
    };

    pub(crate) fn new(
        tuple: Tuple,
        carrier: OwnTcp,
        path: PathMtu,
        generation: u32,
        backlog_slot: Option<BacklogSlot>,
    ) -> Self {
        Self {
            tuple,
            carrier,
            path,
            generation,
            route: None,
            route_at: 0,
            confirm_neighbour: false,
            awaits_neighbour: false,
            ready: false,
            rung: false,
            touched: false,
            frames_sent: 0,
            backlog_slot,
            retired: false,
        }
    }

    /// Starts over on another TCP connection, with the startup parameters that the stream has kept.
    pub(crate) fn reopen(&mut self, now: Instant, tcp: tcp::Tcb) -> Result<(), PhaseError> {
        let old = &mut self.carrier.stream;
        let mut stream = old.successor();
        let retried = match old.take_retry() {
            Some((retry, qp)) => stream.initiate(now, &qp, &retry.startup, &retry.offer()),
            None => Err(PhaseError::NotStreaming),
        };
        let aligned = self.carrier.is_aligned();
        self.carrier = OwnTcp::new(tcp, stream, aligned);
        retried
    }

    #[inline]
    pub(crate) const fn tuple(&self) -> Tuple {
        self.tuple
    }

    /// DHCP may have changed the port's address since the connection was opened.
    pub(super) const fn set_tuple(&mut self, tuple: Tuple) {
        self.tuple = tuple;
        self.route = None;
    }

    pub(crate) fn next_hop(&self, config: &PortConfig) -> IpAddr {
        config.next_hop(self.tuple.remote().ip())
    }

    pub(crate) fn resolve(
        &mut self,
        config: &PortConfig,
        neighbours: &Neighbours,
        framing: LinkFraming,
    ) -> Option<Route> {
        if self.route.is_none() || self.route_at != neighbours.changes() {
            self.route_at = neighbours.changes();
            // Keeps the old route if the neighbour's entry was removed.
            self.route = route_between(&self.tuple, config, neighbours, framing).or(self.route);
        }
        self.route
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match (self.carrier.poll_timeout(), self.path.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Returns true if the limit of the path must be [kept](Self::keep_path).
    #[must_use]
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        device_mtu: usize,
        link_up: bool,
    ) -> bool {
        self.carrier.handle_timeout(now);
        let tcp = &mut self.carrier.tcp;
        if !link_up {
            self.path.forgive(tcp.consecutive_timeouts());
        }
        let is_limit_known = self.path.handle_timeout(now, tcp, device_mtu);
        self.confirm_neighbour |= tcp.is_path_suspect();
        is_limit_known
    }

    /// Judges a reduction of the segment size by the peer's acknowledgments since then.
    #[cold]
    pub(crate) fn judge_path(&mut self, now: Instant, paths: &mut KnownPaths) {
        if self.path.judge(now, &mut self.carrier.tcp) {
            self.keep_path(now, paths);
        }
    }

    pub(crate) fn keep_path(&self, now: Instant, paths: &mut KnownPaths) {
        if let Some(known) = self.path.known() {
            paths.keep(now, self.tuple.remote().ip(), known);
        }
    }

    pub(crate) fn release_button(&self) {
        if let Some(button) = self.carrier.stream.qp().and_then(|qp| qp.button.get()) {
            button.release();
        }
    }

    pub(crate) const fn backlog_slot(&self) -> Option<&BacklogSlot> {
        self.backlog_slot.as_ref()
    }

    pub(crate) const fn set_backlog_slot(&mut self, slot: BacklogSlot) {
        self.backlog_slot = Some(slot);
    }

    pub(crate) const fn take_backlog_slot(&mut self) -> Option<BacklogSlot> {
        self.backlog_slot.take()
    }

    pub(crate) const fn is(&self, id: ConnectionId) -> bool {
        self.generation == id.generation && !self.retired
    }

    /// Returns true if both ends have closed, and TCP only keeps the addresses for a while.
    pub(crate) fn is_in_time_wait(&self) -> bool {
        self.carrier.tcp.state() == tcp::State::TimeWait
    }

    pub(crate) fn is_over(&self) -> bool {
        self.carrier.tcp.is_finished()
    }

    pub(crate) fn counters(&self) -> ConnectionCounters {
        let stream = &self.carrier.stream;
        let tcp = &self.carrier.tcp;
        ConnectionCounters {
            bytes_sent: tcp.counters().bytes_sent,
            bytes_received: tcp.delivered().0,
            bytes_held_now: stream.bytes_held(),
            tcp: *tcp.counters(),
            frames_sent: self.frames_sent,
            alignment: self.carrier.alignment(),
            fpdus_framed: stream.fpdus_framed(),
            mpa: stream.mpa_counters(),
            rdma: stream.rdma_counters(),
            rdma_tx: stream.tx_counters(),
            accesses_refused: stream.accesses_refused(),
        }
    }
}

pub(in crate::port) fn route_between(
    tuple: &Tuple,
    config: &PortConfig,
    neighbours: &Neighbours,
    framing: LinkFraming,
) -> Option<Route> {
    let (local, remote) = (tuple.local().ip(), tuple.remote().ip());
    let link = if framing.has_link_layer() {
        let mac = mac_of(config, neighbours, config.next_hop(remote))?;
        Some(LinkHeader::new(framing, config.mac, mac))
    } else {
        None
    };
    Some(Route::new(link, local, remote))
}

/// The port's own if the next hop is the port itself.
fn mac_of(config: &PortConfig, neighbours: &Neighbours, next_hop: IpAddr) -> Option<[u8; 6]> {
    if config.owns(next_hop) { Some(config.mac) } else { neighbours.lookup(next_hop) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use urnic_netdev::Medium;

    use super::*;
    use crate::limits::{NEIGHBOUR_LOCK_NS, NEIGHBOURS_MAX};
    use crate::stream::{RxPolicy, Stream};
    use crate::tcp::SeqNum;
    use crate::verbs::{HeldRnic, Rnic, RnicConfig};

    fn tcp() -> tcp::Tcb {
        let config = tcp::PathConfig::default();
        tcp::Tcb::connect(Instant::ZERO, &config.into(), 1, 2, SeqNum(0), 0)
    }

    /// Returns the source address in the frames of a connection.
    fn source(connection: &mut PortConnection, config: &PortConfig) -> Vec<u8> {
        let neighbours = Neighbours::new((1, 2));
        let framing = LinkFraming::new(Medium::Ip, None);
        let route = connection.resolve(config, &neighbours, framing).unwrap();
        let mut headers = vec![0; route.headers_len()];
        route.write_headers(&mut headers, 20, tcp::Ecn::NotCapable);
        headers[12..16].to_vec()
    }

    #[test]
    fn a_connection_opened_anew_sends_from_the_address_it_has_now() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let stream = Stream::new(HeldRnic::by_stream(&rnic), RxPolicy::default(), Arc::default());
        let tuple = |last: u8| Tuple::new([10, 0, 0, last].into(), 1, [10, 0, 0, 9].into(), 2);
        let path = PathMtu::new([10, 0, 0, 9].into(), 1500, 552);
        let carrier = OwnTcp::new(tcp(), stream, true);
        let mut connection = PortConnection::new(tuple(1), carrier, path, 1, None);
        let config = PortConfig::for_ipv4([10, 0, 0, 1].into());
        assert_eq!(source(&mut connection, &config), [10, 0, 0, 1]);
        connection.set_tuple(tuple(7));
        let retried = connection.reopen(Instant::ZERO, tcp());
        assert_eq!(retried, Err(PhaseError::NotStreaming), "no startup is to be tried again");
        assert_eq!(source(&mut connection, &config), [10, 0, 0, 7]);
    }

    /// Returns the destination link address in the frames of a connection from 10.0.0.1.
    fn destination(connection: &mut PortConnection, neighbours: &Neighbours) -> Option<[u8; 6]> {
        let config = PortConfig::for_ipv4([10, 0, 0, 1].into());
        let framing = LinkFraming::new(Medium::Ethernet, None);
        let route = connection.resolve(&config, neighbours, framing)?;
        let mut headers = vec![0; route.headers_len()];
        route.write_headers(&mut headers, 20, tcp::Ecn::NotCapable);
        headers.first_chunk().copied()
    }

    fn connection_to(last: u8) -> PortConnection {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let stream = Stream::new(HeldRnic::by_stream(&rnic), RxPolicy::default(), Arc::default());
        let remote = IpAddr::from([10, 0, 0, last]);
        let tuple = Tuple::new([10, 0, 0, 1].into(), 1, remote, 2);
        let carrier = OwnTcp::new(tcp(), stream, true);
        PortConnection::new(tuple, carrier, PathMtu::new(remote, 1500, 552), 1, None)
    }

    /// Made-up neighbours evict others, and stop no connection.
    #[test]
    fn a_route_stays_when_its_neighbour_is_evicted_and_follows_one_that_moves() {
        let (mut connection, mut neighbours) = (connection_to(9), Neighbours::new((1, 2)));
        let peer = IpAddr::from([10, 0, 0, 9]);
        assert_eq!(destination(&mut connection, &neighbours), None);
        neighbours.learn_provisionally(Instant::ZERO, peer, [2; 6]);
        assert_eq!(destination(&mut connection, &neighbours), Some([2; 6]));
        for host in 0..=u32::try_from(NEIGHBOURS_MAX).unwrap() {
            let host = std::net::Ipv4Addr::from(0x0A10_0000 + host);
            neighbours.learn_provisionally(Instant::ZERO, host.into(), [4; 6]);
        }
        assert!(neighbours.lookup(peer).is_none() && neighbours.changes() > 0);
        assert_eq!(destination(&mut connection, &neighbours), Some([2; 6]));
        let later = Instant::ZERO.plus_nanos(NEIGHBOUR_LOCK_NS);
        neighbours.learn_provisionally(later, peer, [6; 6]);
        assert_eq!(destination(&mut connection, &neighbours), Some([6; 6]));
    }

    #[test]
    fn a_connection_of_a_port_to_itself_needs_no_neighbour() {
        let own = PortConfig::for_ipv4([10, 0, 0, 1].into()).mac;
        let neighbours = Neighbours::new((1, 2));
        assert_eq!(destination(&mut connection_to(1), &neighbours), Some(own));
    }
}
