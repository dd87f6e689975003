//! Header in front of frames with kernel offloads: `struct virtio_net_hdr`, in the machine's byte
//! order. Its numbers come from outside: each is checked against the frame.

use std::num::NonZeroU16;

use crate::{RxChecksum, RxFrame, SharedSlice, TransmitError, TxChecksum, TxFrame};
use crate::{checksum, ethernet};

/// Length of the header, without the count of merged buffers that some devices append.
pub(crate) const HEADER_LEN: usize = 10;

/// Longest super-frame that the kernel does not cut in software, in bytes, link header included.
pub(crate) const SUPER_FRAME_LEN_MAX: usize = 65_535;

/// Longest headers: Ethernet with two VLAN tags, IP and TCP.
pub(crate) const HEADERS_LEN_MAX: usize = 22 + 60 + 60;

/// Flag: complete the checksum from `csum_start` on.
const NEEDS_CSUM: u8 = 1;
/// Flag: the checksum has been verified.
const DATA_VALID: u8 = 2;

const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Set in the type if the first segment has CWR (RFC 3168).
const GSO_ECN: u8 = 0x80;

const PROTOCOL_TCP: u8 = 6;
/// Offset of the flags in a TCP header, and the bit of CWR.
const TCP_FLAGS_AT: usize = 13;
const TCP_CWR: u8 = 0x80;

/// Fails for a super-frame that is not TCP over IPv4 or IPv6 without extension headers, which no
/// layer below could cut, and for a checksum outside the frame.
#[inline]
pub(crate) fn encode(frame: &TxFrame<'_>) -> Result<[u8; HEADER_LEN], TransmitError> {
    let mut header = [0; HEADER_LEN];
    if frame.checksum == TxChecksum::Complete && frame.segment_size.is_none() {
        return Ok(header);
    }
    let payload_len: usize = frame.payload.iter().map(SharedSlice::len).sum();
    if let TxChecksum::Partial { start, offset } = frame.checksum {
        let field_end = usize::from(start) + usize::from(offset) + 2;
        if field_end > frame.head.len() + payload_len {
            return Err(TransmitError::Refused);
        }
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
    }
    if let Some(size) = frame.segment_size
        // The kernel considers a super-frame of one segment malformed.
        && payload_len > usize::from(size.get())
    {
        let tcp = transport(frame.head).ok_or(TransmitError::Refused)?;
        if tcp.protocol != PROTOCOL_TCP {
            return Err(TransmitError::Refused);
        }
        let flags = frame.head.get(tcp.at + TCP_FLAGS_AT).ok_or(TransmitError::Refused)?;
        let ecn = if flags & TCP_CWR == 0 { 0 } else { GSO_ECN };
        let head_len = u16::try_from(frame.head.len()).map_err(|_| TransmitError::Refused)?;
        header[1] = ecn | if tcp.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
        header[2..4].copy_from_slice(&head_len.to_ne_bytes());
        header[4..6].copy_from_slice(&size.get().to_ne_bytes());
    }
    Ok(header)
}

/// A partial checksum counts as valid: the bytes never left this machine's memory, or were verified
/// on reception. If it is not that of the outermost TCP, UDP or ICMPv6 header, it is completed in
/// place, and the receiver must verify the frame's own checksum.
pub(crate) fn decode<'a>(header: [u8; HEADER_LEN], bytes: &'a mut [u8]) -> RxFrame<'a> {
    let (checksum, segment_size) = verdict(header, bytes).unwrap_or_else(|| {
        let [_, _, _, _, _, _, start_a, start_b, offset_a, offset_b] = header;
        let start = u16::from_ne_bytes([start_a, start_b]);
        checksum::complete(bytes, start, u16::from_ne_bytes([offset_a, offset_b]));
        (RxChecksum::Unverified, segment_size(header))
    });
    RxFrame::whole(bytes, checksum, segment_size)
}

/// Like [`decode`], for a frame that is not contiguous. `None` if its checksum must be completed.
#[inline]
pub(crate) fn verdict(
    header: [u8; HEADER_LEN],
    head: &[u8],
) -> Option<(RxChecksum, Option<NonZeroU16>)> {
    let [flags, _, _, _, _, _, start_a, start_b, ..] = header;
    let checksum = if flags & NEEDS_CSUM != 0 {
        let start = usize::from(u16::from_ne_bytes([start_a, start_b]));
        transport(head).filter(|transport| transport.at == start)?;
        RxChecksum::Valid
    } else if flags & DATA_VALID != 0 {
        RxChecksum::Valid
    } else {
        RxChecksum::Unverified
    };
    Some((checksum, segment_size(header)))
}

fn segment_size(header: [u8; HEADER_LEN]) -> Option<NonZeroU16> {
    let [_, gso_type, _, _, size_a, size_b, ..] = header;
    match gso_type & !GSO_ECN {
        GSO_TCPV4 | GSO_TCPV6 => NonZeroU16::new(u16::from_ne_bytes([size_a, size_b])),
        _ => None,
    }
}

/// For the same frame with `len` more bytes in front of its transport header.
pub(crate) fn moved_by(mut header: [u8; HEADER_LEN], len: usize) -> [u8; HEADER_LEN] {
    let start = u16::from_ne_bytes([header[6], header[7]]);
    // An invalid offset stays invalid.
    let start = usize::from(start).saturating_add(len).try_into().unwrap_or(u16::MAX);
    header[6..8].copy_from_slice(&u16::to_ne_bytes(start));
    header
}

pub(crate) struct Transport {
    pub(crate) at: usize,
    pub(crate) protocol: u8,
    pub(crate) ipv6: bool,
}

/// `None` behind IPv6 extension headers, in later fragments, and in frames that are not IP.
fn transport(frame: &[u8]) -> Option<Transport> {
    let (at, ethertype) = ethernet::network_header(frame)?;
    transport_behind(frame, at, ethertype)
}

/// Like [`transport`], with the network header at `at`.
pub(crate) fn transport_behind(frame: &[u8], at: usize, ethertype: u16) -> Option<Transport> {
    match ethertype {
        ethernet::IPV4 => {
            let header_len = usize::from(frame.get(at)? & 0x0f) * 4;
            let fragment_offset = u16::from_be_bytes([*frame.get(at + 6)?, *frame.get(at + 7)?]);
            let whole = fragment_offset & 0x1fff == 0 && header_len >= 20;
            let protocol = *frame.get(at + 9)?;
            whole.then_some(Transport { at: at + header_len, protocol, ipv6: false })
        }
        ethernet::IPV6 => {
            let protocol = *frame.get(at + 6)?;
            let known = matches!(protocol, PROTOCOL_TCP | 17 | 58);
            known.then_some(Transport { at: at + 40, protocol, ipv6: true })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
