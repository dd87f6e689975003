//! The host stack beside the engine: smoltcp handles all frames that are not for an MPA connection
//! (RFC 5044 Figure 11, right side). It answers ARP, neighbour solicitations and pings, resets
//! segments for no socket, and asks for an address by DHCP. [`Host::tcp_connect`],
//! [`Host::tcp_listen`] and [`Host::udp_bind`] open ordinary sockets for the application. The
//! engine's listeners and connections have precedence: their segments never reach the host stack.
//!
//! ```
#![doc = include_str!("../../../examples/host_sockets.rs")]
//! ```

mod device;
mod sequence;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::socket::dhcpv4;
use smoltcp::time::{Duration as SmolDuration, Instant as SmolInstant};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use urnic_netdev::{Capabilities, RxChecksum, TxFrame};

/// The smoltcp sockets behind handles.
pub use smoltcp::iface::SocketHandle;
pub use smoltcp::socket::{tcp, udp};

use crate::limits::{DHCP_RETRY_MS, HOST_BUFFER_LEN_MAX, HOST_SOCKETS_MAX};
use crate::port::config::PortConfig;
use crate::port::host::device::HostDevice;
use crate::port::interface::framing::{LinkFraming, Opened};
use crate::port::interface::outlet::Outlet;
use crate::port::source_ports::SourcePorts;
use crate::secret::{Purpose, Seed};
use crate::time::Instant;

/// smoltcp on a queue of frames.
pub struct Host {
    interface: Interface,
    sockets: SocketSet<'static>,
    device: HostDevice,
    hardware: HardwareAddress,
    /// Seeds for smoltcp's own generator, whose outputs leave the machine.
    seeds: ChaCha20Rng,
    dhcp: Option<SocketHandle>,
    lease: Option<LeaseChange>,
    source_ports: SourcePorts,
    dirty: bool,
    deadline: Option<Instant>,
}

/// Reason why an ordinary socket could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Too many sockets are open (`limits::HOST_SOCKETS_MAX`), or no TCP port is free.
    #[error("no socket or port is free")]
    Exhausted,
    /// Port 0, or a buffer length of 0 or above `limits::HOST_BUFFER_LEN_MAX`.
    #[error("a port or a buffer length that cannot be")]
    Invalid,
    /// The port has no address from which the peer can be reached.
    #[error("the port has no address to reach the peer from")]
    Unaddressable,
    /// Another ordinary socket uses the port.
    #[error("port {0} is taken")]
    PortTaken(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseChange {
    Acquired { address: Ipv4Addr, prefix_len: u8, router: Option<Ipv4Addr> },
    Lost,
}

/// The engine's range begins where this one ends (RFC 6335 §6): they share no ports.
const EPHEMERAL_FIRST: u16 = 32_768;
const EPHEMERAL_LAST: u16 = 49_151;
const UDP_DATAGRAMS_MAX: usize = 64;

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Host {
    pub(crate) fn new(
        config: &PortConfig,
        capabilities: &Capabilities,
        framing: LinkFraming,
        seed: &Seed,
        port_number: u32,
    ) -> Self {
        let hardware = if framing.has_link_layer() {
            HardwareAddress::Ethernet(EthernetAddress(config.mac))
        } else {
            HardwareAddress::Ip
        };
        let keys = seed.port_keys();
        let mut device = HostDevice::new(framing, capabilities.mtu, keys.host_sequence_numbers);
        let mut seeds = ChaCha20Rng::from_seed(seed.key(Purpose::HostStack, port_number));
        let interface = interface(hardware, &mut seeds, &mut device);
        let mut sockets = SocketSet::new(Vec::new());
        // RFC 2131 §2 identifies a client by its link address; without one, smoltcp cannot ask.
        let asks = config.dhcp && framing.has_link_layer();
        let dhcp = asks.then(|| sockets.add(dhcp_client()));
        let mut host = Self {
            interface,
            sockets,
            device,
            hardware,
            seeds,
            dhcp,
            lease: None,
            source_ports: SourcePorts::new(keys.source_ports, EPHEMERAL_FIRST..=EPHEMERAL_LAST),
            dirty: true,
            deadline: None,
        };
        host.set_addresses(config);
        host
    }

    /// Opens a TCP connection with buffers of `buffer_len` bytes. The socket's state shows when it
    /// is established or has failed. Errors: see [`HostError`].
    pub fn tcp_connect(
        &mut self,
        remote: SocketAddr,
        buffer_len: usize,
    ) -> Result<SocketHandle, HostError> {
        if remote.port() == 0 {
            return Err(HostError::Invalid);
        }
        let local = self.free_tcp_port(remote)?;
        let mut socket = tcp_socket(buffer_len)?;
        let context = self.interface.context();
        socket.connect(context, remote, local).map_err(|_| HostError::Unaddressable)?;
        self.add(socket)
    }

    /// Listens for one TCP connection on a port, with buffers of `buffer_len` bytes. The socket
    /// becomes that connection; further sockets may listen on the same port. Errors: see
    /// [`HostError`].
    pub fn tcp_listen(
        &mut self,
        tcp_port: u16,
        buffer_len: usize,
    ) -> Result<SocketHandle, HostError> {
        let mut socket = tcp_socket(buffer_len)?;
        socket.listen(tcp_port).map_err(|_| HostError::Invalid)?;
        self.add(socket)
    }

    /// Opens a UDP socket with `buffer_len` bytes for datagrams each way. Errors: see
    /// [`HostError`].
    pub fn udp_bind(
        &mut self,
        udp_port: u16,
        buffer_len: usize,
    ) -> Result<SocketHandle, HostError> {
        let taken = self.sockets.iter().any(|(_, socket)| match socket {
            smoltcp::socket::Socket::Udp(socket) => socket.endpoint().port == udp_port,
            _ => false,
        });
        if taken {
            return Err(HostError::PortTaken(udp_port));
        }
        check_buffer_len(buffer_len)?;
        let buffer = || {
            let metadata = vec![udp::PacketMetadata::EMPTY; UDP_DATAGRAMS_MAX];
            udp::PacketBuffer::new(metadata, vec![0; buffer_len])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(udp_port).map_err(|_| HostError::Invalid)?;
        self.add(socket)
    }

    /// A TCP socket. Panics if the handle is not that of a TCP socket of this host: a caller's bug.
    pub fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// A UDP socket. Panics if the handle is not that of a UDP socket of this host: a caller's bug.
    pub fn udp(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Removes a socket. Close a TCP connection first, and wait for its end: unsent bytes are lost.
    /// Panics if the handle is not of a socket of this host.
    pub fn remove(&mut self, handle: SocketHandle) {
        self.sockets.remove(handle);
    }

    fn add(
        &mut self,
        socket: impl smoltcp::socket::AnySocket<'static>,
    ) -> Result<SocketHandle, HostError> {
        if self.sockets.iter().count() >= HOST_SOCKETS_MAX {
            return Err(HostError::Exhausted);
        }
        self.dirty = true;
        Ok(self.sockets.add(socket))
    }

    fn free_tcp_port(&mut self, remote: SocketAddr) -> Result<u16, HostError> {
        let Self { source_ports, sockets, .. } = self;
        // smoltcp chooses the local address later, from a few.
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let is_free = |candidate| !has_tcp_port(sockets, candidate);
        source_ports.choose(unspecified, remote, is_free).ok_or(HostError::Exhausted)
    }

    pub(crate) fn has_tcp_port(&self, tcp_port: u16) -> bool {
        has_tcp_port(&self.sockets, tcp_port)
    }

    /// Takes a frame that is not for an MPA connection; its TCP checksum was verified.
    pub(crate) fn handle_frame(&mut self, opened: &Opened<'_>, checksum: RxChecksum) {
        self.dirty |= self.device.push_received(opened, checksum);
    }

    /// Another queue of the interface answers the frame if it is a query, not smoltcp.
    pub(crate) fn overhear(&mut self, now: Instant, opened: &Opened<'_>, checksum: RxChecksum) {
        let waiting = self.device.set_aside();
        self.device.push_received(opened, checksum);
        let at = smoltcp_time(now);
        self.interface.poll_ingress_single(at, &mut self.device, &mut self.sockets);
        self.device.restore(waiting);
        // A socket may have waited for the neighbour.
        self.dirty = true;
    }

    pub(crate) const fn touch(&mut self) {
        self.dirty = true;
    }

    /// Polls smoltcp and sends at most `room` of its frames.
    pub(crate) fn poll_transmit(&mut self, now: Instant, room: usize, outlet: &mut Outlet<'_>) {
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if self.dirty || due {
            self.dirty = false;
            self.work(now);
        }
        for _ in 0..room {
            if outlet.is_full() {
                break;
            }
            let Some(frame) = self.device.next_to_send(now) else { break };
            // Dropped as if lost on the link.
            let _lost = outlet.send(&TxFrame::whole(&frame));
            self.device.recycle(frame);
        }
    }

    fn work(&mut self, now: Instant) {
        let at = smoltcp_time(now);
        self.interface.poll(at, &mut self.device, &mut self.sockets);
        if let Some(handle) = self.dhcp {
            self.lease =
                lease_change(self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle)).or(self.lease);
        }
        let next = self.interface.poll_at(at, &self.sockets);
        self.deadline = next.map(|at| {
            Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0) * 1000).max(now)
        });
        // smoltcp sends what did not fit when there is room again.
        if self.device.is_full() {
            self.dirty = true;
        }
    }

    pub(crate) fn has_sockets(&self) -> bool {
        let own = usize::from(self.dhcp.is_some());
        self.sockets.iter().nth(own).is_some()
    }

    pub(crate) fn has_frames(&self) -> bool {
        self.device.has_frames()
    }

    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the last change of the DHCP lease since the last call.
    pub(crate) const fn apply_lease_change(&mut self) -> Option<LeaseChange> {
        self.lease.take()
    }

    pub(crate) fn set_addresses(&mut self, config: &PortConfig) {
        let v4 = config.ipv4.map(|(at, prefix)| IpCidr::new(IpAddress::Ipv4(at), prefix));
        let v6 = config.ipv6.map(|(at, prefix)| IpCidr::new(IpAddress::Ipv6(at), prefix));
        let link_local = IpCidr::new(IpAddress::Ipv6(config.link_local()), LINK_LOCAL_PREFIX_LEN);
        self.interface.update_ip_addrs(|addresses| {
            addresses.clear();
            for address in v4.into_iter().chain(v6).chain([link_local]) {
                let pushed = addresses.push(address);
                assert!(pushed.is_ok(), "an interface holds four addresses");
            }
        });
        let routes = self.interface.routes_mut();
        routes.remove_default_ipv4_route();
        routes.remove_default_ipv6_route();
        if let Some(router) = config.gateway_v4 {
            let added = routes.add_default_ipv4_route(router);
            assert!(added.is_ok(), "a table holds two routes");
        }
        if let Some(router) = config.gateway_v6 {
            let added = routes.add_default_ipv6_route(router);
            assert!(added.is_ok(), "a table holds two routes");
        }
        self.dirty = true;
    }

    /// smoltcp fixes an interface's MTU: this creates a new one. Its generator has another seed.
    pub(crate) fn set_mtu(&mut self, config: &PortConfig, mtu: usize) {
        self.device.set_mtu(mtu);
        self.interface = interface(self.hardware, &mut self.seeds, &mut self.device);
        self.set_addresses(config);
    }
}

/// RFC 4291 §2.5.6.
const LINK_LOCAL_PREFIX_LEN: u8 = 64;

fn has_tcp_port(sockets: &SocketSet<'_>, tcp_port: u16) -> bool {
    sockets.iter().any(|(_, socket)| match socket {
        smoltcp::socket::Socket::Tcp(socket) => {
            let local = socket.local_endpoint().map(|endpoint| endpoint.port);
            local.unwrap_or_else(|| socket.listen_endpoint().port) == tcp_port
        }
        _ => false,
    })
}

fn interface(
    hardware: HardwareAddress,
    seeds: &mut ChaCha20Rng,
    device: &mut HostDevice,
) -> Interface {
    let mut config = Config::new(hardware);
    // A few outputs of smoltcp's generator reveal its state: nothing else may depend on the seed.
    config.random_seed = seeds.next_u64();
    Interface::new(config, device, SmolInstant::from_micros(0))
}

fn dhcp_client() -> dhcpv4::Socket<'static> {
    let mut client = dhcpv4::Socket::new();
    // The first request may be sent before a bridge forwards frames of a new port.
    let again_after = SmolDuration::from_millis(DHCP_RETRY_MS);
    let mut retries = dhcpv4::RetryConfig::default();
    retries.discover_timeout = again_after;
    retries.initial_request_timeout = again_after;
    client.set_retry_config(retries);
    client
}

fn lease_change(socket: &mut dhcpv4::Socket<'_>) -> Option<LeaseChange> {
    Some(match socket.poll()? {
        dhcpv4::Event::Configured(lease) => LeaseChange::Acquired {
            address: lease.address.address(),
            prefix_len: lease.address.prefix_len(),
            router: lease.router,
        },
        dhcpv4::Event::Deconfigured => LeaseChange::Lost,
    })
}

fn tcp_socket(buffer_len: usize) -> Result<tcp::Socket<'static>, HostError> {
    check_buffer_len(buffer_len)?;
    let buffer = || tcp::SocketBuffer::new(vec![0; buffer_len]);
    Ok(tcp::Socket::new(buffer(), buffer()))
}

fn check_buffer_len(len: usize) -> Result<(), HostError> {
    if (1..=HOST_BUFFER_LEN_MAX).contains(&len) { Ok(()) } else { Err(HostError::Invalid) }
}

fn smoltcp_time(now: Instant) -> SmolInstant {
    SmolInstant::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX))
}
