//! Demultiplexing: from a frame to the TCP segment in it, or to the host stack. One parser for
//! contiguous frames and for the heads of frames in fragments; before it a fast path for plain
//! frames. `tests/engine/forms.rs` compares both forms of a frame, and `tests.rs` here compares the
//! parser with smoltcp's.

mod extension_headers;
mod plain;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use urnic_netdev::SharedSlice;

use extension_headers::{Upper, upper_layer};
pub(crate) use plain::parse_plain;

use crate::port::drops::FrameDrop;
use crate::port::interface::framing::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_LEN, IPV6_LEN, LinkFraming, Opened, PROTOCOL_TCP,
};
use crate::port::interface::reassembly::{DatagramKey, Part};
use crate::port::tuple::{Tuple, is_mapped_ipv4, mapped_ipv4};
use crate::tcp;

/// A TCP segment in its IP datagram, with the required checksums verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inbound<'f> {
    /// Source address, in the form of [`Tuple`].
    source: u128,
    destination: u128,
    pub(crate) ecn: tcp::Ecn,
    /// TCP header and payload, link padding removed: as much of them as the head contains.
    pub(crate) segment: &'f [u8],
    pub(crate) padding_len: usize,
}

impl Inbound<'_> {
    #[inline(always)]
    pub(crate) fn tuple(&self, source_port: u16, destination_port: u16) -> Tuple {
        Tuple::of_mapped(self.destination, destination_port, self.source, source_port)
    }
}

#[derive(Debug)]
pub(crate) enum Parsed<'f> {
    Tcp(Inbound<'f>),
    Fragment(Opened<'f>, Part<'f>),
    Other(Opened<'f>),
}

/// Finds the TCP segment in a frame of `frame_len` bytes that begins with `head`. `verify`: check
/// the TCP checksum, which requires all of the frame. If `head` is shorter, only [`Parsed::Tcp`]
/// has a meaning: otherwise parse the whole frame.
#[inline(always)]
pub(crate) fn parse(
    framing: LinkFraming,
    head: &[u8],
    frame_len: usize,
    verify: bool,
) -> Result<Parsed<'_>, FrameDrop> {
    let opened = framing.open(head)?;
    let len = frame_len - (head.len() - opened.payload.len());
    match opened.ethertype {
        ETHERTYPE_IPV4 => parse_ipv4(opened, len, verify),
        ETHERTYPE_IPV6 => parse_ipv6(opened, len, verify),
        _ => Ok(Parsed::Other(opened)),
    }
}

/// Not zero in a fragment: "more fragments", and the offset in units of eight bytes.
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// `len` is the number of bytes of the frame from the IP header on.
#[inline(always)]
fn parse_ipv4(opened: Opened<'_>, len: usize, verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    let datagram = opened.payload;
    let fixed: &[u8; IPV4_LEN] = datagram.first_chunk().ok_or(FrameDrop::Malformed)?;
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let start = usize::from(fixed[0] & 15) * 4;
    let end = usize::from(word(2));
    if fixed[0] >> 4 != 4 || start < IPV4_LEN || end < start || end > len {
        return Err(FrameDrop::Malformed);
    }
    // RFC 1122 §3.2.1.2: the header checksum is verified on every datagram.
    let sum = if start == IPV4_LEN {
        sum_of_words(fixed)
    } else {
        sum_of_words(datagram.get(..start).ok_or(FrameDrop::Malformed)?)
    };
    if !is_right_sum(sum) {
        return Err(FrameDrop::IpChecksum);
    }
    let payload = datagram.get(start..end.min(datagram.len())).ok_or(FrameDrop::Malformed)?;
    let address =
        |at: usize| Ipv4Addr::from([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    let (source, destination) = (address(12), address(16));
    let (protocol, fragment) = (fixed[9], word(6));
    if fragment & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
        let (source, destination) = (IpAddr::V4(source), IpAddr::V4(destination));
        let part = Part {
            key: DatagramKey { source, destination, id: u32::from(word(4)), protocol },
            offset: usize::from(fragment & FRAGMENT_OFFSET) * 8,
            more: fragment & MORE_FRAGMENTS != 0,
            header: &datagram[..start],
            next_header: None,
            payload,
        };
        return Ok(Parsed::Fragment(opened, part));
    }
    if protocol != PROTOCOL_TCP {
        return Ok(Parsed::Other(opened));
    }
    let inbound = Inbound {
        source: mapped_ipv4(source),
        destination: mapped_ipv4(destination),
        ecn: tcp::Ecn::from_bits(fixed[1]),
        segment: payload,
        padding_len: len - end,
    };
    checked(&opened, inbound, verify)
}

/// `len` is the number of bytes of the frame from the IP header on.
#[inline(always)]
fn parse_ipv6(opened: Opened<'_>, len: usize, verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    let (fixed, _) = opened.payload.split_first_chunk::<IPV6_LEN>().ok_or(FrameDrop::Malformed)?;
    let end = IPV6_LEN + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if fixed[0] >> 4 != 6 || end > len {
        return Err(FrameDrop::Malformed);
    }
    let [source, destination] = [8, 24].map(|at| {
        let octets = fixed[at..].first_chunk().expect("16 bytes of 40");
        u128::from_be_bytes(*octets)
    });
    // RFC 4291 §2.5.5.2: IPv4-mapped addresses are for sockets; on the wire they would match the
    // IPv4 connection.
    if is_mapped_ipv4(source) || is_mapped_ipv4(destination) {
        return Err(FrameDrop::Malformed);
    }
    let datagram = &opened.payload[..end.min(opened.payload.len())];
    let segment = if fixed[6] == PROTOCOL_TCP {
        &datagram[IPV6_LEN..]
    } else {
        let [source, destination] = [source, destination].map(Ipv6Addr::from_bits);
        match upper_layer(datagram, source, destination)? {
            Upper::Tcp(segment) => segment,
            Upper::Fragment(part) => return Ok(Parsed::Fragment(opened, part)),
            Upper::Other => return Ok(Parsed::Other(opened)),
        }
    };
    // RFC 3168 §5: the last two bits of the traffic class.
    let ecn = tcp::Ecn::from_bits(fixed[1] >> 4);
    let padding_len = len - end;
    checked(&opened, Inbound { source, destination, ecn, segment, padding_len }, verify)
}

#[inline(always)]
fn checked<'f>(
    opened: &Opened<'f>,
    inbound: Inbound<'f>,
    verify: bool,
) -> Result<Parsed<'f>, FrameDrop> {
    // RFC 1122 §3.3.6: a datagram to one host in a frame to several is refused; TCP has no
    // multicast (RFC 9293 §3.9.2.3).
    if opened.is_multicast() {
        return Err(FrameDrop::Foreign);
    }
    // RFC 9293 MUST-3: the checksum is verified on every segment.
    // spec: TCP-9293-1
    if verify && !tcp_checksum_is_right(&inbound) {
        return Err(FrameDrop::TcpChecksum);
    }
    Ok(Parsed::Tcp(inbound))
}

fn tcp_checksum_is_right(inbound: &Inbound<'_>) -> bool {
    let Inbound { segment, source, destination, .. } = *inbound;
    // The prefix of an IPv4 address in this form adds 0xffff, which is zero in this arithmetic.
    let addresses = sum_of_words(&source.to_be_bytes()) + sum_of_words(&destination.to_be_bytes());
    let len = u16::try_from(segment.len()).unwrap_or(u16::MAX);
    let octets = SharedSlice::from_bytes(segment).ones_complement_sum();
    let words = [u16::from(PROTOCOL_TCP), len, octets].map(|word| u64::from(word.to_be()));
    is_right_sum(addresses + words.into_iter().sum::<u64>())
}

/// In the byte order of the machine (RFC 1071 §2 (B)).
#[inline(always)]
fn sum_of_words(octets: &[u8]) -> u64 {
    let (words, _) = octets.as_chunks::<4>();
    words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}

/// In ones' complement arithmetic a right sum is zero (RFC 1071).
fn is_right_sum(sum: u64) -> bool {
    sum.is_multiple_of(0xffff)
}
