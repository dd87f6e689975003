//! ARP with 20-byte addresses (RFC 4391 §9.2): hardware type 32.

use std::net::Ipv4Addr;

use super::address::LinkAddress;
use super::{TooShort, take};

/// ARP's hardware type of InfiniBand.
pub const HARDWARE_TYPE: u16 = 32;

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks for the holder of the target address.
    Request,
    /// Answers: the sender has its address.
    Reply,
    /// Unknown operation.
    Unknown(u16),
}

impl Operation {
    const fn number(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
            Self::Unknown(number) => number,
        }
    }
}

/// ARP packet for IPv4 on an IPoIB link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Question or answer.
    pub operation: Operation,
    /// The sender's link-layer address.
    pub sender: LinkAddress,
    /// The sender's IPv4 address.
    pub sender_ip: Ipv4Addr,
    /// The target's link-layer address as its 20 bytes; all zero in a question.
    pub target: [u8; LinkAddress::LEN],
    /// The target's IPv4 address.
    pub target_ip: Ipv4Addr,
}

/// Reasons why bytes are not an ARP packet of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArpError {
    /// Too few bytes.
    #[error(transparent)]
    Short(#[from] TooShort),
    /// Another hardware or protocol, or another address length.
    #[error("not ARP of InfiniBand and IPv4")]
    Kind,
}

// spec: IPOIB-9.2-1
const KIND: [u8; 6] = [0x00, 0x20, 0x08, 0x00, 20, 4];

impl ArpPacket {
    /// Length of a packet, in bytes.
    pub const LEN: usize = 56;

    /// Parses a packet; bytes behind it are ignored.
    ///
    /// # Errors
    /// See [`ArpError`].
    pub fn parse(mut octets: &[u8]) -> Result<Self, ArpError> {
        if take::<6>(&mut octets)? != KIND {
            return Err(ArpError::Kind);
        }
        let operation = match u16::from_be_bytes(take(&mut octets)?) {
            1 => Operation::Request,
            2 => Operation::Reply,
            other => Operation::Unknown(other),
        };
        let sender = LinkAddress::from_bytes(&take(&mut octets)?);
        let sender_ip = take::<4>(&mut octets)?.into();
        let target = take(&mut octets)?;
        let target_ip = take::<4>(&mut octets)?.into();
        Ok(Self { operation, sender, sender_ip, target, target_ip })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let parts: [&[u8]; 6] = [
            &KIND,
            &self.operation.number().to_be_bytes(),
            &self.sender.to_bytes(),
            &self.sender_ip.octets(),
            &self.target,
            &self.target_ip.octets(),
        ];
        let mut octets = [0; Self::LEN];
        let all = parts.into_iter().flatten();
        for (octet, value) in octets.iter_mut().zip(all) {
            *octet = *value;
        }
        octets
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::super::address::{Gid, Guid, Qpn};
    use super::*;

    fn request() -> ArpPacket {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x10_0004));
        ArpPacket {
            operation: Operation::Request,
            sender: LinkAddress { qpn: Qpn::from_bits(0x48), gid },
            sender_ip: Ipv4Addr::new(192, 168, 7, 1),
            target: [0; 20],
            target_ip: Ipv4Addr::new(192, 168, 7, 2),
        }
    }

    // spec: IPOIB-9.2-1
    #[test]
    fn arp_request_has_the_specified_octets() {
        let octets = hex!(
            "0020 0800 14 04 0001"
            "00000048 fe80000000000000 0000000000100004 c0a80701"
            "00000000 0000000000000000 0000000000000000 c0a80702"
        );
        assert_eq!(request().to_bytes(), octets);
        assert_eq!(ArpPacket::parse(&octets), Ok(request()));
        let longer = [&octets[..], &[9; 4]].concat();
        assert_eq!(ArpPacket::parse(&longer), Ok(request()));
    }

    #[test]
    fn arp_of_another_link_or_cut_short_is_refused() {
        let mut octets = request().to_bytes();
        for at in 0..6 {
            octets[at] ^= 1;
            assert_eq!(ArpPacket::parse(&octets), Err(ArpError::Kind), "octet {at}");
            octets[at] ^= 1;
        }
        for len in 0..ArpPacket::LEN {
            assert!(matches!(ArpPacket::parse(&octets[..len]), Err(ArpError::Short(_))), "{len}");
        }
        octets[7] = 8;
        assert_eq!(ArpPacket::parse(&octets).unwrap().operation, Operation::Unknown(8));
    }
}
