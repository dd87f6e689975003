//! Fast path: plain frames. They are untagged Ethernet frames with a whole IP datagram without
//! options or extension headers.
//!
//! Any other frame takes the general path, [`parse`](super::parse). The tests of [`demux`](super)
//! compare both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Inbound, PROTOCOL_TCP, tcp_checksum_is_right};
use crate::port::interface::framing::{ETHERTYPE_IPV6, LinkFraming};
use crate::port::tuple::Tuple;
use crate::tcp;

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

/// Finds the TCP segment in a plain IPv4 frame. `verify` asks for the TCP checksum to be checked.
/// Returns `None` for any other frame and for a wrong checksum: [`parse`](super::parse) must
/// process the frame.
#[inline(always)]
pub(crate) fn parse_plain(framing: LinkFraming, frame: &[u8], verify: bool) -> Option<Plain<'_>> {
    if framing != LinkFraming::Ethernet {
        return None;
    }
    let (plain, _) = plain_ipv4(frame, frame.len())?;
    // RFC 9293 MUST-3: the checksum is verified on every segment.
    (!verify || tcp_checksum_is_right(&plain.inbound())).then_some(plain)
}

/// Finds the TCP segment in a plain frame of `frame_len` bytes whose first bytes are `head`. The
/// caller knows that the TCP checksum is right. Returns the part of the segment that is in `head`.
/// Returns `None` for any other frame, and for a frame with link padding.
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

/// Accepts an untagged, unfragmented IPv4 datagram without options, with TCP and a right header
/// checksum, as nearly every frame is. Any other frame takes the general path.
///
/// Also returns the end of the datagram in the frame of `frame_len` bytes. If `frame` ends before
/// the datagram, the returned segment ends there, too.
#[inline(always)]
pub(super) fn plain_ipv4(frame: &[u8], frame_len: usize) -> Option<(Plain<'_>, usize)> {
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
