//! Cuts TCP segments into smaller ones and merges them into larger ones, as middleboxes and
//! offloads do. Segments with a wrong checksum are not changed, since recutting would repair it.

use std::ops::Range;

use crate::checksum::Sum;
use crate::{Medium, ethernet};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) ip_at: usize,
    version: Version,
    pub(crate) tcp_at: usize,
    pub(crate) payload_at: usize,
    /// End of the IP datagram; padding may follow.
    pub(crate) end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

impl Layout {
    pub(crate) const fn payload_len(&self) -> usize {
        self.end - self.payload_at
    }
}

/// VLAN tags included; that of the whole frame if it ends inside.
pub(crate) fn link_header_len(frame: &[u8], medium: Medium) -> usize {
    match medium {
        Medium::Ip => 0,
        Medium::Ethernet => ethernet::network_header(frame).map_or(frame.len(), |(at, _)| at),
    }
}

/// Finds a TCP segment that may be cut: over IPv4 or plain IPv6, no fragment, with a correct
/// checksum and only flags of a data transfer.
pub(crate) fn parse(frame: &[u8], medium: Medium) -> Option<Layout> {
    locate(frame, medium).filter(|layout| tcp_sum(frame, layout).checksum() == 0)
}

/// Finds a TCP segment like [`parse`], with any value in its checksum field.
pub(crate) fn locate(frame: &[u8], medium: Medium) -> Option<Layout> {
    let ip_at = link_header_len(frame, medium);
    let ip = frame.get(ip_at..)?;
    let (version, header_len, ip_len) = match ip.first()? >> 4 {
        4 => ipv4(ip)?,
        6 => ipv6(ip)?,
        _ => return None,
    };
    let tcp = ip.get(header_len..ip_len)?;
    let tcp_header_len = usize::from(*tcp.get(TCP_OFFSET)? >> 4) * 4;
    if tcp_header_len < TCP_HEADER_LEN || tcp_header_len > tcp.len() {
        return None;
    }
    // SYN and RST use sequence space or end the connection; the urgent pointer is relative.
    if tcp[TCP_FLAGS] & (SYN | RST | URG) != 0 {
        return None;
    }
    Some(Layout {
        ip_at,
        version,
        tcp_at: ip_at + header_len,
        payload_at: ip_at + header_len + tcp_header_len,
        end: ip_at + ip_len,
    })
}

/// Returns true if the frame holds a TCP segment with payload that a later one can be merged with.
pub(crate) fn is_data(frame: &[u8], medium: Medium) -> bool {
    parse(frame, medium).is_some_and(|layout| {
        layout.payload_len() > 0 && frame[layout.tcp_at + TCP_FLAGS] & FIN == 0
    })
}

/// Returns true if the frame holds a TCP segment that only acknowledges.
pub(crate) fn is_pure_ack(frame: &[u8], medium: Medium) -> bool {
    parse(frame, medium).is_some_and(|layout| {
        let flags = frame[layout.tcp_at + TCP_FLAGS];
        layout.payload_len() == 0 && flags & ACK != 0 && flags & FIN == 0
    })
}

/// Writes the segment with `range` of the payload. Its IPv4 identification grows by `id_offset`.
pub(crate) fn piece(
    frame: &[u8],
    layout: &Layout,
    range: Range<usize>,
    id_offset: u16,
    out: &mut Vec<u8>,
) {
    let is_first = range.start == 0;
    let is_last = range.end == layout.payload_len();
    out.clear();
    out.extend_from_slice(&frame[..layout.payload_at]);
    out.extend_from_slice(&frame[layout.payload_at..layout.end][range.clone()]);
    let offset = u32::try_from(range.start).expect("payload of one IP datagram");
    let seq = number(out, layout.tcp_at + TCP_SEQ).wrapping_add(offset);
    out[layout.tcp_at + TCP_SEQ..][..4].copy_from_slice(&seq.to_be_bytes());
    if !is_last {
        out[layout.tcp_at + TCP_FLAGS] &= !(PSH | FIN);
    }
    if !is_first {
        // RFC 3168 §6.1.2: CWR answers one ECE, so only the first piece keeps it.
        out[layout.tcp_at + TCP_FLAGS] &= !CWR;
    }
    if layout.version == Version::V4 {
        let id = identification(out, layout).unwrap_or(0).wrapping_add(id_offset);
        out[layout.ip_at + IPV4_ID..][..2].copy_from_slice(&id.to_be_bytes());
    }
    finish(out, *layout);
}

pub(crate) fn identification(frame: &[u8], layout: &Layout) -> Option<u16> {
    let at = layout.ip_at + IPV4_ID;
    (layout.version == Version::V4).then(|| u16::from_be_bytes([frame[at], frame[at + 1]]))
}

/// All ones is as correct a checksum as zero, but never computed.
pub(crate) fn has_computed_checksums(frame: &[u8], layout: &Layout) -> bool {
    let is_computed = |at: usize| frame[at..at + 2] != [0xff; 2];
    is_computed(layout.tcp_at + TCP_CHECKSUM)
        && (layout.version == Version::V6 || is_computed(layout.ip_at + IPV4_CHECKSUM))
}

/// Appends the payload of `second` to `first`, if it continues the same flow with equal headers and
/// the IP datagram stays within `mtu`, and returns true.
pub(crate) fn merge(first: &mut Vec<u8>, second: &[u8], medium: Medium, mtu: usize) -> bool {
    let (Some(a), Some(b)) = (parse(first, medium), parse(second, medium)) else { return false };
    let len = a.end - a.ip_at + b.payload_len();
    if len > mtu || len > usize::from(u16::MAX) || !continues(first, &a, second, &b) {
        return false;
    }
    first.truncate(a.end);
    first.extend_from_slice(&second[b.payload_at..b.end]);
    first[a.tcp_at + TCP_FLAGS] |= second[b.tcp_at + TCP_FLAGS];
    finish(first, a);
    true
}

/// `second` could have been cut from the end of `first`, but for the identifications.
pub(crate) fn continues(first: &[u8], a: &Layout, second: &[u8], b: &Layout) -> bool {
    let (Layout { ip_at, tcp_at, payload_at, .. }, b_at) = (*a, (b.ip_at, b.tcp_at, b.payload_at));
    if (ip_at, tcp_at, payload_at) != b_at || a.version != b.version {
        return false;
    }
    if a.payload_len() == 0 || b.payload_len() == 0 {
        return false;
    }
    let equal = |range: Range<usize>| first[range.clone()] == second[range];
    let ip_equal = match a.version {
        // All except the total length, the identification and the header checksum.
        Version::V4 => {
            equal(ip_at..ip_at + 2) && equal(ip_at + 6..ip_at + 10) && equal(ip_at + 12..tcp_at)
        }
        // All except the payload length.
        Version::V6 => equal(ip_at..ip_at + 4) && equal(ip_at + 6..tcp_at),
    };
    // Ports, acknowledgment and offset; the window; behind the checksum urgent pointer and options.
    let tcp_equal = equal(tcp_at..tcp_at + TCP_SEQ)
        && equal(tcp_at + TCP_SEQ + 4..tcp_at + TCP_FLAGS)
        && equal(tcp_at + TCP_FLAGS + 1..tcp_at + TCP_CHECKSUM)
        && equal(tcp_at + TCP_CHECKSUM + 2..payload_at);
    let flags = [first[tcp_at + TCP_FLAGS], second[tcp_at + TCP_FLAGS]];
    let flags_allow = flags[0] & FIN == 0 && (flags[0] ^ flags[1]) & !(PSH | FIN) == 0;
    let len = u32::try_from(a.payload_len()).expect("payload of one IP datagram");
    let next = number(first, tcp_at + TCP_SEQ).wrapping_add(len);
    equal(0..ip_at)
        && ip_equal
        && tcp_equal
        && flags_allow
        && number(second, tcp_at + TCP_SEQ) == next
}

/// Version, header length and total length of an IPv4 datagram with a whole TCP segment.
fn ipv4(ip: &[u8]) -> Option<(Version, usize, usize)> {
    let header = ip.get(..IPV4_HEADER_LEN)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // Neither the first nor a later fragment.
    let is_whole = (header[6] & 0x3f, header[7]) == (0, 0);
    let is_tcp = header[9] == PROTOCOL_TCP;
    let is_sound = header_len >= IPV4_HEADER_LEN
        && header_len <= total_len
        && Sum::default().octets(ip.get(..header_len)?).checksum() == 0;
    (is_whole && is_tcp && is_sound).then_some((Version::V4, header_len, total_len))
}

/// Like [`ipv4`], for an IPv6 packet with TCP directly behind the header.
fn ipv6(ip: &[u8]) -> Option<(Version, usize, usize)> {
    let header = ip.get(..IPV6_HEADER_LEN)?;
    let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let is_tcp = header[6] == PROTOCOL_TCP;
    is_tcp.then_some((Version::V6, IPV6_HEADER_LEN, IPV6_HEADER_LEN + payload_len))
}

/// Writes lengths and checksums of a changed frame, which ends with its datagram.
fn finish(frame: &mut [u8], layout: Layout) {
    let layout = finish_network(frame, layout);
    let field = layout.tcp_at + TCP_CHECKSUM;
    frame[field..field + 2].fill(0);
    let checksum = tcp_sum(frame, &layout).checksum();
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Like [`finish`], but leaves the checksum to a device: writes the sum of the pseudo-header.
pub(crate) fn finish_partial(frame: &mut [u8], layout: Layout) {
    let layout = finish_network(frame, layout);
    let sum = !pseudo_header(frame, &layout).checksum();
    frame[layout.tcp_at + TCP_CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
}

fn finish_network(frame: &mut [u8], layout: Layout) -> Layout {
    let layout = Layout { end: frame.len(), ..layout };
    let ip = &mut frame[layout.ip_at..layout.end];
    let length = |len: usize| u16::try_from(len).expect("no longer than an IP datagram");
    match layout.version {
        Version::V4 => {
            let total_len = length(ip.len());
            ip[2..4].copy_from_slice(&total_len.to_be_bytes());
            let header = &mut ip[..layout.tcp_at - layout.ip_at];
            header[10..12].fill(0);
            let checksum = Sum::default().octets(header).checksum();
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        Version::V6 => {
            let payload_len = length(ip.len() - IPV6_HEADER_LEN);
            ip[4..6].copy_from_slice(&payload_len.to_be_bytes());
        }
    }
    layout
}

fn tcp_sum(frame: &[u8], layout: &Layout) -> Sum {
    pseudo_header(frame, layout).octets(&frame[layout.tcp_at..layout.end])
}

fn pseudo_header(frame: &[u8], layout: &Layout) -> Sum {
    let ip = &frame[layout.ip_at..];
    let addresses = match layout.version {
        Version::V4 => &ip[12..20],
        Version::V6 => &ip[8..40],
    };
    let len = u32::try_from(layout.end - layout.tcp_at).expect("no longer than an IP datagram");
    // RFC 9293 §3.1: "a pseudo-header [...] conceptually prefixed to the TCP header".
    Sum::default().octets(addresses).number(u32::from(PROTOCOL_TCP)).number(len)
}

fn number(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

const IPV4_ID: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;
const PROTOCOL_TCP: u8 = 6;
const TCP_SEQ: usize = 4;
const TCP_OFFSET: usize = 12;
pub(crate) const TCP_FLAGS: usize = 13;
pub(crate) const TCP_CHECKSUM: usize = 16;
const TCP_HEADER_LEN: usize = 20;
pub(crate) const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
pub(crate) const CWR: u8 = 0x80;

#[cfg(test)]
pub(crate) mod tests;
