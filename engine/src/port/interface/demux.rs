//! Demultiplexing: from a frame to the TCP segment in it, or to the host stack.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{Ipv4Packet, Ipv6Packet, checksum};
use urnic_netdev::Fragment;

use crate::limits::EXTENSION_HEADERS_MAX;
use crate::port::drops::FrameDrop;
use crate::port::interface::framing::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, LinkFraming, Opened};
use crate::port::interface::reassembly::{DatagramKey, Part};
use crate::port::tuple::Tuple;
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

/// A TCP segment in a plain IPv4 datagram; see [`parse_plain`].
#[derive(Debug)]
pub(crate) struct Plain<'f> {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    source_mac: [u8; 6],
    pub(crate) ecn: tcp::Ecn,
    pub(crate) segment: &'f [u8],
}

impl<'f> Plain<'f> {
    /// Returns the same segment in the general form.
    pub(crate) fn inbound(&self) -> Inbound<'f> {
        let Self { source, destination, source_mac, ecn, segment } = *self;
        let (source, destination) = (IpAddr::V4(source), IpAddr::V4(destination));
        Inbound { source, destination, source_mac: Some(source_mac), ecn, segment }
    }

    /// The addresses of its connection.
    #[inline]
    pub(crate) fn tuple(&self, header: &tcp::Header) -> Tuple {
        Tuple::of_ipv4(self.destination, header.dst_port, self.source, header.src_port)
    }
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

/// Fast path: finds the TCP segment in a plain IPv4 frame with right checksums. `verify` asks for
/// the TCP checksum to be checked. Returns `None` for any other frame: [`parse`] must process it.
#[inline(always)]
pub(crate) fn parse_plain(framing: LinkFraming, frame: &[u8], verify: bool) -> Option<Plain<'_>> {
    if framing != LinkFraming::Ethernet {
        return None;
    }
    let (plain, _) = plain_ipv4(frame, frame.len())?;
    // RFC 9293 MUST-3: the checksum is verified on every segment.
    (!verify || tcp_checksum_is_right(&plain.inbound())).then_some(plain)
}

/// Finds the TCP segment in a plain frame of `frame_len` bytes whose `head` alone is given, with a
/// right checksum. Returns the segment as far as it is in the head; the segment must end with the
/// frame.
#[inline]
pub(crate) fn parse_plain_head(
    framing: LinkFraming,
    head: &[u8],
    frame_len: usize,
) -> Option<Inbound<'_>> {
    if framing != LinkFraming::Ethernet {
        return None;
    }
    let ipv4 = plain_ipv4(head, frame_len).map(|(plain, end)| (plain.inbound(), end));
    let (inbound, end) = ipv4.or_else(|| plain_ipv6(head, frame_len))?;
    (end == frame_len).then_some(inbound)
}

/// Hint from the beginning of a plain frame. Nothing is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Glimpse {
    /// The addresses of its connection.
    pub(crate) tuple: Tuple,
    /// The segment has data.
    pub(crate) data: bool,
}

/// Returns the hint from the beginning of a frame, if it is plain.
pub(crate) fn glimpse(framing: LinkFraming, head: &[u8]) -> Option<Glimpse> {
    if framing != LinkFraming::Ethernet {
        return None;
    }
    let (ethernet, datagram) = head.split_first_chunk::<ETHERNET_LEN>()?;
    let ends: (IpAddr, IpAddr);
    let (segment, len) = match *ethernet {
        [.., 0x08, 0x00] => {
            let (ip, segment) = datagram.split_first_chunk::<IPV4_LEN>()?;
            let &[0x45, _, m, n, _, _, _, _, _, PROTOCOL_TCP, _, _, a, b, c, d, e, f, g, h] = ip
            else {
                return None;
            };
            ends = ([a, b, c, d].into(), [e, f, g, h].into());
            (segment, usize::from(u16::from_be_bytes([m, n])).saturating_sub(IPV4_LEN))
        }
        [.., 0x86, 0xdd] => {
            let (ip, segment) = datagram.split_first_chunk::<IPV6_LEN>()?;
            let &[_, _, _, _, m, n, PROTOCOL_TCP, ..] = ip else { return None };
            let address = |at: usize| ip[at..].first_chunk::<16>().map(|octets| (*octets).into());
            ends = (address(8)?, address(24)?);
            (segment, usize::from(u16::from_be_bytes([m, n])))
        }
        _ => return None,
    };
    let &[a, b, c, d, _, _, _, _, _, _, _, _, offset] = segment.first_chunk()?;
    let [from, to] = [[a, b], [c, d]].map(u16::from_be_bytes);
    let tuple = Tuple::new(ends.1, to, ends.0, from);
    Some(Glimpse { tuple, data: len > usize::from(offset >> 4) * 4 })
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

/// Accepts an untagged, unfragmented IPv4 datagram without options, with TCP and a right header
/// checksum, as nearly every frame is. Any other frame takes the general path.
///
/// Also returns the end of the datagram inside the frame of `frame_len` bytes. The segment is cut
/// to what is in `frame`.
#[inline(always)]
fn plain_ipv4(frame: &[u8], frame_len: usize) -> Option<(Plain<'_>, usize)> {
    let head: &[u8; PLAIN_LEN] = frame.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let fragment = word(20) & 0x3fff != 0;
    let multicast = head[0] & 1 != 0;
    if word(12) != 0x0800 || head[14] != 0x45 || head[23] != PROTOCOL_TCP || fragment || multicast {
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
    let end = ETHERNET_LEN + usize::from(word(16));
    if end > frame_len {
        return None;
    }
    let segment = frame.get(PLAIN_LEN..end.min(frame.len()))?;
    let address = |at: usize| Ipv4Addr::from([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *head;
    let source_mac = [a, b, c, d, e, f];
    let ecn = tcp::Ecn::from_bits(head[15]);
    let (source, destination) = (address(26), address(30));
    Some((Plain { source, destination, source_mac, ecn, segment }, end))
}

/// Accepts a plain datagram over IPv6, as [`plain_ipv4`] does: no tag, no extension headers.
fn plain_ipv6(frame: &[u8], frame_len: usize) -> Option<(Inbound<'_>, usize)> {
    let (ethernet, datagram) = frame.split_first_chunk::<ETHERNET_LEN>()?;
    let [to, _, _, _, _, _, a, b, c, d, e, f, kind @ ..] = *ethernet;
    let (fixed, _) = datagram.split_first_chunk::<IPV6_LEN>()?;
    let is_plain = u16::from_be_bytes(kind) == ETHERTYPE_IPV6
        && fixed[0] >> 4 == 6
        && fixed[6] == PROTOCOL_TCP
        && to & 1 == 0;
    if !is_plain {
        return None;
    }
    let end = ETHERNET_LEN + IPV6_LEN + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if end > frame_len {
        return None;
    }
    let segment = frame.get(ETHERNET_LEN + IPV6_LEN..end.min(frame.len()))?;
    let address = |at: usize| fixed[at..].first_chunk().map(|octets| Ipv6Addr::from(*octets));
    let (source, destination) = (address(8)?, address(24)?);
    // As in `parse_ipv6`.
    if source.to_ipv4_mapped().is_some() || destination.to_ipv4_mapped().is_some() {
        return None;
    }
    let (source, destination) = (IpAddr::V6(source), IpAddr::V6(destination));
    let source_mac = Some([a, b, c, d, e, f]);
    // RFC 3168 §5: the last two bits of the traffic class.
    let ecn = tcp::Ecn::from_bits(fixed[1] >> 4);
    Some((Inbound { source, destination, source_mac, ecn, segment }, end))
}

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const ETHERNET_LEN: usize = 14;
/// Bytes of an Ethernet and an IPv4 header.
const PLAIN_LEN: usize = ETHERNET_LEN + 20;
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

/// Contents of an IPv6 datagram behind its extension headers.
enum Upper<'f> {
    Tcp(&'f [u8]),
    Fragment(Part<'f>),
    Other,
}

/// Walks the extension headers (RFC 8200 §4) that may precede TCP, up to a limit, which RFC 8504
/// §5.3 allows.
fn upper_layer(
    datagram: &[u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
) -> Result<Upper<'_>, FrameDrop> {
    let mut next_header_at = IPV6_NEXT_HEADER_AT;
    let mut at = IPV6_HEADER_LEN;
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let next_header = datagram[next_header_at];
        let rest = datagram.get(at..).ok_or(FrameDrop::Malformed)?;
        match next_header {
            PROTOCOL_TCP => return Ok(Upper::Tcp(rest)),
            HOP_BY_HOP if at != IPV6_HEADER_LEN => return Err(FrameDrop::Malformed),
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => {
                let [_, words, _, segments_left, ..] = *rest else {
                    return Err(FrameDrop::Malformed);
                };
                // RFC 8200 §4.4: a datagram whose route is not complete is not for this host.
                if next_header == ROUTING && segments_left != 0 {
                    return Ok(Upper::Other);
                }
                next_header_at = at;
                at += (usize::from(words) + 1) * 8;
            }
            FRAGMENT => {
                let Some((&[next, _, a, b, id @ ..], payload)) =
                    rest.split_first_chunk::<FRAGMENT_HEADER_LEN>()
                else {
                    return Err(FrameDrop::Malformed);
                };
                let word = u16::from_be_bytes([a, b]);
                let key = DatagramKey {
                    source: IpAddr::V6(source),
                    destination: IpAddr::V6(destination),
                    id: u32::from_be_bytes(id),
                    protocol: next,
                };
                let (offset, more) = (usize::from(word & !7), word & 1 != 0);
                let header = &datagram[..at];
                let next_header = Some((next_header_at, next));
                return Ok(Upper::Fragment(Part {
                    key,
                    offset,
                    more,
                    header,
                    next_header,
                    payload,
                }));
            }
            _ => return Ok(Upper::Other),
        }
    }
    Err(FrameDrop::Malformed)
}

const IPV6_HEADER_LEN: usize = 40;
const IPV6_NEXT_HEADER_AT: usize = 6;
const FRAGMENT_HEADER_LEN: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

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
    use crate::port::config::VlanId;

    /// An Ethernet frame with a TCP segment of 20 bytes and no payload, checksums right.
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
        parse(LinkFraming::Ethernet, frame, true)
    }

    #[test]
    fn a_plain_frame_is_taken_the_short_way_and_means_the_same_the_long_way() {
        let mut frame = frame();
        frame.extend([0; 6]);
        let (short, end) = plain_ipv4(&frame, frame.len()).unwrap();
        let short = short.inbound();
        let Ok(Parsed::Tcp(long)) = parse_ipv4(LinkFraming::Ethernet.open(&frame).unwrap(), true)
        else {
            panic!("TCP");
        };
        assert_eq!(format!("{short:?}"), format!("{long:?}"), "link padding removed by both");
        assert_eq!((short.segment.len(), end), (20, 54));
    }

    #[test]
    fn the_head_of_a_frame_says_where_its_segment_ends() {
        let mut frame = frame();
        frame[16..18].copy_from_slice(&1500_u16.to_be_bytes());
        frame[24..26].fill(0);
        let sum = !Fragment::from_slice(&frame[14..34]).ones_complement_sum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        let parse = |frame_len| parse_plain_head(LinkFraming::Ethernet, &frame, frame_len);
        assert_eq!(parse(1514).unwrap().segment, &frame[34..]);
        for frame_len in [54, 1513, 1515] {
            assert!(parse(frame_len).is_none(), "cut short, or padded: {frame_len}");
        }
        assert!(parse_plain_head(LinkFraming::Ip, &frame, 1514).is_none());
    }

    #[test]
    fn a_head_over_ipv6_means_what_the_frame_does() {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 0, 0, 25, 6, 64]);
        for last in [1, 2] {
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        frame.extend([7; 25]);
        let short = parse_plain_head(LinkFraming::Ethernet, &frame, frame.len()).unwrap();
        let opened = LinkFraming::Ethernet.open(&frame).unwrap();
        let Ok(Parsed::Tcp(long)) = parse_ipv6(opened, false) else { panic!("TCP") };
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        assert!(parse_plain_head(LinkFraming::Ethernet, &frame, frame.len() - 1).is_none());
        // Each is for the general path: a multicast, another version, an extension header, a mapped
        // address.
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let odd: [(usize, &[u8]); 5] =
            [(0, &[3]), (14, &[0x40]), (20, &[0]), (22, &mapped), (38, &mapped)];
        for (at, octets) in odd {
            let mut frame = frame.clone();
            frame[at..at + octets.len()].copy_from_slice(octets);
            let parsed = parse_plain_head(LinkFraming::Ethernet, &frame, frame.len());
            assert!(parsed.is_none(), "octets {octets:?} at {at}");
        }
    }

    #[test]
    fn a_glimpse_of_a_frame_tells_what_a_look_would() {
        let v4 = frame();
        let mut v6 = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        v6.extend([0x60, 0, 0, 0, 0, 20, PROTOCOL_TCP, 64]);
        for last in [2, 1] {
            v6.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        v6.extend([7, 1, 7, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        let mut with_data = v6.clone();
        with_data[19] += 1;
        with_data.push(9);
        for frame in [&v4, &v6, &with_data] {
            let inbound = parse_plain_head(LinkFraming::Ethernet, frame, frame.len()).unwrap();
            let (header, payload_at) = tcp::Header::parse(inbound.segment).unwrap();
            let (to, from) = (inbound.destination, inbound.source);
            let tuple = Tuple::new(to, header.dst_port, from, header.src_port);
            let data = inbound.segment.len() > payload_at;
            let expected = Some(Glimpse { tuple, data });
            assert_eq!(glimpse(LinkFraming::Ethernet, frame), expected);
            // Bytes behind the headers are not needed, and incomplete headers give no hint.
            let headers_len = frame.len() - inbound.segment.len() + payload_at;
            assert_eq!(glimpse(LinkFraming::Ethernet, &frame[..headers_len]), expected);
            let short = headers_len - 8;
            assert!((0..short).all(|len| glimpse(LinkFraming::Ethernet, &frame[..len]).is_none()));
            assert_eq!(glimpse(LinkFraming::Ip, frame), None);
        }
    }

    #[test]
    fn a_segment_in_a_frame_to_a_group_is_dropped() {
        for octet in [0x01, 0x33, 0xff] {
            let mut frame = frame();
            frame[0] = octet;
            assert_eq!(parse_checked(&frame).unwrap_err(), FrameDrop::Foreign, "{octet:x}");
        }
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
        let framing = LinkFraming::Tagged(VlanId::new(5).unwrap());
        framing.seal(&mut tagged);
        assert!(matches!(parse(framing, &tagged, true), Ok(Parsed::Tcp(_))));
        assert_eq!(parse_checked(&tagged).unwrap_err(), FrameDrop::Vlan);
        assert_eq!(parse(framing, &good, true).unwrap_err(), FrameDrop::Vlan);
        assert!(matches!(parse(LinkFraming::Ip, &good[14..], true), Ok(Parsed::Tcp(_))));
    }

    #[test]
    fn mapped_addresses_on_the_wire_do_not_pass_for_an_ipv4_connection() {
        let mut datagram = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
        for last in [1, 2] {
            datagram.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
        }
        datagram.extend([0; 20]);
        let parsed = parse(LinkFraming::Ip, &datagram, false);
        assert_eq!(parsed.unwrap_err(), FrameDrop::Malformed);
    }

    #[test]
    fn a_fragment_is_told_from_a_segment() {
        let mut fragment = frame();
        fragment[20] = 0x20;
        fragment[24..26].fill(0);
        let sum = !Fragment::from_slice(&fragment[14..34]).ones_complement_sum();
        fragment[24..26].copy_from_slice(&sum.to_be_bytes());
        let Ok(Parsed::Fragment(_, part)) = parse_checked(&fragment) else { panic!("a fragment") };
        assert_eq!((part.offset, part.more, part.payload.len()), (0, true, 20));
    }

    #[test]
    fn a_header_that_is_shorter_than_a_header_is_none() {
        for words in 0..5_u8 {
            let mut short = frame();
            short[14] = 0x40 | words;
            short[20] = 0x20;
            let header_len = usize::from(words) * 4;
            // Completes the sum over so few bytes.
            if header_len >= 4 {
                short[14 + header_len - 2..14 + header_len].fill(0);
                let sum = !checksum::data(&short[14..14 + header_len]);
                short[14 + header_len - 2..14 + header_len].copy_from_slice(&sum.to_be_bytes());
            }
            let parsed = parse_checked(&short);
            assert!(!matches!(parsed, Ok(Parsed::Tcp(_) | Parsed::Fragment(..))), "{words} words");
        }
    }

    /// A datagram with these headers, each of 8 bytes, before 20 bytes of TCP.
    fn extended(headers: &[u8]) -> Vec<u8> {
        let len = u8::try_from(8 * headers.len() + 20).unwrap();
        let mut chain = headers.to_vec();
        chain.push(PROTOCOL_TCP);
        let mut datagram = vec![0x60, 0, 0, 0, 0, len, chain[0], 64];
        datagram.extend([0xfd; 32]);
        for next in &chain[1..] {
            datagram.extend([*next, 0, 0, 0, 0, 0, 0, 0]);
        }
        datagram.extend([9; 20]);
        datagram
    }

    #[test]
    fn extension_headers_are_walked_and_not_for_ever() {
        let parsed = |headers: &[u8]| {
            parse(LinkFraming::Ip, &extended(headers), false)
                .map(|parsed| matches!(parsed, Parsed::Tcp(Inbound { segment: [9, ..], .. })))
        };
        assert_eq!(parsed(&[]), Ok(true));
        assert_eq!(parsed(&[HOP_BY_HOP, DESTINATION_OPTIONS, ROUTING]), Ok(true));
        assert_eq!(parsed(&[DESTINATION_OPTIONS, HOP_BY_HOP]), Err(FrameDrop::Malformed));
        assert_eq!(parsed(&[51]), Ok(false), "authentication is not ours to check");
        assert_eq!(parsed(&[DESTINATION_OPTIONS; EXTENSION_HEADERS_MAX]), Ok(true));
        let endless = [DESTINATION_OPTIONS; EXTENSION_HEADERS_MAX + 1];
        assert_eq!(parsed(&endless), Err(FrameDrop::Malformed));
        // A length that points beyond the datagram.
        let mut datagram = extended(&[DESTINATION_OPTIONS]);
        datagram[41] = 200;
        assert_eq!(parse(LinkFraming::Ip, &datagram, false).unwrap_err(), FrameDrop::Malformed);
    }

    #[test]
    fn an_ipv6_fragment_says_what_to_put_back_together() {
        let mut datagram = extended(&[DESTINATION_OPTIONS, FRAGMENT]);
        datagram[50..56].copy_from_slice(&[0x00, 0x11, 1, 2, 3, 4]);
        let Ok(Parsed::Fragment(_, part)) = parse(LinkFraming::Ip, &datagram, false) else {
            panic!("a fragment")
        };
        assert_eq!((part.offset, part.more, part.payload), (16, true, &[9; 20][..]));
        assert_eq!((part.header.len(), part.next_header), (48, Some((40, PROTOCOL_TCP))));
        assert_eq!(part.key.id, 0x0102_0304);
    }
}
