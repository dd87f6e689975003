//! Parser for the settings of a device after its name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use urnic_engine::limits::PORTS_MAX;
use urnic_engine::port::VlanId;
use urnic_engine::tcp::CongestionKind;

use super::network::Network;

pub(super) struct Settings {
    pub(super) network: Network,
    pub(super) queue: Option<u32>,
    pub(super) zerocopy: Option<bool>,
    pub(super) listens: Option<bool>,
    pub(super) sealed: Option<bool>,
    pub(super) shares: Option<bool>,
    pub(super) peer: Option<u32>,
    pub(super) memory_max: Option<u64>,
}

pub(super) fn settings_of(text: &str, settings: &str, own: &[&str]) -> Result<Settings, String> {
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
        congestion: CongestionKind::default(),
    };
    let mut found = Settings {
        network,
        queue: None,
        zerocopy: None,
        listens: None,
        sealed: None,
        shares: None,
        peer: None,
        memory_max: None,
    };
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
        "congestion" => network.congestion = congestion(value)?,
        "zerocopy" => found.zerocopy = Some(on_off(value)?),
        "connect" => found.listens = Some(!flag(value)?),
        "listen" => found.listens = Some(flag(value)?),
        "sealed" => found.sealed = Some(flag(value)?),
        "share" => found.shares = Some(flag(value)?),
        "peer" => found.peer = Some(user(value)?),
        "memory" => found.memory_max = Some(size(value)?),
        "queues" => {
            let queues = Some(number(value)?).filter(|queues| (1..=PORTS_MAX).contains(queues));
            network.queues =
                queues.ok_or_else(|| format!("1 to {PORTS_MAX} queues are possible"))?;
        }
        _ => unreachable!("the key is one of those allowed"),
    }
    Ok(())
}

/// A gateway's address is in the network, or link-local (RFC 4861 §8).
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
        return Err("an Ethernet address has six bytes".into());
    }
    if octets[0] & 1 == 1 {
        return Err("a group address cannot be a host's".into());
    }
    if octets == [0; 6] {
        return Err("the Ethernet address of nobody".into());
    }
    Ok(octets)
}

pub(super) fn user(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the number of a user is wanted, as `id -u NAME` prints it".into())
}

/// Parses a size in bytes: a number with the unit M, G or T (2^20, 2^30, 2^40).
fn size(text: &str) -> Result<u64, String> {
    let read = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let shift = match unit {
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return None,
        };
        let number: u64 = number.parse().ok().filter(|number| *number > 0)?;
        number.checked_mul(1 << shift)
    };
    read().ok_or_else(|| "a size is wanted, such as 512M, 64G or 1T".into())
}

fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "a number is wanted".into())
}

fn congestion(text: &str) -> Result<CongestionKind, String> {
    match text {
        "cubic" => Ok(CongestionKind::Cubic),
        "dctcp" => Ok(CongestionKind::Dctcp),
        "reno" => Ok(CongestionKind::NewReno),
        _ => Err("cubic, dctcp or reno is wanted".into()),
    }
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off is wanted".into()),
    }
}

/// The setting is on if only its name is given.
fn flag(text: &str) -> Result<bool, String> {
    if text.is_empty() { Ok(true) } else { on_off(text) }
}

const COMMON_LEN: u8 = 24;

const COMMON: [&str; 8] = ["ip", "ip6", "gw", "gw6", "mac", "vlan", "dhcp", "congestion"];
