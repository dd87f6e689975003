//! Maps IP groups to InfiniBand multicast groups (RFC 4391 §4).
//!
//! ```text
//! byte 0   1            2-3          4-5    6-15
//!     FF   1 and scope  401B | 601B  P_Key  low 28 | 80 bits of the IP group
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::address::{Gid, PKey};

/// Scope of a link's multicast (RFC 4392 §1.2.1.2): 1 to 14, the scope nibble of its MGIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(u8);

impl Scope {
    /// Link-local, the default (RFC 4391 §4.1).
    pub const LINK_LOCAL: Self = Self(0x2);
    /// Site-local.
    pub const SITE_LOCAL: Self = Self(0x5);
    /// Organisation-local.
    pub const ORGANIZATION_LOCAL: Self = Self(0x8);
    /// Global.
    pub const GLOBAL: Self = Self(0xe);

    /// Returns the scope with this nibble; `None` for the reserved 0 and F, and larger values.
    // spec: IPOIB-ARCH-6
    #[must_use]
    pub const fn new(nibble: u8) -> Option<Self> {
        match nibble {
            1..=14 => Some(Self(nibble)),
            _ => None,
        }
    }

    /// Returns the nibble.
    #[must_use]
    pub const fn nibble(self) -> u8 {
        self.0
    }
}

/// Common part of all MGIDs of one IPoIB link: its scope and its P_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MulticastMap {
    scope: Scope,
    p_key: PKey,
}

/// RFC 4391 §4, for the two address families.
// spec: IPOIB-4-2
const SIGNATURE_IPV4: [u8; 2] = [0x40, 0x1b];
const SIGNATURE_IPV6: [u8; 2] = [0x60, 0x1b];
/// RFC 4391 §4: MGIDs of IPoIB have the transient flag set.
// spec: IPOIB-4-1
const FLAG_TRANSIENT: u8 = 0x10;

impl MulticastMap {
    /// Returns the map of the link with this scope and P_Key.
    #[must_use]
    pub const fn new(scope: Scope, p_key: PKey) -> Self {
        // RFC 4391 §4.1: the broadcast-GID carries the P_Key with its full-membership bit set.
        // spec: IPOIB-4.1-1
        Self { scope, p_key: p_key.full_member() }
    }

    /// Returns the link's scope.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// Returns the link's P_Key, with the full-membership bit.
    #[must_use]
    pub const fn p_key(&self) -> PKey {
        self.p_key
    }

    /// Returns the group that every interface joins (RFC 4391 §4.1), also on an IPv6-only link.
    #[must_use]
    pub const fn broadcast(&self) -> Gid {
        self.ipv4(Ipv4Addr::BROADCAST)
    }

    /// Returns the group of an IPv4 group, or of 255.255.255.255.
    // spec: IPOIB-4-3
    #[must_use]
    pub const fn ipv4(&self, group: Ipv4Addr) -> Gid {
        let [a, b, c, d] = group.octets();
        // RFC 4391 §4: the low 28 bits; all 32 of 255.255.255.255.
        // spec: IPOIB-4-4
        let top = if group.is_broadcast() { a } else { a & 0x0f };
        self.mgid(SIGNATURE_IPV4, [0, 0, 0, 0, 0, 0, top, b, c, d])
    }

    /// Returns the group of an IPv6 group. Groups that differ only above the low 80 bits share one.
    // spec: IPOIB-4-3
    #[must_use]
    pub const fn ipv6(&self, group: Ipv6Addr) -> Gid {
        let [_, _, _, _, _, _, a, b, c, d, e, f, g, h, i, j] = group.octets();
        self.mgid(SIGNATURE_IPV6, [a, b, c, d, e, f, g, h, i, j])
    }

    /// Returns the group of an IP group or of 255.255.255.255; `None` for any other address.
    #[must_use]
    pub const fn group(&self, address: IpAddr) -> Option<Gid> {
        match address {
            IpAddr::V4(group) if group.is_multicast() || group.is_broadcast() => {
                Some(self.ipv4(group))
            }
            IpAddr::V6(group) if group.is_multicast() => Some(self.ipv6(group)),
            _ => None,
        }
    }

    // spec: IPOIB-4-5, IPOIB-ARCH-11
    const fn mgid(&self, [s0, s1]: [u8; 2], [a, b, c, d, e, f, g, h, i, j]: [u8; 10]) -> Gid {
        let [p0, p1] = self.p_key.0.to_be_bytes();
        let scope = FLAG_TRANSIENT | self.scope.0;
        Gid([0xff, scope, s0, s1, p0, p1, a, b, c, d, e, f, g, h, i, j])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().unwrap().octets())
    }

    /// The example of RFC 4391 §4, and values derived from it.
    // spec: IPOIB-4-1, IPOIB-4-2, IPOIB-4-3, IPOIB-4-4
    #[test]
    fn groups_map_as_in_the_rfcs_example() {
        let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0x8000));
        assert_eq!(map.ipv4(Ipv4Addr::new(224, 0, 0, 2)), gid("ff12:401b:8000::2"));
        assert_eq!(map.ipv6("ff02::2".parse().unwrap()), gid("ff12:601b:8000::2"));
        assert_eq!(map.broadcast(), gid("ff12:401b:8000::ffff:ffff"));
        assert_eq!(map.ipv4(Ipv4Addr::new(239, 255, 0, 1)), gid("ff12:401b:8000::fff:1"));
        let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff));
        assert_eq!(map.ipv4(Ipv4Addr::new(224, 0, 0, 251)), gid("ff12:401b:ffff::fb"));
    }

    // spec: IPOIB-4-5, IPOIB-4.1-1
    #[test]
    fn every_group_of_a_link_has_its_scope_and_the_full_membership_bit() {
        let map = MulticastMap::new(Scope::SITE_LOCAL, PKey(0x7fff));
        assert_eq!(map.p_key(), PKey(0xffff));
        for gid in [
            map.broadcast(),
            map.ipv4(Ipv4Addr::new(224, 0, 0, 1)),
            map.ipv6("ff02::1:ff00:2".parse().unwrap()),
        ] {
            assert_eq!(gid.0[..2], [0xff, 0x15]);
            assert_eq!(gid.0[4..6], [0xff, 0xff]);
        }
    }

    // spec: IPOIB-4-3
    #[test]
    fn the_low_eighty_bits_of_an_ipv6_group_are_kept() {
        let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff));
        let solicited = map.ipv6("ff02::1:ffab:cdef".parse().unwrap());
        assert_eq!(solicited, gid("ff12:601b:ffff::1:ffab:cdef"));
        let long = map.ipv6("ff3e:1234:5678:9abc:1122:3344:5566:7788".parse().unwrap());
        assert_eq!(long, gid("ff12:601b:ffff:9abc:1122:3344:5566:7788"));
    }

    #[test]
    fn only_multicast_addresses_map_to_a_group() {
        let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff));
        assert_eq!(map.group("192.0.2.1".parse().unwrap()), None);
        assert_eq!(map.group("fe80::1".parse().unwrap()), None);
        assert_eq!(map.group("255.255.255.255".parse().unwrap()), Some(map.broadcast()));
        assert_eq!(map.group("ff02::1".parse().unwrap()), Some(gid("ff12:601b:ffff::1")));
    }

    // spec: IPOIB-ARCH-6
    #[test]
    fn reserved_scopes_are_refused() {
        assert_eq!(Scope::new(0), None);
        assert_eq!(Scope::new(15), None);
        assert_eq!(Scope::new(16), None);
        assert_eq!(Scope::new(14), Some(Scope::GLOBAL));
    }
}
