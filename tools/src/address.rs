//! Address of a server on the command line: `HOST[:PORT]`, `[IPV6][:PORT]`.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{Context, ensure};

use crate::device::DeviceSpec;

pub(crate) const DEFAULT_PORT: u16 = 7174;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostName {
    Literal(IpAddr),
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    pub(crate) host: HostName,
    pub(crate) port: u16,
}

impl HostName {
    /// Addresses that a device can reach, IPv4 first. Fails if there is none.
    pub(crate) fn resolve(&self, dev: &DeviceSpec) -> anyhow::Result<Vec<IpAddr>> {
        let name = match self {
            Self::Literal(address) => return Ok(vec![*address]),
            Self::Name(name) => name,
        };
        let found = (name.as_str(), 0).to_socket_addrs();
        let found = found.with_context(|| format!("looking up '{name}'"))?;
        let own = dev.addresses();
        let is_reachable = |address: &IpAddr| match &own {
            None => true,
            Some(_) if dev.uses_dhcp() && address.is_ipv4() => true,
            Some(own) => own.iter().any(|one| one.is_ipv4() == address.is_ipv4()),
        };
        let mut found: Vec<_> = found.map(|address| address.ip()).filter(is_reachable).collect();
        found.sort_by_key(IpAddr::is_ipv6);
        found.dedup();
        ensure!(!found.is_empty(), "'{name}' has no address of a kind that --dev {dev} has");
        Ok(found)
    }
}

impl HostPort {
    pub(crate) fn resolve(&self, dev: &DeviceSpec) -> anyhow::Result<Vec<SocketAddr>> {
        let addresses = self.host.resolve(dev)?.into_iter();
        Ok(addresses.map(|address| SocketAddr::new(address, self.port)).collect())
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        if let Some(inner) = inner {
            let address = inner.parse().map_err(|_| format!("'{inner}' is no IPv6 address"))?;
            return Ok(Self::Literal(IpAddr::V6(address)));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Literal(address));
        }
        let is_label = |label: &str| {
            let is_inside = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            (1..=63).contains(&label.len()) && label.chars().all(is_inside)
        };
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_name = name.len() <= 253 && name.split('.').all(is_label);
        // No name ends in a number (RFC 3696 §2): such a text is a mistyped address.
        let last = name.rsplit('.').next().unwrap_or_default();
        if !is_name || name.starts_with('-') || last.bytes().all(|c| c.is_ascii_digit()) {
            let shown: String = text.chars().take(80).collect();
            return Err(format!("'{shown}' is neither an IP address nor the name of a host"));
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let is_bare_v6 = text.parse::<IpAddr>().is_ok() || text.ends_with(']');
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !is_bare_v6 => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .map_err(|_| format!("'{port}' is no TCP port: write HOST:PORT or [IPV6]:PORT"))?,
        };
        Ok(Self { host: host.parse()?, port })
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self { host: HostName::Literal(address.ip()), port: address.port() }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostName::Literal(address) => SocketAddr::new(*address, self.port).fmt(f),
            HostName::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        text.parse::<HostPort>().map_or_else(|why| format!("refused: {why}"), |it| it.to_string())
    }

    #[test]
    fn a_host_may_have_a_port() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1:7174"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("2001:db8::1", "[2001:db8::1]:7174"),
            ("[2001:db8::1]", "[2001:db8::1]:7174"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
            ("localhost", "localhost:7174"),
            ("a-1.example.com:1", "a-1.example.com:1"),
        ] {
            assert_eq!(shown(text), expected);
        }
    }

    /// RFC 1035 §2.3.4: 63 bytes of a label, 253 of a name.
    #[test]
    fn a_name_may_be_as_long_as_names_are() {
        let label = "x".repeat(63);
        let name = |last: usize| [&label[..], &label, &label, &label[..last]].join(".");
        assert_eq!(name(61).len(), 253);
        for good in [label.clone(), name(61), name(61) + "."] {
            assert_eq!(shown(&good), format!("{good}:7174"));
        }
        for long in [label.clone() + "x", name(62)] {
            assert!(shown(&long).starts_with("refused"), "{long}");
        }
    }

    #[test]
    fn invalid_hosts_are_refused() {
        let long = "x".repeat(5000);
        for text in [
            "",
            ":7174",
            "*:7174",
            "10.0.0.256:7174",
            "10.0.0:1",
            "[::1:7174",
            "[fe80::1%v0]:1",
            "host:",
            "host:65536",
            "host:-1",
            "-host",
            "a..b",
            "a b",
            "größer",
            "[host]",
            &long,
        ] {
            assert!(shown(text).starts_with("refused"), "{text}: {}", shown(text));
        }
    }

    #[test]
    fn a_name_has_the_addresses_of_its_host() {
        let kernel: DeviceSpec = "kernel".parse().unwrap();
        let found = "localhost".parse::<HostPort>().unwrap().resolve(&kernel).unwrap();
        assert_eq!(found[0], SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)));
        let tap: DeviceSpec = "tap:t,ip6=fd00::1/64".parse().unwrap();
        let only_v4 = "192.0.2.1".parse::<HostName>().unwrap().resolve(&tap);
        assert!(only_v4.is_ok(), "an address is taken as it is");
    }
}
