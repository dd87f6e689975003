//! From a device's name to an endpoint on it.

use std::io;
use std::net::{IpAddr, UdpSocket};

use urnic_engine::limits::ADDRESS_PATIENCE_NS;
use urnic_engine::port::PortConfig;
use urnic_engine::verbs::Rnic;
use urnic_ipoib::device::IpoibDevice;
use urnic_ipoib::ibsim::{IbsimError, Node};
use urnic_ipoib::link::LinkConfig;
use urnic_ipoib::wire::address::Qpn;
use urnic_netdev::interface::Control;
use urnic_netdev::packet::{PacketConfig, PacketSocket};
use urnic_netdev::shm::{Shm, ShmConfig};
use urnic_netdev::tap::{Tap, TapConfig};
use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};
use urnic_netdev::xdp::{XdpConfig, XdpSocket};
use urnic_netdev::{Device, OpenError};

use super::network::Network;
use super::spec::{DeviceSpec, IbPort, Interface, Kind, Socket};
use crate::clock::monotonic_now;
use crate::config::EndpointConfig;
use crate::error::Error;
use crate::handle::endpoint::Endpoint;
use crate::seed::random_octets;

/// Why a device could not be had. The message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel's device was refused.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The place in a simulated fabric was refused.
    #[error(transparent)]
    Ib(#[from] IbsimError),
    /// The endpoint on it could not be made.
    #[error(transparent)]
    Endpoint(#[from] Error),
    /// The kernel would reset the connections of the device.
    #[error(
        "the kernel of this machine has the address {0} itself and would answer for it: give the \
         device another address of the network, or take it from the kernel (`ip addr del`), or use \
         --dev kernel"
    )]
    KernelsAddress(IpAddr),
    /// Less than a host of IP has to carry.
    #[error("{name}: its MTU of {mtu} is below {MTU_MIN}")]
    Mtu {
        /// The interface, or the path of a socket.
        name: String,
        /// Bytes of its largest IP datagram.
        mtu: usize,
    },
    /// No server gave an address.
    #[error(
        "no DHCP server has given {name} an address within {} s: is there one on its link? Else give \
         ip=ADDRESS/LENGTH",
        ADDRESS_PATIENCE_NS / 1_000_000_000
    )]
    NoLease {
        /// The node.
        name: String,
    },
    /// The kernel does not tell of the interface.
    #[error("{action}: {error}")]
    Interface {
        /// What was asked.
        action: String,
        /// What it said.
        error: io::Error,
    },
}

impl DeviceError {
    /// Returns true if the device can be had once the process at its other end listens: the peer of a socket, or
    /// ibsim.
    #[must_use]
    pub const fn is_absent_peer(&self) -> bool {
        match self {
            Self::Device(error) => error.is_absent_peer(),
            Self::Ib(error) => matches!(error, IbsimError::NoSimulator { .. }),
            _ => false,
        }
    }
}

impl DeviceSpec {
    /// Opens the device and makes an endpoint on it.
    ///
    /// # Errors
    /// When the device cannot be had.
    pub fn open(&self, rnic: &Rnic, config: &EndpointConfig) -> Result<Endpoint, DeviceError> {
        match self.kind() {
            Kind::Kernel => Ok(Endpoint::kernel(rnic, config)?),
            Kind::Tap(tap) => {
                check_addresses(tap)?;
                let mut settings = TapConfig::new(tap.name);
                settings.mtu = tap.network.mtu;
                settings.vnet_header = tap.network.vnet.unwrap_or(true);
                let queues = Tap::open_queues(&settings, tap.network.queues)?;
                let mac = made_mac(&tap.network, tap.name.as_str());
                on_interface(tap, mac, queues, rnic, config)
            }
            Kind::Packet(interface) => {
                check_addresses(interface)?;
                let (addresses, mac) = (interface.addresses(), mac_on(interface)?);
                let mut settings = PacketConfig::new(interface.name, &addresses);
                settings.super_frames = interface.network.vnet.unwrap_or(true);
                settings.mac = interface.network.mac;
                let queues = PacketSocket::open_queues(&settings, interface.network.queues)?;
                on_interface(interface, mac, queues, rnic, config)
            }
            Kind::Xdp(interface) => {
                check_addresses(interface)?;
                let (addresses, mac) = (interface.addresses(), mac_on(interface)?);
                let mut settings = XdpConfig::new(interface.name, &addresses);
                settings.queue = interface.queue.unwrap_or(0);
                settings.zero_copy = interface.zerocopy.unwrap_or(false);
                settings.mac = interface.network.mac;
                let device = XdpSocket::open(&settings)?;
                on_interface(interface, mac, vec![device], rnic, config)
            }
            Kind::VhostUser(socket) => {
                let settings = VhostUserConfig {
                    sealed: socket.sealed,
                    memory_max: socket.memory_max,
                    ..shared(socket)
                };
                let queues = VhostUser::open_queues(&settings, socket.network.queues)?;
                on_socket(socket, queues, rnic, config)
            }
            Kind::VirtioUser(socket) => {
                let (settings, count) = (shared(socket), socket.network.queues);
                let queues = if socket.shares {
                    VirtioUser::open_sharing(&settings, count, rnic.publisher())?
                } else {
                    VirtioUser::open_queues(&settings, count)?
                };
                on_socket(socket, queues, rnic, config)
            }
            Kind::Shm(socket) => {
                let &Socket { ref path, ref network, listens, peer, .. } = socket;
                let mtu = network.mtu.unwrap_or(ShmConfig::MTU_DEFAULT);
                let settings = ShmConfig { path: path.clone(), listens, mtu, peer };
                let device = Shm::open(&settings, rnic.publisher())?;
                on_socket(socket, vec![device], rnic, config)
            }
            Kind::Ib(port) => port.endpoint(rnic, config),
        }
    }
}

impl IbPort {
    fn endpoint(&self, rnic: &Rnic, config: &EndpointConfig) -> Result<Endpoint, DeviceError> {
        let mut device = self.open()?;
        let mut network = self.network.clone();
        if network.dhcp {
            // The link asks itself: RFC 4390 is of its kind.
            let lease = device.acquire(ADDRESS_PATIENCE_NS, || monotonic_now().as_nanos());
            let lease = lease.ok_or_else(|| DeviceError::NoLease { name: self.node.clone() })?;
            network.ip = Some((lease.address, lease.prefix_len));
            network.gw = lease.router;
            network.dhcp = false;
        }
        // RFC 4391 §8: the port's GUID makes the link-local address.
        let port = PortConfig {
            interface_identifier: Some(device.fabric().guid().interface_identifier(false)),
            ..identity(&network, [0; 6], config)
        };
        Ok(Endpoint::on_queues(rnic, vec![device], port, config)?)
    }

    /// Opens the link alone, for what is no endpoint on it.
    ///
    /// # Errors
    /// When there is no such simulator, node, or place at it.
    pub fn open(&self) -> Result<IpoibDevice<Node>, DeviceError> {
        let node = Node::open(&self.simulator, &self.node, self.peer)?;
        let [a, b, c, ..] = random_octets()?;
        // A queue pair is what a program gets; those of management are 0 and 1, and the last is of
        // groups.
        let qpn = u32::from_be_bytes([0, a, b, c]).clamp(0x10, 0x00ff_fff0);
        let Network { ip, ip6, gw, gw6, dhcp, .. } = self.network;
        let link = LinkConfig {
            p_key: self.p_key,
            scope: self.scope,
            ipv4: ip,
            dhcp,
            ipv6: ip6,
            gateway_v4: gw,
            gateway_v6: gw6,
            ..LinkConfig::new(Qpn::from_bits(qpn), random_octets()?)
        };
        Ok(IpoibDevice::new(node, link))
    }
}

/// What both ends of a device in shared memory are opened with.
fn shared(socket: &Socket) -> VhostUserConfig {
    let plain = VhostUserConfig::backend(socket.path.clone());
    VhostUserConfig {
        listens: socket.listens,
        mtu: socket.network.mtu.unwrap_or(plain.mtu),
        offloads: socket.network.vnet.unwrap_or(true),
        peer: socket.peer,
        ..plain
    }
}

fn on_interface<D: Device + Send + 'static>(
    interface: &Interface,
    mac: [u8; 6],
    queues: Vec<D>,
    rnic: &Rnic,
    config: &EndpointConfig,
) -> Result<Endpoint, DeviceError> {
    on_ports(&interface.network, interface.name.as_str(), mac, queues, rnic, config)
}

fn on_socket<D: Device + Send + 'static>(
    socket: &Socket,
    queues: Vec<D>,
    rnic: &Rnic,
    config: &EndpointConfig,
) -> Result<Endpoint, DeviceError> {
    let name = socket.path.to_string_lossy();
    let mac = made_mac(&socket.network, &name);
    on_ports(&socket.network, &name, mac, queues, rnic, config)
}

fn on_ports<D: Device + Send + 'static>(
    network: &Network,
    name: &str,
    mac: [u8; 6],
    devices: Vec<D>,
    rnic: &Rnic,
    config: &EndpointConfig,
) -> Result<Endpoint, DeviceError> {
    for device in &devices {
        let mtu = device.capabilities().mtu;
        if mtu < MTU_MIN {
            return Err(DeviceError::Mtu { name: name.to_owned(), mtu });
        }
    }
    Ok(Endpoint::on_queues(rnic, devices, identity(network, mac, config), config)?)
}

fn identity(network: &Network, mac: [u8; 6], config: &EndpointConfig) -> PortConfig {
    PortConfig {
        ipv4: network.ip,
        ipv6: network.ip6,
        gateway_v4: network.gw,
        gateway_v6: network.gw6,
        dhcp: network.dhcp,
        vlan: network.vlan,
        connections_max: config.connections_max,
        life: config.life,
        send_path: config.send_path,
        ..PortConfig::for_dhcp(mac)
    }
}

/// Our Ethernet address on a TAP interface: it must not be that of the kernel's end. What was not
/// given is made from an IP address, locally administered.
fn made_mac(network: &Network, name: &str) -> [u8; 6] {
    let [a, b, c, d] = match (network.ip, network.ip6) {
        (Some((address, _)), _) => address.octets(),
        (None, Some((address, _))) => {
            let octets = address.octets();
            [octets[12], octets[13], octets[14], octets[15]]
        }
        // The same at every start, so that the server gives the same address again.
        (None, None) => {
            let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, octet| {
                (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193)
            });
            hash.to_be_bytes()
        }
    };
    network.mac.unwrap_or([0x02, 0x00, a, b, c, d])
}

/// Our Ethernet address beside the kernel on its interface: the interface's own unless given.
fn mac_on(interface: &Interface) -> Result<[u8; 6], DeviceError> {
    if let Some(mac) = interface.network.mac {
        return Ok(mac);
    }
    let refused = |action: &str| {
        let action = action.to_owned();
        move |error| DeviceError::Interface { action, error }
    };
    let control = Control::new().map_err(refused("a socket for interface requests"))?;
    if control.index(interface.name).is_err() {
        return Err(OpenError::unknown_interface(interface.name).into());
    }
    control.mac(interface.name).map_err(refused(&format!("the address of {}", interface.name)))
}

/// The kernel answers for its own addresses: with a RST to whatever TCP is not its own.
fn check_addresses(interface: &Interface) -> Result<(), DeviceError> {
    for address in interface.addresses() {
        if is_the_kernels(address) {
            return Err(DeviceError::KernelsAddress(address));
        }
    }
    Ok(())
}

/// A socket can be bound to the kernel's own addresses only, but to any where the kernel has none
/// at all, as in a new network namespace; that has no way to reach them then.
fn is_the_kernels(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok_and(|socket| {
        let itself = socket.local_addr();
        itself.is_ok_and(|itself| socket.connect(itself).is_ok())
    })
}

/// What IPv6 and every IPv4 host can carry, less options.
const MTU_MIN: usize = 576;
