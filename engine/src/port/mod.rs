//! One interface: frames in and out, connections, and the host stack. A [`Port`] is sans-IO. The
//! caller passes frames and the time to `handle_*`, then drains
//! [`poll_transmit`](Port::poll_transmit), [`poll_event`](Port::poll_event) and
//! [`poll_timeout`](Port::poll_timeout) until they are empty. Ports report their decisions to
//! `tracing`, target `urnic::port`, never for each good frame. Events that any sender can cause
//! with one frame (drops, cookies, evictions) are traced when their counter reaches a power of two.

mod accept;
mod change;
mod config;
mod connections;
mod control;
mod drops;
mod event;
mod excess;
pub mod host;
mod in_place;
mod interface;
mod listeners;
mod open;
mod process_active;
mod queues;
mod receive;
mod recycle;
mod source_ports;
#[cfg(test)]
mod tests;
mod time_wait;
pub mod timers;
mod transmit;
mod tuple;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::debug;
use urnic_netdev::Capabilities;

pub use config::{ConnectParams, ListenParams, LowerLayer, PortConfig, VlanId};
pub use connections::connection::{ConnectionCounters, ConnectionId};
pub use drops::{PortCounters, PortDrops};
pub use event::{PortError, PortEvent};
pub use queues::{Handover, Recipient};

use crate::limits::{CONNECTIONS_MAX, TIME_WAIT_MAX};
use crate::mpa::pieces::PieceStore;
use crate::port::change::{LeaseWatch, leaves_digests};
use crate::port::connections::Connections;
use crate::port::connections::connection::PortConnection;
use crate::port::drops::FrameDrop;
use crate::port::excess::Allowances;
use crate::port::host::Host;
use crate::port::interface::Interface;
use crate::port::listeners::Listeners;
use crate::port::queues::Handovers;
use crate::port::source_ports::SourcePorts;
use crate::stream::Scratch;
use crate::stream::life::LifeTimes;
use crate::tcp;
use crate::time::{Duration, Instant};
use crate::verbs::{Doorbell, HeldRnic, Rnic};

/// First TCP port used for connections opened here (RFC 6335 §6: dynamic ports).
const EPHEMERAL_FIRST: u16 = 49152;

const TRACE: &str = "urnic::port";

/// One interface with its connections.
#[derive(Debug)]
pub struct Port {
    rnic: HeldRnic,
    config: PortConfig,
    /// Shared by connections: how streams begin and end, and the TCP settings for IPv4 and IPv6.
    life: Arc<LifeTimes>,
    tcp_configs: [Arc<tcp::PathConfig>; 2],
    interface: Interface,
    lease_watch: LeaseWatch,
    connections: Connections,
    listeners: Listeners,
    host: Host,
    handovers: Option<Handovers>,
    doorbell: Arc<Doorbell>,
    isn: tcp::IsnGenerator,
    source_ports: SourcePorts,
    pieces: PieceStore,
    /// Before this time no connection is asked to release pieces.
    reclaim_at: Instant,
    scratch: Scratch,
    gathered: Vec<u8>,
    events: VecDeque<PortEvent>,
    counters: PortCounters,
    allowances: Allowances,
}

impl Port {
    /// A port of `rnic` for a device with these capabilities.
    #[must_use]
    pub fn new(rnic: &Rnic, mut config: PortConfig, capabilities: Capabilities) -> Self {
        config.connections_max = config.connections_max.min(CONNECTIONS_MAX);
        config.time_wait_max = config.time_wait_max.min(TIME_WAIT_MAX);
        let seed = &rnic.shared.seed;
        let number = rnic.shared.count_port();
        let send_path = config.send_path;
        let keys = seed.port_keys();
        let interface = Interface::new(capabilities, config.vlan, keys.tables);
        let mut scratch = Scratch::new(send_path, capabilities.gather_len_min);
        scratch.leave_digests(leaves_digests(&capabilities));
        Self {
            rnic: HeldRnic::by_port(rnic),
            host: Host::new(&config, &capabilities, interface.framing, seed, number),
            life: Arc::new(config.life),
            tcp_configs: Default::default(),
            interface,
            lease_watch: LeaseWatch::default(),
            connections: Connections::new(keys.tables),
            listeners: Listeners::new(keys.tables, tcp::SynCookies::new(keys.cookies)),
            handovers: None,
            doorbell: Doorbell::new(),
            isn: tcp::IsnGenerator::new(keys.sequence_numbers, keys.timestamps),
            source_ports: SourcePorts::new(keys.source_ports, EPHEMERAL_FIRST..=u16::MAX),
            pieces: PieceStore::new(config.piece_blocks),
            reclaim_at: Instant::ZERO,
            scratch,
            gathered: Vec::new(),
            events: VecDeque::with_capacity(16),
            counters: PortCounters::default(),
            allowances: Allowances::default(),
            config,
        }
    }

    fn tcp_config(&mut self, remote: IpAddr) -> Arc<tcp::PathConfig> {
        let config = self.config.tcp_for(remote, self.interface.capabilities.mtu);
        let shared = &mut self.tcp_configs[usize::from(remote.is_ipv6())];
        if **shared != config {
            *shared = Arc::new(config);
        }
        Arc::clone(shared)
    }

    /// Frames dropped before any connection received them.
    #[must_use]
    pub const fn drops(&self) -> PortDrops {
        self.counters.drops
    }

    /// Counters of the port, without those of its connections.
    #[must_use]
    pub const fn port_counters(&self) -> &PortCounters {
        &self.counters
    }

    /// The host stack of the port, with ordinary sockets. Changes take effect at the next poll.
    pub const fn host_mut(&mut self) -> &mut Host {
        self.host.touch();
        &mut self.host
    }

    /// The port's current addresses: DHCP changes them.
    #[must_use]
    pub const fn config(&self) -> &PortConfig {
        &self.config
    }

    /// Capabilities of the device.
    #[must_use]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.interface.capabilities
    }

    /// Raises the hold of new connections to at least `hold`: see [`tcp::Config::ack_hold`].
    pub fn hold_acks(&mut self, hold: Duration) {
        self.config.tcp.ack_hold = self.config.tcp.ack_hold.max(hold);
    }

    /// Most bytes held for unfinished FPDUs at one time, over all connections.
    #[must_use]
    pub const fn bytes_held_peak(&self) -> u64 {
        self.pieces.bytes_held_peak()
    }

    /// Bytes held for unfinished FPDUs now, over all connections.
    #[must_use]
    pub const fn bytes_held(&self) -> u64 {
        self.pieces.bytes_held()
    }

    /// Number of connections, with those in TIME-WAIT, even after [`PortEvent::Closed`].
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.connections.len() + self.time_wait_count()
    }

    /// Connections in TIME-WAIT: they have no [`ConnectionId`], only addresses.
    #[must_use]
    pub const fn time_wait_count(&self) -> usize {
        self.connections.time_wait_count()
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) must be called.
    #[must_use]
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.process_active();
        if self.connections.has_retries() {
            return Some(Instant::ZERO);
        }
        let of_connections = self.connections.next_deadline();
        let host = self.host.poll_timeout();
        let neighbours = self.interface.neighbours.poll_timeout();
        let time_wait = self.connections.next_time_wait_over();
        let all = [of_connections, time_wait, host, neighbours, self.lease_watch.poll_timeout()];
        all.into_iter().flatten().min()
    }

    /// Runs the timers that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.process_active();
        while let Some(slot) = self.connections.pop_due(now) {
            let (mtu, link_up) = (self.interface.capabilities.mtu, self.interface.link_up);
            let connection = &mut self.connections[slot];
            if connection.handle_timeout(now, mtu, link_up) {
                connection.keep_path(now, &mut self.interface.paths);
            }
            self.connections.after_input(slot);
        }
        self.expire_time_wait(now);
        self.interface.neighbours.handle_timeout(now);
        self.wake_for_neighbours();
        self.interface.reassembly.expire(now);
        self.reopen(now);
    }

    /// Returns the next event, oldest first.
    pub fn poll_event(&mut self) -> Option<PortEvent> {
        self.process_active();
        self.events.pop_front()
    }

    #[cold]
    fn drop_frame(&mut self, reason: FrameDrop) {
        let dropped = self.counters.drops.count(reason);
        if dropped.is_power_of_two() {
            debug!(target: TRACE, ?reason, dropped, "frame dropped");
        }
    }

    fn connection(&self, id: ConnectionId) -> Result<&PortConnection, PortError> {
        self.connections.by_id(id).ok_or(PortError::NoConnection)
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Result<&mut PortConnection, PortError> {
        self.connections.by_id_mut(id).ok_or(PortError::NoConnection)
    }

    fn wake_for_neighbours(&mut self) {
        while let Some(slot) = self.interface.neighbours.next_woken() {
            self.connections.neighbour_answered(slot);
        }
    }
}

impl Drop for Port {
    /// Ends all connections: posted requests complete as flushed. Threads that wait for completions
    /// get them even if the thread that runs the port panics, as long as its connections can still
    /// be ended.
    fn drop(&mut self) {
        for connection in self.connections.iter_mut() {
            // The connection that caused a panic may be in any state.
            let lost = AssertUnwindSafe(|| connection.carrier.stream.connection_lost());
            drop(catch_unwind(lost));
        }
    }
}
