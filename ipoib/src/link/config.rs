//! Settings of a link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::multicast::{MulticastMap, Scope};
use crate::wire::address::{Guid, PKey, Qpn};

/// Settings of an interface on a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Partition; it must be configured (RFC 4391 §4.1).
    pub p_key: PKey,
    /// Scope of the link's multicast.
    pub scope: Scope,
    /// Queue pair of its datagrams.
    pub qpn: Qpn,
    /// IPv4 address and prefix length.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// True if DHCP (RFC 4390) provides the IPv4 address and router, instead of those given.
    pub dhcp: bool,
    /// IPv6 address and prefix length.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// Router for other IPv4 networks.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Router for other IPv6 networks.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Secret random seed of the transactions, so that others cannot forge answers.
    pub seed: [u8; 32],
}

impl LinkConfig {
    /// Returns the settings of a link of the default partition, without addresses.
    #[must_use]
    pub const fn new(qpn: Qpn, seed: [u8; 32]) -> Self {
        Self {
            p_key: PKey(0xffff),
            // spec: IPOIB-4.1-4
            scope: Scope::LINK_LOCAL,
            qpn,
            ipv4: None,
            dhcp: false,
            ipv6: None,
            gateway_v4: None,
            gateway_v6: None,
            seed,
        }
    }

    pub(super) const fn map(&self) -> MulticastMap {
        MulticastMap::new(self.scope, self.p_key)
    }

    /// `None` if no neighbour leads to the address.
    pub(super) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        match to {
            IpAddr::V4(address) => {
                let (own, len) = self.ipv4?;
                let mask = u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0);
                let is_link = own.to_bits() & mask == address.to_bits() & mask;
                if is_link { Some(to) } else { self.gateway_v4.map(IpAddr::V4) }
            }
            IpAddr::V6(address) if address.is_unicast_link_local() => Some(to),
            IpAddr::V6(address) => {
                let (own, len) = self.ipv6?;
                let mask = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
                let is_link = own.to_bits() & mask == address.to_bits() & mask;
                if is_link { Some(to) } else { self.gateway_v6.map(IpAddr::V6) }
            }
        }
    }

    pub(super) fn is_directed_broadcast(&self, to: IpAddr) -> bool {
        let (IpAddr::V4(to), Some((own, len))) = (to, self.ipv4) else { return false };
        let hosts = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
        // RFC 3021: a link of two hosts has no such address.
        hosts > 1 && to.to_bits() == own.to_bits() | hosts
    }
}

/// Returns the link-local IPv6 address of a port, from its GUID (RFC 4391 §8).
#[must_use]
pub fn link_local(guid: Guid) -> Ipv6Addr {
    let identifier = guid.interface_identifier(false);
    Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(identifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3021: the two addresses of a /31 are hosts. RFC 922: the last of other networks is none.
    #[test]
    fn directed_broadcasts_are_of_networks_with_more_than_two_addresses() {
        let broadcasts = |len: u8| {
            let own = Some((Ipv4Addr::new(10, 0, 0, 4), len));
            let config = LinkConfig { ipv4: own, ..LinkConfig::new(Qpn::from_bits(7), [7; 32]) };
            let all = (0..=255)
                .filter(|last| config.is_directed_broadcast(Ipv4Addr::new(10, 0, 0, *last).into()));
            all.collect::<Vec<u8>>()
        };
        assert_eq!([24, 30, 31, 32].map(broadcasts), [vec![255], vec![7], vec![], vec![]]);
    }
}
