//! Demultiplexing: from a frame to the TCP segment in it, or to the host stack.

mod extension_headers;
mod plain;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use smoltcp::wire::{Ipv4Packet, Ipv6Packet, checksum};
use urnic_netdev::Fragment;

use extension_headers::{Upper, upper_layer};
pub(crate) use plain::{Plain, parse_plain, parse_plain_head};

use crate::port::drops::FrameDrop;
use crate::port::interface::framing::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, LinkFraming, Opened};
use crate::port::interface::reassembly::{DatagramKey, Part};
use crate::tcp;

/// A TCP segment in its IP datagram, with the required checksums verified.
#[derive(Debug)]
pub(crate) struct Inbound<'f> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Source MAC of the frame.
    pub(crate) source_mac: Option<[u8; 6]>,
    /// The ECN field of the IP header.
    pub(crate) ecn: tcp::Ecn,
    /// TCP header and payload, link padding removed.
    pub(crate) segment: &'f [u8],
}

/// Contents of a frame.
#[derive(Debug)]
pub(crate) enum Parsed<'f> {
    Tcp(Inbound<'f>),
    /// A part of an IP datagram.
    Fragment(Opened<'f>, Part<'f>),
    /// A frame for the host stack.
    Other(Opened<'f>),
}

/// Finds the TCP segment in a frame. `verify` asks for the TCP checksum to be checked.
pub(crate) fn parse(
    framing: LinkFraming,
    frame: &[u8],
    verify: bool,
) -> Result<Parsed<'_>, FrameDrop> {
    let opened = framing.open(frame)?;
    match opened.ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(opened, verify),
        ETHERTYPE_IPV6 => parse_ipv6(opened, verify),
        _ => Ok(Parsed::Other(opened)),
    }
}

const PROTOCOL_TCP: u8 = 6;

fn parse_ipv4(opened: Opened<'_>, verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    let datagram = opened.payload;
    let packet = Ipv4Packet::new_checked(datagram).map_err(|_| FrameDrop::Malformed)?;
    if packet.version() != 4 {
        return Err(FrameDrop::Malformed);
    }
    // RFC 1122 §3.2.1.2: the header checksum is verified on every datagram.
    if !packet.verify_checksum() {
        return Err(FrameDrop::IpChecksum);
    }
    let (source, destination) = (IpAddr::V4(packet.src_addr()), IpAddr::V4(packet.dst_addr()));
    let protocol = u8::from(packet.next_header());
    let start = usize::from(packet.header_len());
    let end = usize::from(packet.total_len());
    let payload = datagram.get(start..end).ok_or(FrameDrop::Malformed)?;
    if packet.more_frags() || packet.frag_offset() != 0 {
        let id = u32::from(packet.ident());
        let part = Part {
            key: DatagramKey { source, destination, id, protocol },
            offset: usize::from(packet.frag_offset()),
            more: packet.more_frags(),
            header: &datagram[..start],
            next_header: None,
            payload,
        };
        return Ok(Parsed::Fragment(opened, part));
    }
    if protocol != PROTOCOL_TCP {
        return Ok(Parsed::Other(opened));
    }
    check_unicast(&opened)?;
    let source_mac = opened.source_mac();
    let ecn = tcp::Ecn::from_bits(packet.ecn());
    checked(Inbound { source, destination, source_mac, ecn, segment: payload }, verify)
}

fn parse_ipv6(opened: Opened<'_>, verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    let packet = Ipv6Packet::new_checked(opened.payload).map_err(|_| FrameDrop::Malformed)?;
    if packet.version() != 6 {
        return Err(FrameDrop::Malformed);
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    // RFC 4291 §2.5.5.2: IPv4-mapped addresses are for sockets; on the wire they would match the
    // IPv4 connection with the mapped address.
    if source.to_ipv4_mapped().is_some() || destination.to_ipv4_mapped().is_some() {
        return Err(FrameDrop::Malformed);
    }
    let datagram = opened.payload.get(..packet.total_len()).ok_or(FrameDrop::Malformed)?;
    match upper_layer(datagram, source, destination)? {
        Upper::Tcp(segment) => {
            check_unicast(&opened)?;
            let (source, destination) = (IpAddr::V6(source), IpAddr::V6(destination));
            let source_mac = opened.source_mac();
            // RFC 3168 §5: the last two bits of the traffic class.
            let ecn = tcp::Ecn::from_bits(packet.traffic_class());
            checked(Inbound { source, destination, source_mac, ecn, segment }, verify)
        }
        Upper::Fragment(part) => Ok(Parsed::Fragment(opened, part)),
        Upper::Other => Ok(Parsed::Other(opened)),
    }
}

/// Refuses a datagram to one host in a frame to several (RFC 1122 §3.3.6); TCP has no multicast
/// (RFC 9293 §3.9.2.3).
fn check_unicast(opened: &Opened<'_>) -> Result<(), FrameDrop> {
    if opened.is_multicast() { Err(FrameDrop::Foreign) } else { Ok(()) }
}

#[inline]
fn checked(inbound: Inbound<'_>, verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    // RFC 9293 MUST-3: the checksum is verified on every segment.
    // spec: TCP-9293-1
    if verify && !tcp_checksum_is_right(&inbound) {
        return Err(FrameDrop::TcpChecksum);
    }
    Ok(Parsed::Tcp(inbound))
}

fn tcp_checksum_is_right(inbound: &Inbound<'_>) -> bool {
    let Inbound { segment, source, destination, source_mac: _, ecn: _ } = *inbound;
    let addresses = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => checksum::combine(&[
            checksum::data(&source.octets()),
            checksum::data(&destination.octets()),
        ]),
        (IpAddr::V6(source), IpAddr::V6(destination)) => checksum::combine(&[
            checksum::data(&source.octets()),
            checksum::data(&destination.octets()),
        ]),
        _ => return false,
    };
    let len = u16::try_from(segment.len()).unwrap_or(u16::MAX);
    let octets = Fragment::from_slice(segment).ones_complement_sum();
    checksum::combine(&[addresses, u16::from(PROTOCOL_TCP), len, octets]) == u16::MAX
}
