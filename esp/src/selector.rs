//! Selectors: the packets that a policy or an association is for (RFC 4301 §4.4.1.1).

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::wire::ip::Flow;

/// All addresses with common first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// The addresses whose first `len` bits are those of `address`. A longer `len` than the address
    /// is the address alone.
    #[must_use]
    pub fn new(address: IpAddr, len: u8) -> Self {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Self { address, len: len.min(bits) }
    }

    /// This address alone.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self::new(address, u8::MAX)
    }

    /// Returns true if the prefix contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let common = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        common >= u32::from(self.len)
    }
}

/// The packets that a policy or an association is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Source addresses.
    pub source: Prefix,
    /// Destination addresses.
    pub destination: Prefix,
    /// Protocol above IP; `None` is any.
    pub protocol: Option<u8>,
    /// Source ports; `None` is any, also none at all.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

/// Result of comparing a packet with a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The packet is for this selector.
    Yes,
    /// The packet is not for this selector.
    No,
    /// It depends on ports that the packet does not show.
    Unknown,
}

impl Selector {
    /// All packets between two sets of addresses.
    #[must_use]
    pub const fn between(source: Prefix, destination: Prefix) -> Self {
        let (source_ports, destination_ports) = (None, None);
        Self { source, destination, protocol: None, source_ports, destination_ports }
    }

    /// Compares a packet with this selector.
    #[must_use]
    pub fn compare(&self, flow: &Flow) -> Match {
        let Self { source, destination, protocol, source_ports, destination_ports } = self;
        let is_protocol = protocol.is_none_or(|protocol| protocol == flow.protocol);
        if !is_protocol || !source.contains(flow.source) || !destination.contains(flow.destination)
        {
            return Match::No;
        }
        match (source_ports, destination_ports, flow.ports) {
            (None, None, _) => Match::Yes,
            (_, _, None) => Match::Unknown,
            (of_source, of_destination, Some((source, destination))) => {
                let has = |ports: &Option<RangeInclusive<u16>>, port| {
                    ports.as_ref().is_none_or(|ports| ports.contains(&port))
                };
                let is_match = has(of_source, source) && has(of_destination, destination);
                if is_match { Match::Yes } else { Match::No }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(ports: Option<(u16, u16)>) -> Flow {
        let [source, destination] = [[10, 0, 0, 1], [10, 0, 1, 2]].map(IpAddr::from);
        Flow { source, destination, protocol: 6, ports }
    }

    #[test]
    fn a_prefix_contains_the_addresses_with_its_bits() {
        let prefix = |text: &str, len| Prefix::new(text.parse().unwrap(), len);
        for (prefix, inside, outside) in [
            (prefix("10.1.2.3", 8), "10.255.0.0", "11.0.0.0"),
            (prefix("10.1.2.3", 31), "10.1.2.2", "10.1.2.4"),
            (prefix("10.1.2.3", 200), "10.1.2.3", "10.1.2.2"),
            (prefix("fd00::", 8), "fd12::1", "fe80::1"),
            (prefix("0.0.0.0", 0), "255.0.0.1", "::1"),
            (prefix("::", 0), "::1", "0.0.0.0"),
        ] {
            assert!(prefix.contains(inside.parse().unwrap()), "{prefix:?}");
            assert!(!prefix.contains(outside.parse().unwrap()), "{prefix:?}");
        }
    }

    #[test]
    fn each_field_decides() {
        let any = Selector::between(
            Prefix::new([10, 0, 0, 0].into(), 24),
            Prefix::new([10, 0, 1, 0].into(), 24),
        );
        let tcp = Selector { protocol: Some(6), ..any.clone() };
        let udp = Selector { protocol: Some(17), ..any.clone() };
        let ports = Selector { source_ports: Some(1..=5), ..tcp.clone() };
        let both = Selector { destination_ports: Some(7..=7), ..ports.clone() };
        let result = |selector: &Selector, ports| selector.compare(&flow(ports));
        for selector in [&any, &tcp] {
            assert_eq!([Some((1, 2)), None].map(|ports| result(selector, ports)), [Match::Yes; 2]);
        }
        assert_eq!(result(&udp, None), Match::No);
        assert_eq!(result(&ports, None), Match::Unknown);
        let of = [(5, 9), (6, 9), (5, 7), (0, 7)];
        assert_eq!(
            of.map(|of| result(&ports, Some(of))),
            [Match::Yes, Match::No, Match::Yes, Match::No]
        );
        assert_eq!(
            of.map(|of| result(&both, Some(of))),
            [Match::No, Match::No, Match::Yes, Match::No]
        );
        let reverse = Flow { source: flow(None).destination, ..flow(None) };
        assert_eq!(any.compare(&reverse), Match::No);
    }
}
