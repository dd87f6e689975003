//! ESP in UDP (RFC 3948): the header, and telling apart the contents of its port.

use crate::wire::{checksum, read_u16, write_u16};

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;
/// The number of UDP in IP headers.
pub const PROTOCOL: u8 = 17;
/// The port of IKE and ESP behind NAT (RFC 3948 §2.1).
pub const PORT: u16 = 4500;
/// Bytes of the non-ESP marker before an IKE message (RFC 3948 §2.2).
pub const MARKER_LEN: usize = 4;
/// Contents of a NAT-keepalive (RFC 3948 §2.3).
pub const KEEPALIVE: u8 = 0xff;

/// The two UDP ports of an association (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Source port of packets under this association.
    pub source: u16,
    /// Destination port of packets under this association.
    pub destination: u16,
}

/// Contents of a datagram to or from the port of ESP in UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents<'a> {
    /// An ESP packet.
    Esp(&'a [u8]),
    /// An IKE message, without the marker.
    Ike(&'a [u8]),
    /// A NAT-keepalive: the receiver ignores it.
    KeepAlive,
}

/// Reads a datagram: its ports, and its contents.
#[must_use]
pub fn read(datagram: &[u8]) -> Option<(Ports, Contents<'_>)> {
    let ports = Ports { source: read_u16(datagram, 0)?, destination: read_u16(datagram, 2)? };
    let len = usize::from(read_u16(datagram, 4)?);
    let payload = datagram.get(HEADER_LEN..len)?;
    let contents = match payload {
        [KEEPALIVE] => Contents::KeepAlive,
        [0, 0, 0, 0, message @ ..] => Contents::Ike(message),
        _ => Contents::Esp(payload),
    };
    Some((ports, contents))
}

/// Writes the header of a datagram. Over IPv4 the checksum is zero, as RFC 3948 §2.1 wants; over
/// IPv6 it is computed, because there a datagram without one is dropped (RFC 8200 §8.1).
/// `addresses` are both addresses of the IPv6 header, empty over IPv4.
pub(crate) fn write_header(datagram: &mut [u8], ports: Ports, addresses: &[u8]) {
    let len = u16::try_from(datagram.len()).unwrap_or(u16::MAX);
    write_u16(datagram, 0, ports.source);
    write_u16(datagram, 2, ports.destination);
    write_u16(datagram, 4, len);
    write_u16(datagram, 6, 0);
    if !addresses.is_empty() {
        let [high, low] = len.to_be_bytes();
        // RFC 8200 §8.1: a sum of zero is sent as 0xffff.
        let sum = match checksum(&[addresses, &[0, PROTOCOL, high, low], datagram]) {
            0 => u16::MAX,
            sum => sum,
        };
        write_u16(datagram, 6, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_of_the_port_are_distinguished() {
        let ports = Ports { source: PORT, destination: 1234 };
        let datagram = |payload: &[u8]| {
            let mut datagram = vec![0; HEADER_LEN + payload.len()];
            datagram[HEADER_LEN..].copy_from_slice(payload);
            write_header(&mut datagram, ports, &[]);
            assert_eq!(datagram[6..8], [0, 0]);
            datagram
        };
        for (payload, contents) in [
            (&[0xff][..], Contents::KeepAlive),
            (&[0xff, 0xff], Contents::Esp(&[0xff, 0xff])),
            (&[0, 0, 0, 0, 9], Contents::Ike(&[9])),
            (&[0, 0, 0, 1, 9], Contents::Esp(&[0, 0, 0, 1, 9])),
            (&[], Contents::Esp(&[])),
        ] {
            assert_eq!(read(&datagram(payload)), Some((ports, contents)));
        }
        let mut short = datagram(&[1, 2, 3]);
        short.pop();
        assert_eq!(read(&short), None, "its length is wrong");
        short[5] = 7;
        assert_eq!(read(&short), None, "its length is less than the header's");
    }

    #[test]
    fn ipv6_has_a_checksum() {
        let addresses: Vec<u8> = (0..32).collect();
        let mut datagram = vec![7; 21];
        write_header(&mut datagram, Ports { source: 1, destination: 2 }, &addresses);
        let pseudo = [0, PROTOCOL, 0, 21];
        assert_eq!(checksum(&[&addresses, &pseudo, &datagram]), 0);
    }
}
