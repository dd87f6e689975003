//! Headers of IPv4 and IPv6, as far as ESP reads and changes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{checksum, read_u16, write_u16};

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub const IPV6_LEN: usize = 40;
/// The numbers of an IPv4 and an IPv6 packet inside another packet.
pub const PROTOCOL_IPV4: u8 = 4;
/// See [`PROTOCOL_IPV4`].
pub const PROTOCOL_IPV6: u8 = 41;
/// Protocols with two ports at the beginning of their header: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// Hop limit, or time to live, of the outer header of a tunnel.
const HOP_LIMIT: u8 = 64;

/// Fields of a packet by which policies choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol above IP and its extension headers.
    pub protocol: u8,
    /// Source and destination port; `None` if the packet has none, or has no beginning of the
    /// protocol's header (a later fragment).
    pub ports: Option<(u16, u16)>,
}

/// Position of the parts of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Fields for policies.
    pub flow: Flow,
    /// Bytes of the packet, without padding of the link.
    pub len: usize,
    /// Offset of the first byte behind the headers that remain in front of ESP: the IP header, and
    /// the extension headers for each hop.
    pub payload_at: usize,
    /// Number of the header at `payload_at`.
    pub next_header: u8,
    /// Offset of the byte with this number.
    pub next_header_at: usize,
    /// The packet is a fragment.
    pub is_fragment: bool,
}

impl Header {
    /// Reads the headers of a packet; returns `None` if they are damaged or incomplete.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_ipv4(packet),
            6 => Self::parse_ipv6(packet),
            _ => None,
        }
    }

    fn parse_ipv4(packet: &[u8]) -> Option<Self> {
        let fixed: &[u8; IPV4_LEN] = packet.first_chunk()?;
        let (payload_at, len) = (usize::from(fixed[0] & 15) * 4, usize::from(read_u16(fixed, 2)?));
        if payload_at < IPV4_LEN || len < payload_at || len > packet.len() {
            return None;
        }
        let [source, destination] = [12, 16]
            .map(|at| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]).into());
        // "More fragments", and the offset.
        let fragment = read_u16(fixed, 6)? & 0x3fff;
        let protocol = fixed[9];
        let ports =
            if fragment & 0x1fff == 0 { ports(protocol, &packet[payload_at..len]) } else { None };
        Some(Self {
            flow: Flow { source, destination, protocol, ports },
            len,
            payload_at,
            next_header: protocol,
            next_header_at: 9,
            is_fragment: fragment != 0,
        })
    }

    fn parse_ipv6(packet: &[u8]) -> Option<Self> {
        let fixed: &[u8; IPV6_LEN] = packet.first_chunk()?;
        let len = IPV6_LEN + usize::from(read_u16(fixed, 4)?);
        let packet = packet.get(..len)?;
        let source: Ipv6Addr = (*fixed[8..].first_chunk::<16>()?).into();
        let destination: Ipv6Addr = (*fixed[24..].first_chunk::<16>()?).into();
        let (mut next_header, mut next_header_at, mut at) = (fixed[6], 6, IPV6_LEN);
        // RFC 4303 §3.1.1: ESP is behind the headers for each hop and the routing header.
        let mut before_esp = None;
        let (mut is_fragment, mut is_later) = (false, false);
        loop {
            if !matches!(next_header, HOP_BY_HOP | ROUTING) {
                before_esp.get_or_insert((next_header, next_header_at, at));
            }
            let extension_len = match next_header {
                HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(*packet.get(at + 1)?) + 1) * 8,
                FRAGMENT => {
                    is_fragment = true;
                    is_later = read_u16(packet, at + 2)? & !7 != 0;
                    8
                }
                _ => break,
            };
            if is_later {
                // The rest is not the beginning of a header.
                next_header = *packet.get(at)?;
                break;
            }
            (next_header, next_header_at) = (*packet.get(at)?, at);
            at += extension_len;
        }
        let rest = packet.get(at..)?;
        let ports = if is_later { None } else { ports(next_header, rest) };
        let flow = Flow {
            source: source.into(),
            destination: destination.into(),
            protocol: next_header,
            ports,
        };
        let (next_header, next_header_at, payload_at) = before_esp?;
        Some(Self { flow, len, payload_at, next_header, next_header_at, is_fragment })
    }
}

fn ports(protocol: u8, upper: &[u8]) -> Option<(u16, u16)> {
    let has_ports = WITH_PORTS.contains(&protocol);
    if has_ports { Some((read_u16(upper, 0)?, read_u16(upper, 2)?)) } else { None }
}

/// Sets the length and the next header of a packet with complete headers, and over IPv4 the
/// header's checksum.
pub(crate) fn rewrite(packet: &mut [u8], header: &Header, next_header: u8, len: usize) {
    packet[header.next_header_at] = next_header;
    if header.flow.source.is_ipv4() {
        write_u16(packet, 2, u16::try_from(len).unwrap_or(u16::MAX));
        write_ipv4_checksum(&mut packet[..header.payload_at]);
    } else {
        write_u16(packet, 4, u16::try_from(len - IPV6_LEN).unwrap_or(u16::MAX));
    }
}

fn write_ipv4_checksum(header: &mut [u8]) {
    write_u16(header, 10, 0);
    let sum = checksum(&[header]);
    write_u16(header, 10, sum);
}

/// Returns the length of the outer header of a tunnel.
pub(crate) const fn outer_len(source: IpAddr) -> usize {
    if source.is_ipv4() { IPV4_LEN } else { IPV6_LEN }
}

/// Writes the outer header of a tunnel to the front of `packet`, which is the whole packet. DF is
/// set; `traffic_class` is that of the inner packet (RFC 4301 §5.1.2, RFC 6040 §4.1).
///
/// # Panics
/// If the addresses are of different families, or there is no room.
pub(crate) fn write_outer(
    packet: &mut [u8],
    (source, destination): (IpAddr, IpAddr),
    next_header: u8,
    traffic_class: u8,
) {
    let len = u16::try_from(packet.len()).unwrap_or(u16::MAX);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [high, low] = len.to_be_bytes();
            let fixed =
                [0x45, traffic_class, high, low, 0, 0, 0x40, 0, HOP_LIMIT, next_header, 0, 0];
            packet[..12].copy_from_slice(&fixed);
            packet[12..16].copy_from_slice(&source.octets());
            packet[16..20].copy_from_slice(&destination.octets());
            write_ipv4_checksum(&mut packet[..IPV4_LEN]);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let [high, low] = (len - 40).to_be_bytes();
            let class = [0x60 | traffic_class >> 4, traffic_class << 4];
            packet[..2].copy_from_slice(&class);
            packet[2..8].copy_from_slice(&[0, 0, high, low, next_header, HOP_LIMIT]);
            packet[8..24].copy_from_slice(&source.octets());
            packet[24..40].copy_from_slice(&destination.octets());
        }
        _ => unreachable!("the ends of an association have addresses of one family"),
    }
}

/// Returns the traffic class (DSCP and ECN) of a packet that was parsed.
pub(crate) fn traffic_class(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 4 { packet[1] } else { packet[0] << 4 | packet[1] >> 4 }
}

const ECN_MASK: u8 = 3;
const ECN_CE: u8 = 3;

/// Transfers congestion from the outer header to the packet inside (RFC 6040 §4.2). Returns false
/// if the packet must be dropped: the outer header says congestion, the inner packet is not
/// ECN-capable.
pub(crate) fn transfer_congestion(outer_class: u8, inner: &mut [u8], header: &Header) -> bool {
    let class = traffic_class(inner);
    if outer_class & ECN_MASK != ECN_CE || class & ECN_MASK == ECN_CE {
        return true;
    }
    if class & ECN_MASK == 0 {
        return false;
    }
    if header.flow.source.is_ipv4() {
        inner[1] |= ECN_CE;
        write_ipv4_checksum(&mut inner[..header.payload_at]);
    } else {
        inner[1] |= ECN_CE << 4;
    }
    true
}

#[cfg(test)]
mod tests;
