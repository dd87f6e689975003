//! From a TCP segment to a frame: link, IP and TCP headers around gathered payload.

use std::num::NonZeroU16;

use smoltcp::wire::checksum;
use urnic_netdev::{Capabilities, Fragment, TxChecksum, TxFrame};

use crate::port::interface::outlet::Outlet;
use crate::port::interface::route::Route;
use crate::stream::carrier::SegmentSink;
use crate::tcp;

const HEAD_LEN_MAX: usize = Route::HEADERS_LEN_MAX + tcp::HEADER_LEN_MAX;
/// Where the checksum is in a TCP header.
const TCP_CHECKSUM_OFFSET: u16 = 16;
const TCP_CHECKSUM_AT: usize = TCP_CHECKSUM_OFFSET as usize;

/// Puts headers around segments of one connection and hands the frames to the device.
pub(crate) struct Emitter<'a, 'o> {
    route: &'a Route,
    checksum_offload: bool,
    outlet: &'a mut Outlet<'o>,
    turn: Turn,
    /// A frame was lost: the next would be too.
    blocked: bool,
}

/// What one connection sent in its turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Frames handed over.
    pub(crate) frames: usize,
    /// Their octets.
    pub(crate) bytes: usize,
}

impl<'a, 'o> Emitter<'a, 'o> {
    pub(crate) fn new(
        route: &'a Route,
        capabilities: &Capabilities,
        outlet: &'a mut Outlet<'o>,
    ) -> Self {
        let checksum_offload = capabilities.tx_checksum;
        Self { route, checksum_offload, outlet, turn: Turn::default(), blocked: false }
    }

    /// What was sent.
    pub(crate) const fn turn(&self) -> Turn {
        self.turn
    }

    /// Whether the connection's turn goes on: its share of frames and of octets is not used up, and
    /// the device takes more.
    pub(crate) const fn may_continue(&self, frames_max: usize, bytes_max: usize) -> bool {
        let has_turn = self.turn.frames < frames_max && self.turn.bytes < bytes_max;
        has_turn && !self.blocked && !self.outlet.is_full()
    }
}

impl SegmentSink for Emitter<'_, '_> {
    fn emit(
        &mut self,
        header: &tcp::Header,
        payload: &[Fragment<'_>],
        segment_size: Option<NonZeroU16>,
    ) {
        let payload_len: usize = payload.iter().map(Fragment::len).sum();
        let mut head = [0; HEAD_LEN_MAX];
        let tcp_at = self.route.headers_len();
        let tcp_len = header.len();
        let pseudo = self.route.write_headers(&mut head, tcp_len + payload_len, header.ecn);
        let tcp = &mut head[tcp_at..tcp_at + tcp_len];
        header.emit(tcp);
        let (value, state) = if self.checksum_offload {
            // The field holds the folded sum of the pseudo-header, not inverted.
            let start = u16::try_from(tcp_at).expect("headers are at most 54 octets");
            (pseudo, TxChecksum::Partial { start, offset: TCP_CHECKSUM_OFFSET })
        } else {
            let sum = checksum::combine(&[pseudo, checksum::data(tcp), sum_of(payload)]);
            (!sum, TxChecksum::Complete)
        };
        tcp[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].copy_from_slice(&value.to_be_bytes());
        let head = &head[..tcp_at + tcp_len];
        let frame = TxFrame { head, payload, checksum: state, segment_size };
        match self.outlet.send(&frame) {
            Ok(()) => {
                self.turn.frames += 1;
                self.turn.bytes += head.len() + payload_len;
            }
            // As lost as on any wire: the retransmission brings it again.
            Err(_) => self.blocked = true,
        }
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
