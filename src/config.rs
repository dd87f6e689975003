//! What endpoints and connections are made with.
//!
//! All configuration is plain: structs with public fields and a default for each of them, written as
//! `EndpointConfig { spin, ..EndpointConfig::default() }`. Those that need something which has no
//! default have a constructor for the rest: [`QpConfig::new`](crate::QpConfig::new) takes the
//! completion queue, [`PortConfig::for_ipv4`](crate::PortConfig::for_ipv4) and
//! [`PortConfig::for_dhcp`](crate::PortConfig::for_dhcp) the address.

use std::net::SocketAddr;

use urnic_engine::limits::CONNECTIONS_USUAL;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::LowerLayer;
use urnic_engine::stream::SendPath;
use urnic_engine::stream::life::LifeTimes;
use urnic_engine::tcp::KeepAliveTimes;
use urnic_engine::time::Duration;

/// How an endpoint's worker runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// Whether a thread of its own turns the endpoint. Otherwise the threads that wait for
    /// something (a completion, a connection) turn it meanwhile, and nothing happens while none
    /// does: the fewest hand-overs, so the lowest latency, for programs that are always waiting.
    pub own_thread: bool,
    /// With a thread of its own: lets threads that look again and again turn the endpoint too
    /// ([`Endpoint::poll_turn`](crate::Endpoint::poll_turn)). Its own thread sleeps while they do. For
    /// programs of which it is not known whether they look or sleep.
    pub polled: bool,
    /// Connections at a time, at most [`CONNECTIONS_MAX`](urnic_engine::limits::CONNECTIONS_MAX), over the
    /// kernel's TCP. Another one is refused, or closed when it comes from a peer. That of an engine is in
    /// [`PortConfig::connections_max`](urnic_engine::port::PortConfig).
    pub connections_max: usize,
    /// How long to look for work before sleeping. Longer answers sooner, at the price of a busy
    /// core.
    pub spin: Duration,
    /// Core to pin the endpoint's thread to; those of further queues go on the cores after it.
    pub core: Option<usize>,
    /// How long data may stay unacknowledged before a connection over the kernel's TCP is given up
    /// (R2 of RFC 9293 §3.8.3), at least; a peer that keeps its window closed and answers probes is
    /// waited for (MUST-37). That of an engine is in [`PortConfig::tcp`](urnic_engine::port::PortConfig).
    pub user_timeout: Duration,
    /// How long the timers of a connection's life run, over the kernel's TCP. Those of an engine are
    /// in [`PortConfig::life`](urnic_engine::port::PortConfig::life).
    pub life: LifeTimes,
    /// How long an acknowledgment may wait for the rest of a burst, at least, on a device: see
    /// [`tcp::Config::ack_hold`](urnic_engine::tcp::Config::ack_hold). A segment that only acknowledges
    /// costs both ends and all between as much as one with data.
    pub ack_hold: Duration,
    /// Whether payload is gathered from where it is or copied to be sent, over the kernel's TCP. That of
    /// an engine is in [`PortConfig::send_path`](urnic_engine::port::PortConfig::send_path).
    pub send_path: SendPath,
}

impl Default for EndpointConfig {
    /// A thread of its own that looks for work for 50 µs, on any core; peers have 100 s to answer;
    /// acknowledgments wait for 25 µs.
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

/// What a connection is opened with.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// MPA settings.
    pub startup: StartupConfig,
    /// Private Data for the peer's application: at most 512 bytes, 508 with RFC 6581.
    pub private_data: Vec<u8>,
    /// Inbound RDMA Reads and Atomics to accept at a time.
    pub ird: u16,
    /// Outbound RDMA Reads and Atomics wanted open at a time.
    pub ord: u16,
    /// How MPA uses TCP. Kernel sockets are always layered.
    pub lower_layer: LowerLayer,
    /// When the peer of an idle connection is probed, and given up: `None` for what
    /// [`PortConfig::tcp`](urnic_engine::port::PortConfig) says, and for never over the kernel's TCP
    /// (RFC 9293 §3.8.4: keep-alives "MUST default to off"). Of connections that peers open,
    /// [`ListenParams::keepalive`](urnic_engine::port::ListenParams) says it.
    pub keepalive: Option<KeepAliveTimes>,
    /// The address to connect from: `None`, or an unspecified one, for that of the route. Over the kernel's
    /// TCP it may have a TCP port, which other sockets may have too as long as the peers differ; on a device it
    /// has port 0.
    pub local: Option<SocketAddr>,
    /// The byte of the IP header that is type of service and traffic class, over the kernel's TCP; its lowest
    /// two bits are TCP's own (RFC 3168 §5). A device of urnic's own takes no other class than 0. Of
    /// connections that peers open, [`ListenParams::traffic_class`](urnic_engine::port::ListenParams) says it.
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

/// Reads and Atomics open at a time unless told otherwise.
const READ_DEPTH: u16 = 16;
