//! What `--dev` says: the text of a device, read.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use urnic_engine::limits::PORTS_MAX;
use urnic_engine::port::VlanId;
use urnic_ipoib::multicast::Scope;
use urnic_ipoib::wire::address::PKey;
use urnic_netdev::interface::Name;

/// A device as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    text: String,
    kind: Kind,
}

impl DeviceSpec {
    /// What it is.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Whether the kernel's TCP carries the connections.
    #[must_use]
    pub const fn is_kernel(&self) -> bool {
        matches!(self.kind, Kind::Kernel)
    }

    /// Whether frames are copied into memory of the device to be sent.
    #[must_use]
    pub const fn copies_to_send(&self) -> bool {
        match self.kind {
            Kind::Kernel | Kind::Tap(_) | Kind::Packet(_) => false,
            Kind::Xdp(_) | Kind::VhostUser(_) | Kind::VirtioUser(_) | Kind::Ib(_) => true,
        }
    }

    /// Its addresses that are known from the beginning; `None` for those of the machine.
    #[must_use]
    pub fn addresses(&self) -> Option<Vec<IpAddr>> {
        Some(self.network()?.addresses())
    }

    /// The interface of the kernel that it is on; `None` where there is none.
    #[must_use]
    pub const fn interface(&self) -> Option<&Interface> {
        match &self.kind {
            Kind::Kernel | Kind::VhostUser(_) | Kind::VirtioUser(_) | Kind::Ib(_) => None,
            Kind::Tap(interface) | Kind::Packet(interface) | Kind::Xdp(interface) => {
                Some(interface)
            }
        }
    }

    /// This host in the network that the device is on; `None` for the kernel's own.
    #[must_use]
    pub const fn network(&self) -> Option<&Network> {
        match &self.kind {
            Kind::Kernel => None,
            Kind::Tap(interface) | Kind::Packet(interface) | Kind::Xdp(interface) => {
                Some(&interface.network)
            }
            Kind::VhostUser(socket) | Kind::VirtioUser(socket) => Some(&socket.network),
            Kind::Ib(port) => Some(&port.network),
        }
    }

    /// Why no frame could ever reach `remote` from here, where that is known.
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

    /// Its own address from which `remote` is reached, of those that are known from the beginning;
    /// `None` for the kernel's.
    #[must_use]
    pub fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let addresses = self.addresses()?;
        let found = addresses.into_iter().find(|own| own.is_ipv4() == remote.is_ipv4());
        found.filter(|_| !remote.is_loopback() && self.no_way_to(remote).is_none())
    }

    /// Whether the address comes from a DHCP server.
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

/// What kind of device, with its settings.
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
    /// A device in memory that another process has, such as a virtual machine.
    VhostUser(Socket),
    /// The driver of a device that another process is.
    VirtioUser(Socket),
    /// A link of InfiniBand, on a node that ibsim simulates.
    Ib(IbPort),
}

/// An interface, and this host on it. What was not said is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// What the kernel calls it.
    pub name: Name,
    /// This host in its network.
    pub network: Network,
    /// The queue of an AF_XDP socket.
    pub queue: Option<u32>,
    /// Whether AF_XDP is to copy nothing.
    pub zerocopy: Option<bool>,
}

impl Interface {
    /// Its addresses that are known from the beginning.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.network.addresses()
    }
}

/// A socket where a process meets the one at the other end of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Where it is.
    pub path: PathBuf,
    /// This host in the network behind it.
    pub network: Network,
    /// Whether this end makes the socket, or connects to it.
    pub listens: bool,
    /// Whether memory is refused that the peer could take away.
    pub sealed: bool,
}

/// A port of an InfiniBand fabric, and this host's link on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbPort {
    /// The name of ibsim's sockets.
    pub simulator: String,
    /// The node.
    pub node: String,
    /// The partition.
    pub p_key: PKey,
    /// How far the link's multicast reaches.
    pub scope: Scope,
    /// This host in the network of the link.
    pub network: Network,
}

impl IbPort {
    /// Reads `sim=NAME,node=NODE,key=value,…`, in any order.
    fn read(text: &str) -> Result<Self, String> {
        let mut own = [("sim", None), ("node", None), ("pkey", None), ("scope", None)];
        let mut settings = Vec::new();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let Some((_, place)) = own.iter_mut().find(|(name, _)| *name == key) else {
                settings.push(part);
                continue;
            };
            if value.is_empty() {
                return Err(format!("'{part}': a value is wanted"));
            }
            if place.replace(value).is_some() {
                return Err(format!("'{key}' is said twice"));
            }
        }
        let [(_, simulator), (_, node), (_, p_key), (_, scope)] = own;
        let missing = |key| move || format!("{key}= is missing: such as ib:sim=sim,node=Hca2,ip=…");
        let simulator = simulator.ok_or_else(missing("sim"))?.to_owned();
        let node = node.ok_or_else(missing("node"))?.to_owned();
        let p_key = partition(p_key.unwrap_or("ffff"));
        let p_key = p_key.ok_or("'pkey': a partition is wanted, such as ffff or 8001")?;
        let scope = u8::from_str_radix(scope.unwrap_or("2"), 16).ok().and_then(Scope::new);
        let scope =
            scope.ok_or("'scope': a digit from 1 to e is wanted: 2 is the link, 5 a site")?;
        // What is left is read as of other devices, whose names come first.
        let settings = settings.join(",");
        let text = if settings.is_empty() { "ib".into() } else { format!("ib,{settings}") };
        let network = settings_of(&text, &settings, &[])?.network;
        if network.mac.is_some() || network.vlan.is_some() || network.dhcp {
            return Err("mac, vlan and dhcp are of Ethernet: leave them out".into());
        }
        Ok(Self { simulator, node, p_key, scope, network })
    }
}

/// This host in a network. What was not said is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// IPv4 address and prefix length.
    pub ip: Option<(Ipv4Addr, u8)>,
    /// IPv6 address and prefix length.
    pub ip6: Option<(Ipv6Addr, u8)>,
    /// Router for other IPv4 networks.
    pub gw: Option<Ipv4Addr>,
    /// Router for other IPv6 networks.
    pub gw6: Option<Ipv6Addr>,
    /// Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Octets of the largest IP datagram.
    pub mtu: Option<usize>,
    /// Whether super-frames cross the interface.
    pub vnet: Option<bool>,
    /// Queues to use, each with a thread.
    pub queues: usize,
    /// The VLAN that its frames are of.
    pub vlan: Option<VlanId>,
    /// Whether the IPv4 address comes from a DHCP server.
    pub dhcp: bool,
}

impl Network {
    /// Its addresses that are known from the beginning.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let v4 = self.ip.map(|(ip, _)| IpAddr::V4(ip));
        v4.into_iter().chain(self.ip6.map(|(ip, _)| IpAddr::V6(ip))).collect()
    }
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
            ("vhost-user", Some(rest)) => {
                Kind::VhostUser(socket(rest, &["mtu", "vnet", "queues", "connect", "sealed"])?)
            }
            ("virtio-user", Some(rest)) => {
                Kind::VirtioUser(socket(rest, &["mtu", "vnet", "queues", "listen"])?)
            }
            ("ib", Some(rest)) => Kind::Ib(IbPort::read(rest)?),
            ("ib", None) => {
                return Err("which port? Write ib:sim=NAME,node=NODE,ip=192.0.2.1/24".into());
            }
            ("tap" | "packet" | "xdp", None) => {
                return Err(format!("which interface? Write {kind}:NAME,ip=192.0.2.1/24"));
            }
            ("vhost-user" | "virtio-user", None) => {
                return Err(format!("which socket? Write {kind}:PATH,ip=192.0.2.1/24"));
            }
            _ => {
                return Err(format!(
                    "unknown kind of device '{kind}': use kernel, tap:NAME,…, packet:IFACE,…, \
                     xdp:IFACE,…, vhost-user:PATH,…, virtio-user:PATH,… or \
                     ib:sim=NAME,node=NODE,…"
                ));
            }
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

/// Reads `NAME,key=value,…`; `own` are the keys of this kind of device, beside those of all.
fn interface(text: &str, own: &[&str]) -> Result<Interface, String> {
    let (name, settings) = text.split_once(',').unwrap_or((text, ""));
    let name = name.parse().map_err(|error| format!("interface '{name}': {error}"))?;
    let Settings { network, queue, zerocopy, .. } = settings_of(text, settings, own)?;
    Ok(Interface { name, network, queue, zerocopy })
}

/// Reads `PATH,key=value,…`.
fn socket(text: &str, own: &[&str]) -> Result<Socket, String> {
    let (path, settings) = text.split_once(',').unwrap_or((text, ""));
    if path.is_empty() {
        return Err("the path of the socket is missing".into());
    }
    // `sun_path` of unix(7), with its end.
    if path.len() > SOCKET_PATH_LEN_MAX {
        return Err(format!(
            "a path of more than {SOCKET_PATH_LEN_MAX} octets cannot be a socket's"
        ));
    }
    let settings = settings_of(text, settings, own)?;
    // The key is there that asks for the unusual.
    let listens = settings.listens.unwrap_or_else(|| own.contains(&"connect"));
    let sealed = settings.sealed.unwrap_or(false);
    Ok(Socket { path: path.into(), network: settings.network, listens, sealed })
}

/// RFC 4391 §4.1: a partition, whose number is not zero.
fn partition(text: &str) -> Option<PKey> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let key = PKey(u16::from_str_radix(digits, 16).ok()?);
    (key.full_member() != PKey(0x8000)).then_some(key)
}

/// All that can be said of a device.
struct Settings {
    network: Network,
    queue: Option<u32>,
    zerocopy: Option<bool>,
    listens: Option<bool>,
    sealed: Option<bool>,
}

/// Reads the settings of the device in `text`.
fn settings_of(text: &str, settings: &str, own: &[&str]) -> Result<Settings, String> {
    let name = text.split(',').next().unwrap_or_default();
    let network = Network {
        ip: None,
        ip6: None,
        gw: None,
        gw6: None,
        mac: None,
        mtu: None,
        vnet: None,
        queues: 1,
        vlan: None,
        dhcp: false,
    };
    let mut found = Settings { network, queue: None, zerocopy: None, listens: None, sealed: None };
    let mut seen = Vec::new();
    let parts = text.contains(',').then(|| settings.split(',')).into_iter().flatten();
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if !own.contains(&key) && !COMMON.contains(&key) {
            return Err(format!(
                "unknown setting '{key}': allowed are {}, {}",
                COMMON.join(", "),
                own.join(", ")
            ));
        }
        if seen.contains(&key) {
            return Err(format!("'{key}' is said twice"));
        }
        seen.push(key);
        set(&mut found, key, value).map_err(|why| format!("'{part}': {why}"))?;
    }
    let network = &found.network;
    if network.ip.is_none() && network.ip6.is_none() && !network.dhcp {
        return Err(format!("'{name}' needs an address: add ip=ADDRESS/LENGTH, ip6=… or dhcp"));
    }
    if network.dhcp && network.ip.is_some() {
        return Err("with dhcp, the address is not for you to choose: leave ip= out".into());
    }
    if network.dhcp && network.queues > 1 {
        return Err("dhcp works with one queue only: leave queues= out, or give ip=".into());
    }
    check_gateways(network)?;
    Ok(found)
}

fn set(found: &mut Settings, key: &str, value: &str) -> Result<(), String> {
    let network = &mut found.network;
    match key {
        "ip" => network.ip = Some(prefix(value, 32)?),
        "ip6" => network.ip6 = Some(prefix(value, 128)?),
        "gw" => network.gw = Some(value.parse().map_err(|_| "an IPv4 address is wanted")?),
        "gw6" => network.gw6 = Some(value.parse().map_err(|_| "an IPv6 address is wanted")?),
        "mac" => network.mac = Some(mac(value)?),
        "mtu" => network.mtu = Some(number(value)?),
        "vnet" => network.vnet = Some(on_off(value)?),
        "queue" => found.queue = Some(number(value)?),
        "vlan" => {
            let id = VlanId::new(number(value)?);
            network.vlan = Some(id.ok_or("a VLAN is from 1 to 4094")?);
        }
        "dhcp" => network.dhcp = flag(value)?,
        "zerocopy" => found.zerocopy = Some(on_off(value)?),
        "connect" => found.listens = Some(!flag(value)?),
        "listen" => found.listens = Some(flag(value)?),
        "sealed" => found.sealed = Some(flag(value)?),
        "queues" => {
            let queues = Some(number(value)?).filter(|queues| (1..=PORTS_MAX).contains(queues));
            network.queues =
                queues.ok_or_else(|| format!("1 to {PORTS_MAX} queues are possible"))?;
        }
        _ => unreachable!("the key is one of those allowed"),
    }
    Ok(())
}

/// A gateway is a neighbour: it has an address of the network, or a link-local one (RFC 4861 §8).
fn check_gateways(found: &Network) -> Result<(), String> {
    if let (Some((ip, len)), Some(gw)) = (found.ip, found.gw) {
        let host_bits = 32 - u32::from(len);
        let network = |address: Ipv4Addr| u64::from(u32::from(address)) >> host_bits;
        if network(ip) != network(gw) || ip == gw {
            return Err(format!("'gw={gw}' is no neighbour in the network of ip={ip}/{len}"));
        }
    }
    if let (Some((ip, len)), Some(gw)) = (found.ip6, found.gw6) {
        let host_bits = 128 - u32::from(len);
        let network = |address: Ipv6Addr| u128::from(address).checked_shr(host_bits);
        if (network(ip) != network(gw) && !gw.is_unicast_link_local()) || ip == gw {
            return Err(format!("'gw6={gw}' is no neighbour in the network of ip6={ip}/{len}"));
        }
    }
    Ok(())
}

/// `ADDRESS/LENGTH`.
fn prefix<A: FromStr + Into<IpAddr> + Copy>(text: &str, len_max: u8) -> Result<(A, u8), String> {
    let (address, len) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let address: A = address.parse().map_err(|_| {
        let example = if len_max == 32 { "192.0.2.1/24" } else { "2001:db8::1/64" };
        format!("an address with its prefix length is wanted, such as {example}")
    })?;
    let ip: IpAddr = address.into();
    if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
        return Err("not an address a host can have on a link".into());
    }
    let len = match len {
        None => return Err(format!("its prefix length is missing: such as {ip}/{COMMON_LEN}")),
        Some(len) => len
            .parse()
            .ok()
            .filter(|len| (1..=len_max).contains(len))
            .ok_or_else(|| format!("a prefix length is from 1 to {len_max}"))?,
    };
    Ok((address, len))
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let mut octets = [0; 6];
    let mut parts = text.split(':');
    for octet in &mut octets {
        let part = parts.next().filter(|part| part.len() == 2);
        *octet = part
            .and_then(|part| u8::from_str_radix(part, 16).ok())
            .ok_or("an Ethernet address is wanted, such as 02:00:00:00:00:01")?;
    }
    if parts.next().is_some() {
        return Err("an Ethernet address has six octets".into());
    }
    if octets[0] & 1 == 1 {
        return Err("a group address cannot be a host's".into());
    }
    if octets == [0; 6] {
        return Err("the Ethernet address of nobody".into());
    }
    Ok(octets)
}

fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "a number is wanted".into())
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off is wanted".into()),
    }
}

/// A setting that is on when only its name is said.
fn flag(text: &str) -> Result<bool, String> {
    if text.is_empty() { Ok(true) } else { on_off(text) }
}

/// A prefix length that networks of both kinds can have, for an example.
const COMMON_LEN: u8 = 24;

/// Octets of the longest path of a socket.
const SOCKET_PATH_LEN_MAX: usize = 107;

/// Settings of every interface.
const COMMON: [&str; 7] = ["ip", "ip6", "gw", "gw6", "mac", "vlan", "dhcp"];

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<DeviceSpec>().unwrap_err()
    }

    #[test]
    fn every_setting_is_read() {
        let text = "tap:urn0,ip=10.9.0.2/24,ip6=fd00::2/64,mac=02:00:00:00:00:07,mtu=9000,\
                    vnet=off,queues=4,gw=10.9.0.1,gw6=fd00::1";
        let spec: DeviceSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        let Kind::Tap(tap) = spec.kind() else { panic!("{spec:?}") };
        assert_eq!(tap.name.as_str(), "urn0");
        let tap = &tap.network;
        assert_eq!(tap.ip, Some((Ipv4Addr::new(10, 9, 0, 2), 24)));
        assert_eq!(tap.ip6, Some(("fd00::2".parse().unwrap(), 64)));
        assert_eq!(tap.mac, Some([2, 0, 0, 0, 0, 7]));
        assert_eq!((tap.mtu, tap.vnet, tap.queues), (Some(9000), Some(false), 4));
        assert_eq!(tap.gw, Some(Ipv4Addr::new(10, 9, 0, 1)));
        assert_eq!(tap.gw6, Some("fd00::1".parse().unwrap()));
        let xdp: DeviceSpec = "xdp:eth0,queue=3,ip=10.0.0.1/8,zerocopy=on".parse().unwrap();
        let Kind::Xdp(xdp) = xdp.kind() else { panic!("{xdp:?}") };
        assert_eq!((xdp.queue, xdp.zerocopy), (Some(3), Some(true)));
        let packet: DeviceSpec = "packet:eth0,dhcp,vlan=7".parse().unwrap();
        let Kind::Packet(packet) = packet.kind() else { panic!("{packet:?}") };
        assert_eq!((packet.network.dhcp, packet.network.vlan), (true, VlanId::new(7)));
        let text = "vhost-user:/run/a:b.sock,ip=10.0.0.1/8,queues=2,mtu=9000,sealed";
        let spec: DeviceSpec = text.parse().unwrap();
        let Kind::VhostUser(backend) = spec.kind() else { panic!("{spec:?}") };
        assert_eq!(backend.path.to_str(), Some("/run/a:b.sock"));
        assert_eq!((backend.listens, backend.sealed), (true, true));
        assert_eq!((backend.network.queues, backend.network.mtu), (2, Some(9000)));
        assert!(spec.copies_to_send() && spec.interface().is_none());
        for (text, is_listening) in [
            ("virtio-user:s,ip=10.0.0.1/8", false),
            ("virtio-user:s,ip=10.0.0.1/8,listen", true),
            ("virtio-user:s,ip=10.0.0.1/8,listen=off", false),
            ("vhost-user:s,ip=10.0.0.1/8,connect", false),
            ("vhost-user:s,ip=10.0.0.1/8,vnet=off", true),
        ] {
            let spec: DeviceSpec = text.parse().unwrap();
            let (Kind::VhostUser(socket) | Kind::VirtioUser(socket)) = spec.kind() else {
                panic!("{spec:?}")
            };
            assert_eq!(socket.listens, is_listening, "{text}");
            assert_eq!(spec.addresses().unwrap().len(), 1, "{text}");
        }
        assert!("kernel".parse::<DeviceSpec>().unwrap().is_kernel());
        for text in [
            "tap:t,ip=10.0.0.2/31,gw=10.0.0.3",
            "tap:t,ip=10.0.0.2/1,gw=127.0.0.1",
            "tap:t,ip6=fd00::2/64,gw6=fe80::1",
            "packet:t,dhcp,gw=10.0.0.1",
        ] {
            assert!(text.parse::<DeviceSpec>().is_ok(), "{text}");
        }
    }

    #[test]
    fn there_is_a_way_to_neighbours_and_by_a_gateway() {
        let reaches = |dev: &str, peer: &str| {
            let dev: DeviceSpec = dev.parse().unwrap();
            dev.no_way_to(peer.parse().unwrap()).is_none()
        };
        for dev in
            ["kernel", "tap:t,ip=10.0.0.2/8,gw=10.0.0.1", "tap:t,ip=10.0.0.2/1", "tap:t,dhcp"]
        {
            assert!(reaches(dev, "10.9.9.9") && reaches(dev, "11.1.1.1"), "{dev}");
        }
        assert!(reaches("tap:t,ip=10.0.0.2/24", "10.0.0.9"));
        assert!(!reaches("tap:t,ip=10.0.0.2/24", "10.0.1.9"));
        assert!(!reaches("tap:t,ip=10.0.0.2/32", "10.0.0.3"));
        assert!(reaches("tap:t,ip6=fd00::2/64", "fe80::1"));
        assert!(!reaches("tap:t,ip6=fd00::2/128", "fd00::3"));
    }

    #[test]
    fn a_refusal_names_the_part_that_is_wrong() {
        for (text, part) in [
            ("", "unknown kind"),
            ("eth0", "unknown kind of device 'eth0'"),
            ("kernel:x", "no settings"),
            ("tap", "which interface"),
            ("tap:t0", "needs an address"),
            ("tap:a-name-too-long-for-linux,ip=10.0.0.1/8", "interface 'a-name"),
            ("tap:t0,ip=10.0.0", "'ip=10.0.0': an address"),
            ("tap:t0,ip=10.0.0.1", "length is missing: such as 10.0.0.1/24"),
            ("tap:t0,ip6=fd00::1", "length is missing"),
            ("tap:t0,ip=10.0.0.2/24,gw=10.0.1.1", "'gw=10.0.1.1' is no neighbour"),
            ("tap:t0,ip=10.0.0.2/24,gw=10.0.0.2", "no neighbour"),
            ("tap:t0,ip=10.0.0.2/32,gw=10.0.0.3", "no neighbour"),
            ("tap:t0,ip6=fd00::2/64,gw6=fd00:0:0:1::1", "'gw6=fd00:0:0:1::1' is no neighbour"),
            ("tap:t0,ip6=fd00::2/128,gw6=fd00::2", "no neighbour"),
            ("tap:t0,ip=10.0.0.1/33", "from 1 to 32"),
            ("tap:t0,ip=10.0.0.1/0", "from 1 to 32"),
            ("tap:t0,ip=224.0.0.1/4", "not an address a host"),
            ("tap:t0,ip=10.0.0.1/8,ip=10.0.0.2/8", "'ip' is said twice"),
            ("tap:t0,ip=10.0.0.1/8,speed=9", "unknown setting 'speed': allowed are ip,"),
            ("tap:t0,ip=10.0.0.1/8,mac=01:00:00:00:00:00", "group address"),
            ("tap:t0,ip=10.0.0.1/8,mac=2:0:0:0:0:0", "'mac=2:0:0:0:0:0'"),
            ("tap:t0,ip=10.0.0.1/8,vnet=yes", "'vnet=yes': on or off"),
            ("tap:t0,ip=10.0.0.1/8,queues=0", "1 to 64 queues"),
            ("packet:eth0,ip=10.0.0.1/8,queues=65", "1 to 64 queues"),
            ("tap:t0,dhcp,queues=2", "one queue only"),
            ("tap:t0,ip=10.0.0.1/8,vlan=4095", "from 1 to 4094"),
            ("tap:t0,ip=10.0.0.1/8,dhcp", "leave ip= out"),
            ("tap:t0,dhcp=perhaps", "'dhcp=perhaps': on or off"),
            ("packet:eth0,ip=10.0.0.1/8,mtu=9000", "unknown setting 'mtu'"),
            ("xdp:eth0,ip6=fe80::g/64", "'ip6=fe80::g/64'"),
            ("vhost-user", "which socket"),
            ("virtio-user:", "path of the socket"),
            ("vhost-user:s", "'s' needs an address"),
            ("vhost-user:s,ip=10.0.0.1/8,listen", "unknown setting 'listen'"),
            ("virtio-user:s,ip=10.0.0.1/8,sealed", "unknown setting 'sealed'"),
            ("virtio-user:s,ip=10.0.0.1/8,listen=maybe", "'listen=maybe': on or off"),
        ] {
            let why = refusal(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn every_setting_of_a_port_is_read() {
        let ib: DeviceSpec = "ib:sim=x,node=Hca2,pkey=8001,scope=5,ip=10.0.0.1/8".parse().unwrap();
        assert_eq!(ib.addresses().unwrap().len(), 1);
        assert!(ib.interface().is_none() && ib.copies_to_send());
        let Kind::Ib(ib) = ib.kind() else { panic!("{ib:?}") };
        assert_eq!((&*ib.simulator, &*ib.node), ("x", "Hca2"));
        assert_eq!((ib.p_key, ib.scope), (PKey(0x8001), Scope::SITE_LOCAL));
    }

    #[test]
    fn a_refusal_of_a_port_names_the_part_that_is_wrong() {
        for (text, part) in [
            ("ib", "which port"),
            ("ib:node=a,ip=10.0.0.1/8", "sim= is missing"),
            ("ib:sim=a,ip=10.0.0.1/8", "node= is missing"),
            ("ib:sim=a,node=,ip=10.0.0.1/8", "'node=': a value"),
            ("ib:sim=a,node=b", "needs an address"),
            ("ib:sim=a,node=b,node=c,ip=10.0.0.1/8", "'node' is said twice"),
            ("ib:sim=a,node=b,pkey=8000,ip=10.0.0.1/8", "'pkey': a partition"),
            ("ib:sim=a,node=b,pkey=18001,ip=10.0.0.1/8", "'pkey': a partition"),
            ("ib:sim=a,node=b,scope=f,ip=10.0.0.1/8", "'scope': a digit"),
            ("ib:sim=a,node=b,dhcp", "leave them out"),
            ("ib:sim=a,node=b,ip=10.0.0.1/8,mac=02:00:00:00:00:01", "leave them out"),
            ("ib:sim=a,node=b,ip=10.0.0.1/8,mtu=9", "unknown setting 'mtu'"),
        ] {
            let why = refusal(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
