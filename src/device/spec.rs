//! Parser for the `--dev` option: the text of a device.

#[cfg(feature = "ib")]
mod ib;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

#[cfg(feature = "ib")]
pub use ib::IbPort;
use urnic_netdev::interface::Name;
use urnic_netdev::vhost_user::VhostUserConfig;

use super::network::Network;
use super::settings::{Settings, settings_of};

/// A device as named by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    text: String,
    kind: Kind,
}

impl DeviceSpec {
    /// Kind of the device.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns true if the kernel's TCP carries the connections.
    #[must_use]
    pub const fn is_kernel(&self) -> bool {
        matches!(self.kind, Kind::Kernel)
    }

    /// Returns true if frames are copied into memory of the device for sending.
    #[must_use]
    pub const fn copies_to_send(&self) -> bool {
        match self.kind {
            Kind::Kernel | Kind::Tap(_) | Kind::Packet(_) => false,
            Kind::Shm(_) | Kind::VirtioUser(_) => !self.sends_published(),
            Kind::Xdp(_) | Kind::VhostUser(_) => true,
            #[cfg(feature = "ib")]
            Kind::Ib(_) => true,
        }
    }

    /// Returns true if the peer reads published memory
    /// ([`Region::published`](urnic_engine::mem::Region::published)) in place, so that it is not
    /// copied for sending.
    #[must_use]
    pub const fn sends_published(&self) -> bool {
        match &self.kind {
            Kind::Shm(_) => true,
            Kind::VirtioUser(socket) => socket.shares,
            _ => false,
        }
    }

    /// The device's configured addresses; `None` for those of the machine.
    #[must_use]
    pub fn addresses(&self) -> Option<Vec<IpAddr>> {
        Some(self.network()?.addresses())
    }

    /// The kernel's interface under the device; `None` if there is none.
    #[must_use]
    pub const fn interface(&self) -> Option<&Interface> {
        match &self.kind {
            #[cfg(feature = "ib")]
            Kind::Ib(_) => None,
            Kind::Kernel | Kind::VhostUser(_) | Kind::VirtioUser(_) | Kind::Shm(_) => None,
            Kind::Tap(interface) | Kind::Packet(interface) | Kind::Xdp(interface) => {
                Some(interface)
            }
        }
    }

    /// This host in the network of the device; `None` for the kernel's own.
    #[must_use]
    pub const fn network(&self) -> Option<&Network> {
        match &self.kind {
            Kind::Kernel => None,
            Kind::Tap(interface) | Kind::Packet(interface) | Kind::Xdp(interface) => {
                Some(&interface.network)
            }
            Kind::VhostUser(socket) | Kind::VirtioUser(socket) | Kind::Shm(socket) => {
                Some(&socket.network)
            }
            #[cfg(feature = "ib")]
            Kind::Ib(port) => Some(&port.network),
        }
    }

    /// Reason why no frame could ever reach `remote` from here, if one is known.
    #[must_use]
    pub fn no_way_to(&self, remote: IpAddr) -> Option<String> {
        let interface = self.network()?;
        let (is_link, has_gateway, example) = match remote {
            IpAddr::V4(remote) => {
                let (own, len) = interface.ip?;
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                let is_link = u32::from(own) & mask == u32::from(remote) & mask;
                (is_link, interface.gw.is_some(), "gw")
            }
            IpAddr::V6(remote) => {
                let (own, len) = interface.ip6?;
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                let is_link = u128::from(own) & mask == u128::from(remote) & mask;
                (is_link || remote.is_unicast_link_local(), interface.gw6.is_some(), "gw6")
            }
        };
        (!is_link && !has_gateway).then(|| {
            format!(
                "{remote} is not in the network of --dev {self}, which has no gateway: add \
                 {example}=ADDRESS, or correct the address or its prefix length"
            )
        })
    }

    /// The device's configured address for packets to `remote`; `None` if the kernel chooses it.
    #[must_use]
    pub fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let addresses = self.addresses()?;
        let found = addresses.into_iter().find(|own| own.is_ipv4() == remote.is_ipv4());
        found.filter(|_| !remote.is_loopback() && self.no_way_to(remote).is_none())
    }

    /// Returns true if the address comes from a DHCP server.
    #[must_use]
    pub const fn uses_dhcp(&self) -> bool {
        match self.network() {
            None => false,
            Some(network) => network.dhcp,
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Kind of a device, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel's TCP.
    Kernel,
    /// A TAP interface.
    Tap(Interface),
    /// A raw socket on an interface.
    Packet(Interface),
    /// An AF_XDP socket on a queue of an interface.
    Xdp(Interface),
    /// A device in memory of another process, such as a virtual machine.
    VhostUser(Socket),
    /// The driver of a device that another process provides.
    VirtioUser(Socket),
    /// Frames in memory that each of two processes lets the other read.
    Shm(Socket),
    /// A link of InfiniBand, on a node that ibsim simulates.
    #[cfg(feature = "ib")]
    Ib(IbPort),
}

/// An interface, and this host on it. Settings that were not given are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's name of the interface.
    pub name: Name,
    /// This host in its network.
    pub network: Network,
    /// The queue of an AF_XDP socket.
    pub queue: Option<u32>,
    /// AF_XDP must not copy.
    pub zerocopy: Option<bool>,
}

impl Interface {
    /// The interface's configured addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.network.addresses()
    }
}

/// A Unix socket that connects a process with the process at the other end of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Path of the socket.
    pub path: PathBuf,
    /// This host in the network behind it.
    pub network: Network,
    /// True if this end creates the socket, false if it connects to it.
    pub listens: bool,
    /// Memory is refused if the peer could withdraw it.
    pub sealed: bool,
    /// The peer may read published memory in place.
    pub shares: bool,
    /// A user whose processes may be the peer, besides this process's user and root.
    pub peer: Option<u32>,
    /// Limit of a frontend's memory that a backend maps, in bytes.
    pub memory_max: u64,
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').map_or((text, None), |(a, b)| (a, Some(b)));
        let kind = match (kind, rest) {
            ("kernel", None) => Kind::Kernel,
            ("kernel", Some(_)) => return Err("'kernel' has no settings".into()),
            ("tap", Some(rest)) => Kind::Tap(interface(rest, &["mtu", "vnet", "queues"])?),
            ("packet", Some(rest)) => Kind::Packet(interface(rest, &["vnet", "queues"])?),
            ("xdp", Some(rest)) => Kind::Xdp(interface(rest, &["queue", "zerocopy"])?),
            ("vhost-user", Some(rest)) => Kind::VhostUser(socket(
                rest,
                &["mtu", "vnet", "queues", "connect", "sealed", "memory", "peer"],
            )?),
            ("virtio-user", Some(rest)) => Kind::VirtioUser(socket(
                rest,
                &["mtu", "vnet", "queues", "listen", "share", "peer"],
            )?),
            ("shm", Some(rest)) => Kind::Shm(socket(rest, &["mtu", "listen", "peer"])?),
            #[cfg(not(feature = "ib"))]
            ("ib", _) => {
                return Err("'ib' needs a library built with the cargo feature `ib`".into());
            }
            #[cfg(feature = "ib")]
            ("ib", Some(rest)) => Kind::Ib(IbPort::read(rest)?),
            #[cfg(feature = "ib")]
            ("ib", None) => {
                return Err("which port? Write ib:sim=NAME,node=NODE,ip=192.0.2.1/24".into());
            }
            ("tap" | "packet" | "xdp", None) => {
                return Err(format!("which interface? Write {kind}:NAME,ip=192.0.2.1/24"));
            }
            ("vhost-user" | "virtio-user" | "shm", None) => {
                return Err(format!("which socket? Write {kind}:PATH,ip=192.0.2.1/24"));
            }
            _ => {
                return Err(format!(
                    "unknown kind of device '{kind}': use kernel, tap:NAME,…, packet:IFACE,…, \
                     xdp:IFACE,…, vhost-user:PATH,…, virtio-user:PATH,…, shm:PATH,… or \
                     ib:sim=NAME,node=NODE,…"
                ));
            }
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

/// `own` has the keys of this kind of device.
fn interface(text: &str, own: &[&str]) -> Result<Interface, String> {
    let (name, settings) = text.split_once(',').unwrap_or((text, ""));
    let name = name.parse().map_err(|error| format!("interface '{name}': {error}"))?;
    let Settings { network, queue, zerocopy, .. } = settings_of(text, settings, own)?;
    Ok(Interface { name, network, queue, zerocopy })
}

fn socket(text: &str, own: &[&str]) -> Result<Socket, String> {
    let (path, settings) = text.split_once(',').unwrap_or((text, ""));
    if path.is_empty() {
        return Err("the path of the socket is missing".into());
    }
    // `sun_path` of unix(7), including its terminator.
    if path.len() > SOCKET_PATH_LEN_MAX {
        return Err(format!(
            "a path of more than {SOCKET_PATH_LEN_MAX} bytes cannot be a socket's"
        ));
    }
    let settings = settings_of(text, settings, own)?;
    // Each kind of device has a key for its unusual case.
    let listens = settings.listens.unwrap_or_else(|| own.contains(&"connect"));
    let sealed = settings.sealed.unwrap_or(false);
    let shares = settings.shares.unwrap_or(false);
    let memory_max = settings.memory_max.unwrap_or(VhostUserConfig::MEMORY_DEFAULT);
    let Settings { network, peer, .. } = settings;
    Ok(Socket { path: path.into(), network, listens, sealed, shares, peer, memory_max })
}

const SOCKET_PATH_LEN_MAX: usize = 107;

#[cfg(test)]
mod tests;
