//! Segments received super-frames into packets.

use std::num::NonZeroU16;
use std::ops::Range;

use crate::checksum::Sum;
use crate::packets::plain;
use crate::segment::{self, Layout};
use crate::vnet::{self, Transport};
use crate::{Medium, RxFrame, ethernet};

#[derive(Debug, Default)]
pub(super) struct Rest {
    bytes: Vec<u8>,
    next: Option<Next>,
    packet: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    layout: Layout,
    size: usize,
    index: u16,
}

impl Rest {
    pub(super) const fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    pub(super) fn hand_over(&mut self, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        let Self { bytes, next, packet } = self;
        let Some(at) = next else { return 0 };
        let (count, is_done) = at.hand_over(bytes, packet, burst, sink);
        if is_done {
            *next = None;
        }
        count
    }

    /// Hands over at most `burst` packets of a super-frame, and keeps the others. A frame that
    /// cannot be segmented is handed over unchanged.
    pub(super) fn cut(
        &mut self,
        frame: &[u8],
        medium: Medium,
        size: NonZeroU16,
        burst: usize,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> usize {
        let Some(layout) = segment::locate(frame, medium) else {
            sink(RxFrame { segment_size: Some(size), ..plain(frame) });
            return 1;
        };
        let mut next = Next { layout, size: usize::from(size.get()), index: 0 };
        let (count, is_done) = next.hand_over(frame, &mut self.packet, burst, sink);
        if !is_done {
            self.bytes.clear();
            self.bytes.extend_from_slice(frame);
            self.next = Some(next);
        }
        count
    }

    /// Hands over one packet, whose checksum may be partial, with a complete one.
    pub(super) fn complete(
        &mut self,
        frame: &[u8],
        medium: Medium,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> usize {
        self.packet.clear();
        self.packet.extend_from_slice(frame);
        // If no header is found, the transport is unknown here, and its checksum is complete.
        let _found = complete(&mut self.packet, medium);
        sink(plain(&self.packet));
        1
    }
}

impl Next {
    /// Returns the number of packets, and true if the last one is among them.
    fn hand_over(
        &mut self,
        frame: &[u8],
        packet: &mut Vec<u8>,
        burst: usize,
        sink: &mut dyn FnMut(RxFrame<'_>),
    ) -> (usize, bool) {
        let Self { layout, size, index } = self;
        let mut count = 0;
        while count < burst {
            let Range { start, end } = range(*index, *size, layout.payload_len());
            // Like `tcp_gso_segment` and `inet_gso_segment` of Linux.
            segment::piece(frame, layout, start..end, *index, packet);
            sink(plain(packet));
            *index += 1;
            count += 1;
            if end == layout.payload_len() {
                return (count, true);
            }
        }
        (count, false)
    }
}

fn range(index: u16, size: usize, payload_len: usize) -> Range<usize> {
    let start = (usize::from(index) * size).min(payload_len);
    start..start.saturating_add(size).min(payload_len)
}

/// Covers the outermost TCP, UDP or ICMPv6 header; `None` without one.
fn complete(frame: &mut [u8], medium: Medium) -> Option<()> {
    let ip_at = segment::link_header_len(frame, medium);
    let ip = frame.get(ip_at..)?;
    let ethertype = if ip.first()? >> 4 == 6 { ethernet::IPV6 } else { ethernet::IPV4 };
    let Transport { at, protocol, ipv6 } = vnet::transport_behind(frame, ip_at, ethertype)?;
    let number =
        |at: usize| Some(usize::from(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?])));
    let (addresses, end) = if ipv6 {
        (ip.get(8..40)?, at + number(4)?)
    } else {
        (ip.get(12..20)?, ip_at + number(2)?)
    };
    let field = match protocol {
        PROTOCOL_TCP => 16..18,
        PROTOCOL_UDP => 6..8,
        PROTOCOL_ICMPV6 if ipv6 => 2..4,
        _ => return None,
    };
    let len = u32::try_from(end.checked_sub(at)?).ok()?;
    let pseudo_header = Sum::default().octets(addresses).number(u32::from(protocol)).number(len);
    let covered = frame.get_mut(at..end)?;
    // RFC 768: "An all zero transmitted checksum value means that the transmitter generated no
    // checksum".
    if protocol == PROTOCOL_UDP && covered.get(field.clone())? == [0, 0] {
        return Some(());
    }
    covered.get_mut(field.clone())?.fill(0);
    let checksum = match pseudo_header.octets(covered).checksum() {
        // RFC 768: "If the computed checksum is zero, it is transmitted as all ones".
        0 if protocol == PROTOCOL_UDP => 0xffff,
        checksum => checksum,
    };
    covered[field].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;
