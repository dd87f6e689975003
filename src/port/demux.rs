//! From a frame to the TCP segment in it, or to the host stack.

use std::net::IpAddr;

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, checksum,
};
use urnic_netdev::{Fragment, Medium};

use crate::port::PortDrops;
use crate::tcp;

/// A TCP segment in its IP datagram, checksums verified where they had to be.
#[derive(Debug)]
pub(crate) struct Inbound<'f> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Who sent it on this link.
    pub(crate) source_mac: Option<[u8; 6]>,
    /// The ECN field of the IP header.
    pub(crate) ecn: tcp::Ecn,
    /// TCP header and payload, link padding removed.
    pub(crate) segment: &'f [u8],
}

/// What a frame is.
#[derive(Debug)]
pub(crate) enum Parsed<'f> {
    Tcp(Inbound<'f>),
    /// Something for the host stack to look at.
    Other,
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameDrop {
    Malformed,
    IpChecksum,
    TcpChecksum,
    Fragment,
}

impl FrameDrop {
    pub(crate) const fn count(self, drops: &mut PortDrops) {
        match self {
            Self::Malformed => drops.malformed += 1,
            Self::IpChecksum => drops.ip_checksum += 1,
            Self::TcpChecksum => drops.tcp_checksum += 1,
            Self::Fragment => drops.fragments += 1,
        }
    }
}

/// Octets of an 802.1Q tag.
const VLAN_TAG_LEN: usize = 4;

/// Finds the TCP segment in a frame. `verify` asks for the TCP checksum to be checked.
pub(crate) fn parse(medium: Medium, frame: &[u8], verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    if medium == Medium::Ethernet
        && let Some(inbound) = plain_ipv4(frame)
    {
        return checked(inbound, verify);
    }
    match medium {
        Medium::Ip => match frame.first().map(|octet| octet >> 4) {
            Some(4) => parse_ipv4(frame, None, verify),
            Some(6) => parse_ipv6(frame, None, verify),
            _ => Err(FrameDrop::Malformed),
        },
        Medium::Ethernet => {
            let ethernet = EthernetFrame::new_checked(frame).map_err(|_| FrameDrop::Malformed)?;
            let mac = Some(ethernet.src_addr().0);
            let (mut ethertype, mut payload) = (ethernet.ethertype(), ethernet.payload());
            if matches!(ethertype, EthernetProtocol::Unknown(0x8100 | 0x88a8)) {
                let [_, _, high, low, rest @ ..] = payload else {
                    return Err(FrameDrop::Malformed);
                };
                debug_assert_eq!(payload.len() - rest.len(), VLAN_TAG_LEN);
                ethertype = EthernetProtocol::from(u16::from_be_bytes([*high, *low]));
                payload = rest;
            }
            match ethertype {
                EthernetProtocol::Ipv4 => parse_ipv4(payload, mac, verify),
                EthernetProtocol::Ipv6 => parse_ipv6(payload, mac, verify),
                _ => Ok(Parsed::Other),
            }
        }
    }
}

/// What nearly every frame is: an untagged IPv4 datagram without options, whole, with TCP in it,
/// and a right header checksum. Anything else takes the long way.
#[inline]
fn plain_ipv4(frame: &[u8]) -> Option<Inbound<'_>> {
    let head: &[u8; PLAIN_LEN] = frame.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let fragment = word(20) & 0x3fff != 0;
    if word(12) != 0x0800 || head[14] != 0x45 || head[23] != PROTOCOL_TCP || fragment {
        return None;
    }
    // RFC 1071: the sum over a header with a right checksum is all ones, in any byte order.
    let (words, _) = head[ETHERNET_LEN..].as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    if (sum >> 16) + (sum & 0xffff) != 0xffff {
        return None;
    }
    let segment = frame.get(PLAIN_LEN..ETHERNET_LEN + usize::from(word(16)))?;
    let address = |at: usize| IpAddr::from([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *head;
    let source_mac = Some([a, b, c, d, e, f]);
    let ecn = tcp::Ecn::from_bits(head[15]);
    Some(Inbound { source: address(26), destination: address(30), source_mac, ecn, segment })
}

const ETHERNET_LEN: usize = 14;
/// Octets of an Ethernet and an IPv4 header.
const PLAIN_LEN: usize = ETHERNET_LEN + 20;
const PROTOCOL_TCP: u8 = 6;

fn parse_ipv4(
    datagram: &[u8],
    source_mac: Option<[u8; 6]>,
    verify: bool,
) -> Result<Parsed<'_>, FrameDrop> {
    let packet = Ipv4Packet::new_checked(datagram).map_err(|_| FrameDrop::Malformed)?;
    if packet.version() != 4 {
        return Err(FrameDrop::Malformed);
    }
    // RFC 1122 §3.2.1.2: the header checksum is verified on every datagram.
    if !packet.verify_checksum() {
        return Err(FrameDrop::IpChecksum);
    }
    if packet.next_header() != IpProtocol::Tcp {
        return Ok(Parsed::Other);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(FrameDrop::Fragment);
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    let start = usize::from(packet.header_len());
    let end = usize::from(packet.total_len());
    let segment = datagram.get(start..end).ok_or(FrameDrop::Malformed)?;
    let (source, destination) = (IpAddr::V4(source), IpAddr::V4(destination));
    let ecn = tcp::Ecn::from_bits(packet.ecn());
    checked(Inbound { source, destination, source_mac, ecn, segment }, verify)
}

fn parse_ipv6(
    datagram: &[u8],
    source_mac: Option<[u8; 6]>,
    verify: bool,
) -> Result<Parsed<'_>, FrameDrop> {
    let packet = Ipv6Packet::new_checked(datagram).map_err(|_| FrameDrop::Malformed)?;
    if packet.version() != 6 {
        return Err(FrameDrop::Malformed);
    }
    // Extension headers before TCP are rare; smoltcp deals with them.
    if packet.next_header() != IpProtocol::Tcp {
        return Ok(Parsed::Other);
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    // RFC 4291 §2.5.5.2: IPv4-mapped addresses are for programs; on the wire they would pass for
    // the IPv4 connection of that name.
    if source.to_ipv4_mapped().is_some() || destination.to_ipv4_mapped().is_some() {
        return Err(FrameDrop::Malformed);
    }
    let end = packet.total_len();
    let segment = datagram.get(IPV6_HEADER_LEN..end).ok_or(FrameDrop::Malformed)?;
    let (source, destination) = (IpAddr::V6(source), IpAddr::V6(destination));
    // RFC 3168 §5: the last two bits of the traffic class.
    let ecn = tcp::Ecn::from_bits(packet.traffic_class());
    checked(Inbound { source, destination, source_mac, ecn, segment }, verify)
}

const IPV6_HEADER_LEN: usize = 40;

#[inline]
fn checked(inbound: Inbound<'_>, verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    // RFC 9293 MUST-3: the checksum is verified on every segment.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet frame with a TCP segment of 20 octets and no payload, checksums right.
    fn frame() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x1c, 6, 0x1c, 7, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        let ip_sum = !Fragment::from_slice(&frame[14..34]).ones_complement_sum();
        frame[24..26].copy_from_slice(&ip_sum.to_be_bytes());
        let sums = [checksum::data(&frame[26..34]), 6, 20, checksum::data(&frame[34..])];
        let tcp_sum = !checksum::combine(&sums);
        frame[50..52].copy_from_slice(&tcp_sum.to_be_bytes());
        frame
    }

    fn parse_checked(frame: &[u8]) -> Result<Parsed<'_>, FrameDrop> {
        parse(Medium::Ethernet, frame, true)
    }

    #[test]
    fn a_plain_frame_is_taken_the_short_way_and_means_the_same_the_long_way() {
        let mut frame = frame();
        frame.extend([0; 6]);
        let short = plain_ipv4(&frame).unwrap();
        let Ok(Parsed::Tcp(long)) = parse_ipv4(&frame[14..], Some([2; 6]), true) else {
            panic!("TCP");
        };
        assert_eq!(format!("{short:?}"), format!("{long:?}"), "link padding removed by both");
        assert_eq!(short.segment.len(), 20);
    }

    #[test]
    fn every_corrupted_octet_is_noticed() {
        let good = frame();
        assert!(matches!(parse_checked(&good), Ok(Parsed::Tcp(_))));
        for at in 14..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(!matches!(parse_checked(&bad), Ok(Parsed::Tcp(_))), "octet {at}");
        }
    }

    #[test]
    fn every_truncation_is_refused() {
        let good = frame();
        for len in 0..good.len() {
            assert!(!matches!(parse_checked(&good[..len]), Ok(Parsed::Tcp(_))), "{len} octets");
        }
    }

    #[test]
    fn a_tagged_frame_and_a_bare_datagram_are_found_too() {
        let good = frame();
        let mut tagged = good.clone();
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        assert!(matches!(parse_checked(&tagged), Ok(Parsed::Tcp(_))));
        assert!(matches!(parse(Medium::Ip, &good[14..], true), Ok(Parsed::Tcp(_))));
    }

    #[test]
    fn mapped_addresses_on_the_wire_do_not_pass_for_an_ipv4_connection() {
        let mut datagram = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        for last in [1, 2] {
            datagram.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
        }
        datagram.extend([0; 20]);
        let parsed = parse(Medium::Ip, &datagram, false);
        assert_eq!(parsed.unwrap_err(), FrameDrop::Malformed);
    }

    #[test]
    fn fragments_are_dropped_and_named() {
        let mut fragment = frame();
        fragment[20] = 0x20;
        fragment[24..26].fill(0);
        let sum = !Fragment::from_slice(&fragment[14..34]).ones_complement_sum();
        fragment[24..26].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(parse_checked(&fragment).unwrap_err(), FrameDrop::Fragment);
    }
}
