//! Opening an endpoint on a device that is given by name.

#[cfg(feature = "ib")]
mod ib;

use std::io;
use std::net::{IpAddr, UdpSocket};

use urnic_engine::limits::ADDRESS_PATIENCE_NS;
use urnic_engine::port::PortConfig;
use urnic_engine::tcp::{self, CongestionKind, EcnUse};
use urnic_engine::verbs::Rnic;
#[cfg(feature = "ib")]
use urnic_ipoib::ibsim::IbsimError;
use urnic_netdev::interface::Control;
use urnic_netdev::packet::{PacketConfig, PacketSocket};
use urnic_netdev::shm::{Shm, ShmConfig};
use urnic_netdev::tap::{Tap, TapConfig};
use urnic_netdev::vhost_user::{VhostUser, VhostUserConfig, VirtioUser};
use urnic_netdev::xdp::{XdpConfig, XdpSocket};
use urnic_netdev::{Device, OpenError};

use super::network::Network;
use super::spec::{DeviceSpec, Interface, Kind, Socket};
use crate::config::EndpointConfig;
use crate::error::Error;
use crate::handle::endpoint::Endpoint;

/// Reason why a device cannot be used. The message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel refused the device.
    #[error(transparent)]
    Device(#[from] OpenError),
    /// The simulated fabric refused a place.
    #[cfg(feature = "ib")]
    #[error(transparent)]
    Ib(#[from] IbsimError),
    /// The endpoint on the device could not be created.
    #[error(transparent)]
    Endpoint(#[from] Error),
    /// The kernel would reset the connections of the device.
    #[error(
        "the kernel of this machine has the address {0} itself and would answer for it: give the \
         device another address of the network, or take it from the kernel (`ip addr del`), or use \
         --dev kernel"
    )]
    KernelsAddress(IpAddr),
    /// The MTU is below the minimum of an IP host.
    #[error("{name}: its MTU of {mtu} is below {MTU_MIN}")]
    Mtu {
        /// The interface, or the path of a socket.
        name: String,
        /// Length of its largest IP datagram in bytes.
        mtu: usize,
    },
    /// No DHCP server gave an address.
    #[error(
        "no DHCP server has given {name} an address within {} s: is there one on its link? Else give \
         ip=ADDRESS/LENGTH",
        ADDRESS_PATIENCE_NS / 1_000_000_000
    )]
    NoLease {
        /// The node.
        name: String,
    },
    /// The kernel refused a request about the interface.
    #[error("{action}: {error}")]
    Interface {
        /// The request.
        action: String,
        /// The kernel's error.
        error: io::Error,
    },
}

impl DeviceError {
    /// Returns true if only the process at the other end is missing: a socket's peer, or ibsim.
    #[must_use]
    pub const fn is_absent_peer(&self) -> bool {
        match self {
            Self::Device(error) => error.is_absent_peer(),
            #[cfg(feature = "ib")]
            Self::Ib(error) => matches!(error, IbsimError::NoSimulator { .. }),
            _ => false,
        }
    }
}

impl DeviceSpec {
    /// Opens the device and creates an endpoint on it.
    ///
    /// # Errors
    /// If the device cannot be used.
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
            #[cfg(feature = "ib")]
            Kind::Ib(port) => port.endpoint(rnic, config),
        }
    }
}

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
    let congestion = network.congestion;
    // DCTCP does nothing without marks (RFC 8257 §3.5), so its connections offer ECN.
    let ecn = match congestion {
        CongestionKind::Dctcp => EcnUse::Ask,
        _ => EcnUse::default(),
    };
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
        tcp: tcp::Config { congestion, ecn, ..tcp::Config::default() },
        ..PortConfig::for_dhcp(mac)
    }
}

/// Made from an IP address unless configured: locally administered, since it must differ from the
/// address of the kernel's end.
fn made_mac(network: &Network, name: &str) -> [u8; 6] {
    let [a, b, c, d] = match (network.ip, network.ip6) {
        (Some((address, _)), _) => address.octets(),
        (None, Some((address, _))) => {
            let octets = address.octets();
            [octets[12], octets[13], octets[14], octets[15]]
        }
        // The same at every start, so that the DHCP server gives the same address again.
        (None, None) => {
            let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, octet| {
                (hash ^ u32::from(octet)).wrapping_mul(0x0100_0193)
            });
            hash.to_be_bytes()
        }
    };
    network.mac.unwrap_or([0x02, 0x00, a, b, c, d])
}

/// The interface's own address unless configured.
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

/// The kernel would answer TCP segments for its own addresses with a RST.
fn check_addresses(interface: &Interface) -> Result<(), DeviceError> {
    for address in interface.addresses() {
        if is_the_kernels(address) {
            return Err(DeviceError::KernelsAddress(address));
        }
    }
    Ok(())
}

/// Binds a socket, which succeeds only for an address of the kernel, and connects it to itself. In
/// a new network namespace, without any address, binding succeeds too, but the connect fails.
fn is_the_kernels(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok_and(|socket| {
        let itself = socket.local_addr();
        itself.is_ok_and(|itself| socket.connect(itself).is_ok())
    })
}

const MTU_MIN: usize = 576;

#[cfg(test)]
mod tests {
    use urnic_engine::verbs::RnicConfig;

    use super::*;

    #[test]
    fn a_device_that_carries_less_than_any_host_is_refused() {
        let path = std::env::temp_dir().join(format!("urnic-mtu-{}", std::process::id()));
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let open = |mtu| {
            let text = format!("shm:{},ip=10.0.0.1/24,listen,mtu={mtu}", path.display());
            text.parse::<DeviceSpec>().unwrap().open(&rnic, &EndpointConfig::default())
        };
        let Err(DeviceError::Mtu { name, mtu }) = open(575) else { panic!("refused") };
        assert_eq!((name.as_ref(), mtu), (path.to_str().unwrap(), 575));
        assert!(open(576).is_ok());
    }

    #[test]
    fn dctcp_asks_for_ecn_and_other_controllers_only_accept_it() {
        use CongestionKind::{Cubic, Dctcp, NewReno};
        for (setting, congestion, ecn) in [
            ("", Cubic, EcnUse::Accept),
            (",congestion=cubic", Cubic, EcnUse::Accept),
            (",congestion=reno", NewReno, EcnUse::Accept),
            (",congestion=dctcp", Dctcp, EcnUse::Ask),
        ] {
            let spec: DeviceSpec = format!("tap:t0,ip=10.1.2.3/24{setting}").parse().unwrap();
            let port = identity(spec.network().unwrap(), [2; 6], &EndpointConfig::default());
            assert_eq!((port.tcp.congestion, port.tcp.ecn), (congestion, ecn), "{setting}");
        }
    }

    /// Two devices of one link may not have the same.
    #[test]
    fn an_ethernet_address_is_made_of_an_address_or_of_the_name() {
        let mac = |text: &str, name: &str| {
            let spec: DeviceSpec = format!("tap:t0,{text}").parse().unwrap();
            made_mac(spec.network().unwrap(), name)
        };
        assert_eq!(mac("ip=10.1.2.3/24", "a"), [2, 0, 10, 1, 2, 3]);
        assert_eq!(mac("ip6=fd00::102:304/64", "a"), [2, 0, 1, 2, 3, 4]);
        assert_eq!(mac("ip=10.1.2.3/24,mac=02:00:00:00:00:07", "a"), [2, 0, 0, 0, 0, 7]);
        let [a, again, b] = ["a", "a", "b"].map(|name| mac("dhcp", name));
        assert_eq!(a, again);
        assert_ne!(a, b);
        assert_eq!(a[..2], [2, 0]);
    }
}
