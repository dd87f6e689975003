//! Encapsulation header in front of every datagram (RFC 4391 §6).
//!
//! ```text
//! type (2) | reserved (2) | datagram
//! ```

use super::{TooShort, take};

/// Type of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatagramType {
    /// IPv4.
    Ipv4,
    /// ARP.
    Arp,
    /// RARP.
    Rarp,
    /// IPv6.
    Ipv6,
    /// Not one of IPoIB's.
    Unknown(u16),
}

impl DatagramType {
    /// Returns the type of this number.
    #[must_use]
    pub const fn from_number(number: u16) -> Self {
        match number {
            0x0800 => Self::Ipv4,
            0x0806 => Self::Arp,
            0x8035 => Self::Rarp,
            0x86dd => Self::Ipv6,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Ipv4 => 0x0800,
            Self::Arp => 0x0806,
            Self::Rarp => 0x8035,
            Self::Ipv6 => 0x86dd,
            Self::Unknown(number) => number,
        }
    }
}

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 4;

/// Returns the header of a datagram. RFC 4391 §6: the reserved bytes are sent as zero.
// spec: IPOIB-6-1
#[must_use]
pub const fn header(datagram: DatagramType) -> [u8; HEADER_LEN] {
    let [a, b] = datagram.number().to_be_bytes();
    [a, b, 0, 0]
}

/// Returns the type of a payload, and its datagram. The reserved bytes are ignored.
///
/// # Errors
/// If the payload is shorter than the header.
// spec: IPOIB-6-1
pub fn parse(mut payload: &[u8]) -> Result<(DatagramType, &[u8]), TooShort> {
    let [a, b, _, _] = take::<HEADER_LEN>(&mut payload)?;
    Ok((DatagramType::from_number(u16::from_be_bytes([a, b])), payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: IPOIB-6-1
    #[test]
    fn the_header_is_a_type_and_two_zero_octets() {
        for (datagram, octets) in [
            (DatagramType::Ipv4, [0x08, 0x00, 0, 0]),
            (DatagramType::Arp, [0x08, 0x06, 0, 0]),
            (DatagramType::Rarp, [0x80, 0x35, 0, 0]),
            (DatagramType::Ipv6, [0x86, 0xdd, 0, 0]),
        ] {
            assert_eq!(header(datagram), octets);
            assert_eq!(parse(&octets), Ok((datagram, &[][..])));
        }
    }

    // spec: IPOIB-6-1
    #[test]
    fn the_reserved_octets_are_ignored() {
        assert_eq!(parse(&[0x86, 0xdd, 0xff, 0xff, 7]), Ok((DatagramType::Ipv6, &[7][..])));
        assert_eq!(parse(&[0x12, 0x34, 0, 0]), Ok((DatagramType::Unknown(0x1234), &[][..])));
        assert_eq!(parse(&[8, 0, 0]), Err(TooShort { need: 4, have: 3 }));
    }
}
