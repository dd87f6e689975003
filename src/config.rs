//! Configuration of endpoints and connections.

use std::net::SocketAddr;

use urnic_engine::limits::CONNECTIONS_USUAL;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::LowerLayer;
use urnic_engine::stream::SendPath;
use urnic_engine::stream::life::LifeTimes;
use urnic_engine::tcp::KeepAliveTimes;
use urnic_engine::time::Duration;

/// Configuration of an endpoint and its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// True if a thread of its own runs the endpoint. If false, the threads that wait for something
    /// run it meanwhile, and nothing happens while none waits. False gives the lowest latency, and
    /// suits applications that always wait.
    pub own_thread: bool,
    /// Polling threads may run the endpoint too
    /// ([`Endpoint::poll_turn`](crate::Endpoint::poll_turn)); its own thread sleeps meanwhile. For
    /// applications that may either poll or block.
    pub polled: bool,
    /// Limit of the connections over the kernel's TCP, at most
    /// [`CONNECTIONS_MAX`](urnic_engine::limits::CONNECTIONS_MAX). Others are refused or closed. An
    /// engine's limit is in [`PortConfig::connections_max`](urnic_engine::port::PortConfig).
    pub connections_max: usize,
    /// Time to look for work before sleeping: shorter response times for a busy core.
    pub spin: Duration,
    /// Core for the endpoint's thread. The threads of further queues use the next cores.
    pub core: Option<usize>,
    /// Minimum time that data may stay unacknowledged before a connection over the kernel's TCP is
    /// given up (R2 of RFC 9293 §3.8.3), unless the peer keeps its window closed and answers probes
    /// (MUST-37). An engine's time is in [`PortConfig::tcp`](urnic_engine::port::PortConfig).
    pub user_timeout: Duration,
    /// Timers of a connection's life, over the kernel's TCP. Those of an engine are in
    /// [`PortConfig::life`](urnic_engine::port::PortConfig::life).
    pub life: LifeTimes,
    /// Minimum time that an acknowledgment may wait for the rest of a burst, on a device: see
    /// [`tcp::Config::ack_hold`](urnic_engine::tcp::Config::ack_hold). For both ends and everything
    /// between them, a segment that only acknowledges costs as much as one with data.
    pub ack_hold: Duration,
    /// Gathers or copies payload for sending over the kernel's TCP. An engine's setting is in
    /// [`PortConfig::send_path`](urnic_engine::port::PortConfig::send_path).
    pub send_path: SendPath,
}

impl Default for EndpointConfig {
    /// A thread of its own that spins for 50 µs, on any core; 100 s for peers to answer; 25 µs of
    /// delay for acknowledgments.
    fn default() -> Self {
        Self {
            own_thread: true,
            polled: false,
            connections_max: CONNECTIONS_USUAL,
            spin: Duration::from_micros(50),
            core: None,
            user_timeout: Duration::from_secs(100),
            life: LifeTimes::default(),
            ack_hold: Duration::from_micros(25),
            send_path: SendPath::default(),
        }
    }
}

/// Parameters for opening a connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// MPA settings.
    pub startup: StartupConfig,
    /// Private Data for the peer's application: at most 512 bytes, 508 with RFC 6581.
    pub private_data: Vec<u8>,
    /// Inbound RDMA Reads and Atomics to accept at a time.
    pub ird: u16,
    /// Outbound RDMA Reads and Atomics wanted outstanding at a time.
    pub ord: u16,
    /// Use of TCP by MPA. Kernel sockets are always layered.
    pub lower_layer: LowerLayer,
    /// Keep-alive times of an idle connection. `None` takes those of
    /// [`PortConfig::tcp`](urnic_engine::port::PortConfig), and none over the kernel's TCP (RFC
    /// 9293 §3.8.4: "MUST default to off"). Peers' connections take those of
    /// [`ListenParams::keepalive`](urnic_engine::port::ListenParams).
    pub keepalive: Option<KeepAliveTimes>,
    /// Local address. `None`, or an unspecified one, takes the route's. Over the kernel's TCP it
    /// may have a TCP port, which other sockets may share as long as their peers differ; on a
    /// device port 0.
    pub local: Option<SocketAddr>,
    /// Type of service or traffic class, over the kernel's TCP; a device accepts only class 0. The
    /// lowest two bits belong to TCP (RFC 3168 §5). Peers' connections take
    /// [`ListenParams::traffic_class`](urnic_engine::port::ListenParams).
    pub traffic_class: Option<u8>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            startup: StartupConfig::default(),
            private_data: Vec::new(),
            ird: READ_DEPTH,
            ord: READ_DEPTH,
            lower_layer: LowerLayer::default(),
            keepalive: None,
            local: None,
            traffic_class: None,
        }
    }
}

impl ConnectOptions {
    pub(crate) fn offer(&self) -> Offer<'_> {
        Offer { private_data: &self.private_data, ird: self.ird, ord: self.ord }
    }
}

const READ_DEPTH: u16 = 16;
