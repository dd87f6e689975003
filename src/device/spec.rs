//! What `--dev` says: the text of a device, read.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use urnic_engine::limits::PORTS_MAX;
use urnic_engine::port::VlanId;
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
            Kind::Xdp(_) => true,
        }
    }

    /// Its addresses that are known from the beginning; `None` for those of the machine.
    #[must_use]
    pub fn addresses(&self) -> Option<Vec<IpAddr>> {
        match &self.kind {
            Kind::Kernel => None,
            Kind::Tap(interface) | Kind::Packet(interface) | Kind::Xdp(interface) => {
                Some(interface.addresses())
            }
        }
    }

    /// The interface; `None` for the kernel's own.
    #[must_use]
    pub const fn interface(&self) -> Option<&Interface> {
        match &self.kind {
            Kind::Kernel => None,
            Kind::Tap(interface) | Kind::Packet(interface) | Kind::Xdp(interface) => {
                Some(interface)
            }
        }
    }

    /// Why no frame could ever reach `remote` from here, where that is known.
    #[must_use]
    pub fn no_way_to(&self, remote: IpAddr) -> Option<String> {
        let interface = self.interface()?;
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
        match &self.kind {
            Kind::Kernel => false,
            Kind::Tap(interface) | Kind::Packet(interface) | Kind::Xdp(interface) => interface.dhcp,
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
}

/// An interface, and this host's addresses on it. What was not said is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// What the kernel calls it.
    pub name: Name,
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
    /// The queue of an AF_XDP socket.
    pub queue: Option<u32>,
    /// Queues to use, each with a thread.
    pub queues: usize,
    /// Whether AF_XDP is to copy nothing.
    pub zerocopy: Option<bool>,
    /// The VLAN that its frames are of.
    pub vlan: Option<VlanId>,
    /// Whether the IPv4 address comes from a DHCP server.
    pub dhcp: bool,
}

impl Interface {
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
            ("tap" | "packet" | "xdp", None) => {
                return Err(format!("which interface? Write {kind}:NAME,ip=192.0.2.1/24"));
            }
            _ => {
                return Err(format!(
                    "unknown kind of device '{kind}': use kernel, tap:NAME,…, packet:IFACE,… or \
                     xdp:IFACE,…"
                ));
            }
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

/// Reads `NAME,key=value,…`; `own` are the keys of this kind of device, beside those of all.
fn interface(text: &str, own: &[&str]) -> Result<Interface, String> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let name = name.parse().map_err(|error| format!("interface '{name}': {error}"))?;
    let mut found = Interface {
        name,
        ip: None,
        ip6: None,
        gw: None,
        gw6: None,
        mac: None,
        mtu: None,
        vnet: None,
        queue: None,
        queues: 1,
        zerocopy: None,
        vlan: None,
        dhcp: false,
    };
    let mut seen = Vec::new();
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
    if found.ip.is_none() && found.ip6.is_none() && !found.dhcp {
        return Err(format!("'{name}' needs an address: add ip=ADDRESS/LENGTH, ip6=… or dhcp"));
    }
    if found.dhcp && found.ip.is_some() {
        return Err("with dhcp, the address is not for you to choose: leave ip= out".into());
    }
    if found.dhcp && found.queues > 1 {
        return Err("dhcp works with one queue only: leave queues= out, or give ip=".into());
    }
    check_gateways(&found)?;
    Ok(found)
}

fn set(found: &mut Interface, key: &str, value: &str) -> Result<(), String> {
    match key {
        "ip" => found.ip = Some(prefix(value, 32)?),
        "ip6" => found.ip6 = Some(prefix(value, 128)?),
        "gw" => found.gw = Some(value.parse().map_err(|_| "an IPv4 address is wanted")?),
        "gw6" => found.gw6 = Some(value.parse().map_err(|_| "an IPv6 address is wanted")?),
        "mac" => found.mac = Some(mac(value)?),
        "mtu" => found.mtu = Some(number(value)?),
        "vnet" => found.vnet = Some(on_off(value)?),
        "queue" => found.queue = Some(number(value)?),
        "vlan" => {
            let id = VlanId::new(number(value)?);
            found.vlan = Some(id.ok_or("a VLAN is from 1 to 4094")?);
        }
        "dhcp" if value.is_empty() => found.dhcp = true,
        "dhcp" => found.dhcp = on_off(value)?,
        "zerocopy" => found.zerocopy = Some(on_off(value)?),
        "queues" => {
            let queues = Some(number(value)?).filter(|queues| (1..=PORTS_MAX).contains(queues));
            found.queues = queues.ok_or_else(|| format!("1 to {PORTS_MAX} queues are possible"))?;
        }
        _ => unreachable!("the key is one of those allowed"),
    }
    Ok(())
}

/// A gateway is a neighbour: it has an address of the network, or a link-local one (RFC 4861 §8).
fn check_gateways(found: &Interface) -> Result<(), String> {
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

/// A prefix length that networks of both kinds can have, for an example.
const COMMON_LEN: u8 = 24;

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
        assert_eq!((packet.dhcp, packet.vlan), (true, VlanId::new(7)));
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
        ] {
            let why = refusal(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
