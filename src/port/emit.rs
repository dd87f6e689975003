//! From a TCP segment to a frame: link, IP and TCP headers around gathered payload.

use std::net::IpAddr;
use std::num::NonZeroU16;

use arrayvec::ArrayVec;
use smoltcp::wire::checksum;
use urnic_netdev::{Capabilities, Fragment, TransmitError, TxChecksum, TxFrame};

use crate::port::connection::Route;
use crate::stream::optimized::SegmentSink;
use crate::tcp;

const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN_MAX: usize = 60;
const HEAD_LEN_MAX: usize = ETHERNET_LEN + IPV6_LEN + TCP_LEN_MAX;
const PROTOCOL_TCP: u8 = 6;
const TTL: u8 = 64;
/// Where the checksum is in a TCP header.
const TCP_CHECKSUM_AT: usize = 16;

/// Puts headers around segments of one connection and hands the frames to the device.
pub(crate) struct Emitter<'a> {
    route: &'a Route,
    checksum_offload: bool,
    transmit: &'a mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    frames: usize,
    blocked: bool,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(
        route: &'a Route,
        capabilities: &Capabilities,
        transmit: &'a mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> Self {
        let checksum_offload = capabilities.tx_checksum;
        Self { route, checksum_offload, transmit, frames: 0, blocked: false }
    }

    /// Frames taken by the device.
    pub(crate) const fn frames(&self) -> usize {
        self.frames
    }

    /// Whether the device refused a frame.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked
    }
}

impl SegmentSink for Emitter<'_> {
    fn emit(
        &mut self,
        header: &tcp::Header,
        payload: &[Fragment<'_>],
        segment_size: Option<NonZeroU16>,
    ) {
        let payload_len: usize = payload.iter().map(Fragment::len).sum();
        let tcp_len = header.len();
        let mut head = ArrayVec::<u8, HEAD_LEN_MAX>::new();
        push_link(&mut head, self.route);
        let pseudo = push_ip(&mut head, self.route, tcp_len + payload_len);
        let tcp_at = head.len();
        for _ in 0..tcp_len {
            head.push(0);
        }
        header.emit(&mut head[tcp_at..]);
        let offloaded = self.checksum_offload;
        let (value, state) = if offloaded {
            // The field holds the folded sum of the pseudo-header, not inverted.
            let start = u16::try_from(tcp_at).expect("headers are at most 114 octets");
            (pseudo, TxChecksum::Partial { start, offset: TCP_CHECKSUM_AT as u16 })
        } else {
            let header_sum = checksum::data(&head[tcp_at..]);
            let sum = checksum::combine(&[pseudo, header_sum, sum_of(payload)]);
            (!sum, TxChecksum::Complete)
        };
        head[tcp_at + TCP_CHECKSUM_AT..][..2].copy_from_slice(&value.to_be_bytes());
        let frame = TxFrame { head: &head, payload, checksum: state, segment_size };
        match (self.transmit)(&frame) {
            Ok(()) => self.frames += 1,
            // As lost as on any wire: the retransmission brings it again.
            Err(_) => self.blocked = true,
        }
    }
}

fn push_link(head: &mut ArrayVec<u8, HEAD_LEN_MAX>, route: &Route) {
    if let Some((source, destination)) = route.link {
        head.extend(destination);
        head.extend(source);
        let ethertype: u16 = if route.local.is_ipv4() { 0x0800 } else { 0x86dd };
        head.extend(ethertype.to_be_bytes());
    }
}

/// Appends the IP header and returns the sum of the pseudo-header (RFC 9293 §3.1).
fn push_ip(head: &mut ArrayVec<u8, HEAD_LEN_MAX>, route: &Route, tcp_len: usize) -> u16 {
    let at = head.len();
    let len = u16::try_from(tcp_len).unwrap_or(u16::MAX);
    match (route.local, route.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let total = u16::try_from(tcp_len + IPV4_LEN).unwrap_or(u16::MAX);
            let [high, low] = total.to_be_bytes();
            // RFC 5044 Appendix A.5.1 and RFC 1191: DF is set. An atomic datagram's
            // identification means nothing (RFC 6864 §4.1).
            head.extend([0x45, 0, high, low, 0, 0, 0x40, 0, TTL, PROTOCOL_TCP, 0, 0]);
            head.extend(local.octets());
            head.extend(remote.octets());
            let sum = !checksum::data(&head[at..]);
            head[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
            checksum::combine(&[
                checksum::data(&head[at + 12..at + 20]),
                u16::from(PROTOCOL_TCP),
                len,
            ])
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) => {
            let [high, low] = len.to_be_bytes();
            head.extend([0x60, 0, 0, 0, high, low, PROTOCOL_TCP, TTL]);
            head.extend(local.octets());
            head.extend(remote.octets());
            checksum::combine(&[
                checksum::data(&head[at + 8..at + 40]),
                u16::from(PROTOCOL_TCP),
                len,
            ])
        }
        _ => unreachable!("both ends of a connection have addresses of one family"),
    }
}

/// The internet checksum's sum over scattered octets, not inverted (RFC 1071).
fn sum_of(payload: &[Fragment<'_>]) -> u16 {
    let mut total = 0;
    let mut odd = false;
    for fragment in payload {
        let sum = fragment.ones_complement_sum();
        // RFC 1071 §2 (B): a run that begins at an odd position counts with its octets swapped.
        let sum = if odd { sum.swap_bytes() } else { sum };
        total = checksum::combine(&[total, sum]);
        odd ^= fragment.len() % 2 == 1;
    }
    total
}
