//! Identifiers of ports: LID, GID, GUID, QPN, P_Key, and the link-layer address composed of them
//! (RFC 4391 §9.1.1).

use std::fmt;
use std::net::Ipv6Addr;

use super::{TooShort, head};

/// LID: identifies a port in its subnet, or a multicast group (C000 to FFFE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lid(pub u16);

impl Lid {
    /// First LID of multicast groups.
    pub const MULTICAST_FIRST: Self = Self(0xc000);
    /// Permissive LID: any port that gets the packet accepts it.
    pub const PERMISSIVE: Self = Self(0xffff);

    /// Returns true for the LID of a multicast group.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0 >= Self::MULTICAST_FIRST.0 && self.0 != Self::PERMISSIVE.0
    }
}

/// GID: 128-bit identifier of a port (a prefix, and the port's GUID), or of a multicast group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Default prefix of a subnet.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// Returns the GID of a port.
    #[must_use]
    pub fn new(prefix: u64, guid: Guid) -> Self {
        let mut octets = [0; 16];
        let (high, low) = octets.split_at_mut(8);
        high.copy_from_slice(&prefix.to_be_bytes());
        low.copy_from_slice(&guid.0.to_be_bytes());
        Self(octets)
    }

    /// Returns true for the GID of a multicast group.
    #[must_use]
    pub const fn is_multicast(&self) -> bool {
        self.0[0] == 0xff
    }
}

/// Formats the GID like an IPv6 address.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// EUI-64 of a port, assigned by the manufacturer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

/// Universal or local, inverted in a modified EUI-64.
const UNIVERSAL: u64 = 1 << 57;

impl Guid {
    /// Returns the IPv6 interface identifier, in modified EUI-64 form (RFC 4391 §8). `modified`
    /// tells if the manufacturer assigned it in this form, since the bytes do not.
    // spec: IPOIB-8-1
    #[must_use]
    pub const fn interface_identifier(self, modified: bool) -> u64 {
        if modified { self.0 } else { self.0 ^ UNIVERSAL }
    }
}

/// Number of a queue pair: 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// Destination of multicast packets.
    pub const MULTICAST: Self = Self(0x00ff_ffff);
    /// General service interface, for management datagrams.
    pub const GSI: Self = Self(1);

    /// Returns the queue pair with the low 24 bits of `bits`.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & 0x00ff_ffff)
    }

    /// Returns the number.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Key that the receiver of a datagram compares with its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QKey(pub u32);

impl QKey {
    /// Returns true if only privileged processes may use the key: the top bit (RFC 4392 §1.2).
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 & 1 << 31 != 0
    }
}

/// Key of a partition; the top bit marks a full member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PKey(pub u16);

const FULL_MEMBER: u16 = 1 << 15;

impl PKey {
    /// Returns the full member's key of the partition.
    #[must_use]
    pub const fn full_member(self) -> Self {
        Self(self.0 | FULL_MEMBER)
    }

    /// Returns true if the key is a full member's.
    #[must_use]
    pub const fn is_full_member(self) -> bool {
        self.0 & FULL_MEMBER != 0
    }

    /// Returns true if packets pass between holders of the two keys: the partition must be the
    /// same, not 0, and at least one holder a full member (RFC 4392 §1.2).
    // spec: IPOIB-ARCH-3
    #[must_use]
    pub const fn admits(self, other: Self) -> bool {
        let partition = self.0 & !FULL_MEMBER;
        partition != 0
            && partition == other.0 & !FULL_MEMBER
            && (self.is_full_member() || other.is_full_member())
    }
}

/// Address of an interface on an IPoIB link: 20 bytes (RFC 4391 §9.1.1).
///
/// ```text
/// reserved (1) | QPN (3) | GID (16)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkAddress {
    /// Queue pair of the interface's datagrams.
    pub qpn: Qpn,
    /// GID of the port.
    pub gid: Gid,
}

impl LinkAddress {
    /// Length of an address, in bytes.
    pub const LEN: usize = 20;

    /// Parses an address. RFC 4391 §9.1.1: the reserved byte is ignored on receipt.
    // spec: IPOIB-9.1-1
    #[must_use]
    pub fn from_bytes(octets: &[u8; Self::LEN]) -> Self {
        let [qpn @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *octets;
        let [.., a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *octets;
        Self {
            qpn: Qpn::from_bits(u32::from_be_bytes(qpn)),
            gid: Gid([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]),
        }
    }

    /// Parses the address at the start of `octets`.
    ///
    /// # Errors
    /// If there are fewer than [`LEN`](Self::LEN) bytes.
    pub fn parse(octets: &[u8]) -> Result<Self, TooShort> {
        head(octets).map(Self::from_bytes)
    }

    /// Returns the bytes. RFC 4391 §9.1.1: the reserved byte is sent as zero.
    // spec: IPOIB-9.1-1
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        let (qpn, gid) = octets.split_at_mut(4);
        qpn.copy_from_slice(&self.qpn.0.to_be_bytes());
        gid.copy_from_slice(&self.gid.0);
        octets
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    // spec: IPOIB-9.1-3
    #[test]
    fn an_address_is_a_queue_pair_and_a_port() {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0002_c903_0001_0002));
        let address = LinkAddress { qpn: Qpn::from_bits(0x48), gid };
        let octets = hex!("00000048 fe80000000000000 0002c90300010002");
        assert_eq!(address.to_bytes(), octets);
        assert_eq!(LinkAddress::from_bytes(&octets), address);
        assert_eq!(gid.to_string(), "fe80::2:c903:1:2");
    }

    // spec: IPOIB-9.1-1
    #[test]
    fn the_reserved_octet_is_ignored_and_never_sent() {
        let octets = hex!("80123456 fe80000000000000 0000000000000001");
        let address = LinkAddress::from_bytes(&octets);
        assert_eq!(address.qpn.bits(), 0x12_3456);
        assert_eq!(address.to_bytes()[0], 0);
        let error = LinkAddress::parse(&octets[..19]).unwrap_err();
        assert_eq!(error, TooShort { need: 20, have: 19 });
    }

    // spec: IPOIB-8-1
    #[test]
    fn an_interface_identifier_is_a_modified_eui_64() {
        assert_eq!(Guid(0x0002_c903_0001_0002).interface_identifier(false), 0x0202_c903_0001_0002);
        assert_eq!(Guid(0x0202_c903_0001_0002).interface_identifier(true), 0x0202_c903_0001_0002);
    }

    // spec: IPOIB-ARCH-3
    #[test]
    fn a_partition_needs_one_full_member() {
        let (full, limited, other) = (PKey(0x8001), PKey(0x0001), PKey(0x8002));
        assert!(full.admits(full) && full.admits(limited) && limited.admits(full));
        assert!(!limited.admits(limited));
        assert!(!full.admits(other));
        assert!(!PKey(0x8000).admits(PKey(0x8000)), "partition 0 is none");
        assert_eq!(limited.full_member(), full);
    }

    #[test]
    fn multicast_lids_and_controlled_qkeys_are_recognised() {
        assert!(!Lid(0xbfff).is_multicast() && Lid(0xc000).is_multicast());
        assert!(Lid(0xfffe).is_multicast() && !Lid::PERMISSIVE.is_multicast());
        assert!(QKey(0x8001_0b1b).is_controlled() && !QKey(0x0001_0b1b).is_controlled());
    }
}
