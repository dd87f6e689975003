//! The host stack beside the engine: smoltcp carries what is not for an MPA connection
//! (RFC 5044 Figure 11, right side).
//!
//! It answers ARP, neighbour solicitations and pings, resets what nobody wants, asks for an address
//! by DHCP, and has ordinary TCP and UDP sockets for the application: [`Host::tcp_connect`],
//! [`Host::tcp_listen`], [`Host::udp_bind`] give a handle, and [`Host::tcp`], [`Host::udp`] the
//! socket behind it, which is smoltcp's own. The engine's listeners and connections come first: a
//! segment that is theirs never gets here.
//!
//! ```
//! use urnic::driver::{Lockstep, Poller};
//! use urnic::port::{Port, PortConfig};
//! use urnic::time::{Duration, Instant};
//! use urnic::verbs::{Rnic, RnicConfig};
//! use urnic_netdev::{Device, memory};
//!
//! let (a, b) = memory::pair(memory::LinkConfig::default());
//! let rnic = Rnic::new(RnicConfig { seed: 1 });
//! let port = |last, device: &memory::MemoryDevice| {
//!     Port::new(&rnic, PortConfig::for_ipv4([10, 0, 0, last].into()), device.capabilities())
//! };
//! let (port_a, port_b) = (port(1, &a), port(2, &b));
//! let mut link = Lockstep::new(Poller::new(port_a, a), Poller::new(port_b, b));
//!
//! let server = link.b.port.host_mut().tcp_listen(80, 4096)?;
//! let client = link.a.port.host_mut().tcp_connect(([10, 0, 0, 2], 80).into(), 4096)?;
//! let deadline = Instant::ZERO + Duration::from_secs(1);
//! assert!(link.run_until(deadline, |link| link.a.port.host_mut().tcp(client).may_send()));
//! link.a.port.host_mut().tcp(client).send_slice(b"hello").expect("the connection is open");
//! assert!(link.run_until(deadline, |link| link.b.port.host_mut().tcp(server).recv_queue() == 5));
//! # Ok::<(), urnic::port::host::HostError>(())
//! ```

mod queue;

use std::net::{Ipv4Addr, SocketAddr};

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use urnic_netdev::{Capabilities, RxChecksum, TransmitError, TxChecksum, TxFrame};

/// The sockets behind handles, which are smoltcp's.
pub use smoltcp::iface::SocketHandle;
pub use smoltcp::socket::{tcp, udp};

use crate::limits::{HOST_BUFFER_LEN_MAX, HOST_SOCKETS_MAX};
use crate::port::PortConfig;
use crate::port::framing::{Framing, Opened};
use crate::port::host::queue::Queue;
use crate::time::Instant;

/// smoltcp on a queue of frames.
pub struct Host {
    interface: Interface,
    sockets: SocketSet<'static>,
    queue: Queue,
    hardware: HardwareAddress,
    seed: u64,
    dhcp: Option<SocketHandle>,
    lease: Option<LeaseNews>,
    ephemeral: u16,
    /// smoltcp has something to look at.
    dirty: bool,
    deadline: Option<Instant>,
}

/// Why an ordinary socket could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Too many sockets are open (`limits::HOST_SOCKETS_MAX`), or no TCP port is free.
    #[error("no socket or port is free")]
    Exhausted,
    /// Port 0, or a buffer of no octets or more than `limits::HOST_BUFFER_LEN_MAX`.
    #[error("a port or a buffer length that cannot be")]
    Invalid,
    /// The port has no address from which the peer can be reached.
    #[error("the port has no address to reach the peer from")]
    Unaddressable,
    /// Another ordinary socket has the port.
    #[error("port {0} is taken")]
    PortTaken(u16),
}

/// What DHCP has brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseNews {
    Acquired { address: Ipv4Addr, prefix_len: u8, router: Option<Ipv4Addr> },
    Lost,
}

/// First port of connections opened by ordinary sockets. The engine's own begin where these end
/// (RFC 6335 §6), so that neither needs to know the other's.
const EPHEMERAL_FIRST: u16 = 32_768;
const EPHEMERAL_END: u16 = 49_152;
/// Datagrams that a UDP socket keeps in each direction, at most.
const UDP_DATAGRAMS_MAX: usize = 64;

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Host {
    pub(crate) fn new(
        config: &PortConfig,
        capabilities: &Capabilities,
        framing: Framing,
        seed: u64,
    ) -> Self {
        let hardware = if framing.has_link_layer() {
            HardwareAddress::Ethernet(EthernetAddress(config.mac))
        } else {
            HardwareAddress::Ip
        };
        let mut queue = Queue::new(framing, capabilities.mtu);
        let interface = interface(hardware, seed, &mut queue);
        let mut sockets = SocketSet::new(Vec::new());
        let dhcp = config.dhcp.then(|| sockets.add(dhcpv4::Socket::new()));
        let mut host = Self {
            interface,
            sockets,
            queue,
            hardware,
            seed,
            dhcp,
            lease: None,
            ephemeral: EPHEMERAL_FIRST,
            dirty: true,
            deadline: None,
        };
        host.set_addresses(config);
        host
    }

    // ---- the application's sockets ----

    /// Opens a TCP connection with buffers of `buffer_len` octets. It is established, or not, in
    /// its own time: see the socket's state.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn tcp_connect(
        &mut self,
        remote: SocketAddr,
        buffer_len: usize,
    ) -> Result<SocketHandle, HostError> {
        if remote.port() == 0 {
            return Err(HostError::Invalid);
        }
        let local = self.free_tcp_port()?;
        let mut socket = tcp_socket(buffer_len)?;
        let context = self.interface.context();
        socket.connect(context, remote, local).map_err(|_| HostError::Unaddressable)?;
        self.add(socket)
    }

    /// Waits for one TCP connection to a port, with buffers of `buffer_len` octets. The socket
    /// becomes that connection; others need sockets of their own, which may wait on the same port.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn tcp_listen(
        &mut self,
        tcp_port: u16,
        buffer_len: usize,
    ) -> Result<SocketHandle, HostError> {
        let mut socket = tcp_socket(buffer_len)?;
        socket.listen(tcp_port).map_err(|_| HostError::Invalid)?;
        self.add(socket)
    }

    /// Opens a UDP socket on a port, with room for `buffer_len` octets of datagrams each way.
    ///
    /// # Errors
    /// See [`HostError`].
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

    /// A TCP socket.
    ///
    /// # Panics
    /// When the handle is not that of a TCP socket of this host: a caller's bug.
    pub fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// A UDP socket.
    ///
    /// # Panics
    /// When the handle is not that of a UDP socket of this host: a caller's bug.
    pub fn udp(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Drops a socket. Close a TCP connection first, and wait for its end: what was not sent by
    /// then is lost.
    ///
    /// # Panics
    /// When the handle is not of a socket of this host: a caller's bug.
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

    fn free_tcp_port(&mut self) -> Result<u16, HostError> {
        for _ in EPHEMERAL_FIRST..EPHEMERAL_END {
            let candidate = self.ephemeral;
            let next = candidate + 1;
            self.ephemeral = if next < EPHEMERAL_END { next } else { EPHEMERAL_FIRST };
            if !self.has_tcp_port(candidate) {
                return Ok(candidate);
            }
        }
        Err(HostError::Exhausted)
    }

    /// Whether a socket uses a TCP port.
    pub(crate) fn has_tcp_port(&self, tcp_port: u16) -> bool {
        self.sockets.iter().any(|(_, socket)| match socket {
            smoltcp::socket::Socket::Tcp(socket) => {
                let local = socket.local_endpoint().map(|endpoint| endpoint.port);
                local.unwrap_or_else(|| socket.listen_endpoint().port) == tcp_port
            }
            _ => false,
        })
    }

    // ---- frames ----

    /// Takes a frame that is not for an MPA connection; the TCP checksum in it was verified.
    pub(crate) fn handle_frame(&mut self, opened: &Opened<'_>, checksum: RxChecksum) {
        self.dirty |= self.queue.push_received(opened, checksum);
    }

    /// Takes in at once what another port of the station has heard of a neighbour, ahead of frames
    /// that wait. That port answers, if it was a question: what smoltcp says to it is left unsaid.
    pub(crate) fn overhear(&mut self, now: Instant, opened: &Opened<'_>, checksum: RxChecksum) {
        let waiting = self.queue.set_aside();
        self.queue.push_received(opened, checksum);
        let at = smoltcp_time(now);
        self.interface.poll_ingress_single(at, &mut self.queue, &mut self.sockets);
        self.queue.restore(waiting);
        // Somebody may have waited for it.
        self.dirty = true;
    }

    /// The application, or the port, may have done something that smoltcp has to see.
    pub(crate) const fn touch(&mut self) {
        self.dirty = true;
    }

    /// Lets smoltcp work and sends at most `room` of the frames that it has to say; returns their
    /// number.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        room: usize,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if self.dirty || due {
            self.dirty = false;
            self.work(now);
        }
        let mut sent = 0;
        while sent < room
            && let Some(frame) = self.queue.next_to_send(now)
        {
            let taken = transmit(&TxFrame {
                head: &frame,
                payload: &[],
                checksum: TxChecksum::Complete,
                segment_size: None,
            });
            self.queue.recycle(frame);
            // As lost as on any wire.
            sent += usize::from(taken.is_ok());
        }
        sent
    }

    fn work(&mut self, now: Instant) {
        let at = smoltcp_time(now);
        self.interface.poll(at, &mut self.queue, &mut self.sockets);
        if let Some(handle) = self.dhcp {
            self.lease = news(self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle)).or(self.lease);
        }
        let next = self.interface.poll_at(at, &self.sockets);
        self.deadline = next.map(|at| {
            Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0) * 1000).max(now)
        });
        // What smoltcp could not say for lack of room, it says when there is room again.
        if self.queue.is_full() {
            self.dirty = true;
        }
    }

    /// Whether frames wait for the device.
    pub(crate) fn has_frames(&self) -> bool {
        self.queue.has_frames()
    }

    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    // ---- identity ----

    /// What DHCP has brought about since the last call.
    pub(crate) const fn take_lease_news(&mut self) -> Option<LeaseNews> {
        self.lease.take()
    }

    /// Takes addresses and routers from `config`.
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

    /// The device's MTU has changed. smoltcp fixes it when an interface is made: there is a new one.
    /// Sockets stay.
    pub(crate) fn set_mtu(&mut self, config: &PortConfig, mtu: usize) {
        self.queue.set_mtu(mtu);
        self.interface = interface(self.hardware, self.seed, &mut self.queue);
        self.set_addresses(config);
    }
}

/// RFC 4291 §2.5.6.
const LINK_LOCAL_PREFIX_LEN: u8 = 64;

fn interface(hardware: HardwareAddress, seed: u64, queue: &mut Queue) -> Interface {
    let mut config = Config::new(hardware);
    config.random_seed = seed;
    Interface::new(config, queue, SmolInstant::from_micros(0))
}

fn news(socket: &mut dhcpv4::Socket<'_>) -> Option<LeaseNews> {
    Some(match socket.poll()? {
        dhcpv4::Event::Configured(lease) => LeaseNews::Acquired {
            address: lease.address.address(),
            prefix_len: lease.address.prefix_len(),
            router: lease.router,
        },
        dhcpv4::Event::Deconfigured => LeaseNews::Lost,
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
