//! Fast path: whole FPDUs in a segment that continues the stream.
//!
//! Requires that no bytes are held and no FPDU is placed ahead, so it uses neither the piece store
//! nor the list of FPDUs ahead. It stops at the first FPDU that is incomplete or has a fault: the
//! general path, `FpduReceiver::take`, processes the rest of the segment. The tests in
//! `tests/order.rs` and `tests/random.rs` give the same streams to both, whole and cut anywhere.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::mpa::marker::{CRC_LEN, LENGTH_LEN, fpdu_len};
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::error::Stop;
use crate::mpa::rx::locate::{Located, has_right_markers};
use crate::mpa::rx::octets::{Octets, Slice, Spread, Ulpdu, after};
use crate::mpa::rx::{FpduReceiver, FpduSink, RxConfig};
use crate::wire::crc32c::{Crc32c, to_wire};

impl<T: Copy> FpduReceiver<T> {
    /// Passes up whole FPDUs at the front of a segment that continues the stream, if nothing is
    /// held or ahead. Returns the rest; the general path handles any irregularity in it.
    #[inline]
    pub(super) fn pass_whole<'s, S: FpduSink<Token = T>>(
        &mut self,
        slice: Slice<'s>,
        store: &PieceStore,
        sink: &mut S,
    ) -> Result<Slice<'s>, Stop<S::Error>> {
        if slice.at != self.next || !self.has_nothing_apart() {
            return Ok(slice);
        }
        if self.grid.is_enabled() {
            self.pass_marked(slice, store, sink)
        } else {
            self.pass_plain(slice, sink)
        }
    }

    /// Implements [`pass_whole`](Self::pass_whole) without markers.
    #[inline]
    fn pass_plain<'s, S: FpduSink<Token = T>>(
        &mut self,
        slice: Slice<'s>,
        sink: &mut S,
    ) -> Result<Slice<'s>, Stop<S::Error>> {
        let mut rest = slice.bytes;
        let RxConfig { crc, ulpdu_len_min, ulpdu_len_max, .. } = self.config;
        while let Some((&length, after_length)) = rest.split_first_chunk::<LENGTH_LEN>() {
            let ulpdu_len = usize::from(u16::from_be_bytes(length));
            if ulpdu_len < ulpdu_len_min || ulpdu_len > ulpdu_len_max {
                break;
            }
            let Some((fpdu, next)) = rest.split_at_checked(fpdu_len(ulpdu_len)) else { break };
            let Some((covered, received)) = fpdu.split_last_chunk::<CRC_LEN>() else { break };
            // RFC 5044 §4.4: the CRC is compared before anything of the FPDU is used.
            if crc {
                let mut digest = Crc32c::new();
                digest.update(covered);
                if to_wire(digest.finish()) != *received {
                    break;
                }
            }
            let Some(ulpdu) = after_length.get(..ulpdu_len) else { break };
            let ulpdu = Ulpdu::from_slice(ulpdu);
            self.count_valid(0);
            let token = sink.place_next(&ulpdu, self.next).map_err(Stop::of_sink)?;
            rest = next;
            self.passed(fpdu.len(), token, sink)?;
        }
        Ok(Slice { at: self.next, bytes: rest })
    }

    /// Implements [`pass_whole`](Self::pass_whole) with markers. The CRC covers them, and they are
    /// checked after it.
    #[inline(never)]
    fn pass_marked<'s, S: FpduSink<Token = T>>(
        &mut self,
        slice: Slice<'s>,
        store: &PieceStore,
        sink: &mut S,
    ) -> Result<Slice<'s>, Stop<S::Error>> {
        let mut rest = slice;
        let RxConfig { crc, ulpdu_len_min, ulpdu_len_max, .. } = self.config;
        loop {
            let start = rest.at;
            let after_marker = rest.bytes.get(self.grid.leading_len(start)..).unwrap_or_default();
            let Some(&length) = after_marker.first_chunk::<LENGTH_LEN>() else { break };
            let ulpdu_len = usize::from(u16::from_be_bytes(length));
            if ulpdu_len < ulpdu_len_min || ulpdu_len > ulpdu_len_max {
                break;
            }
            let layout = self.grid.layout(start, ulpdu_len);
            let wire_len = layout.wire_len();
            let Some((wire, next)) = rest.bytes.split_at_checked(wire_len) else { break };
            let Some((covered, received)) = wire.split_last_chunk::<CRC_LEN>() else { break };
            // RFC 5044 §4.4: the CRC is compared before anything of the FPDU is used.
            if crc {
                let mut digest = Crc32c::new();
                digest.update(covered);
                if to_wire(digest.finish()) != *received {
                    break;
                }
            }
            if !has_right_markers(wire, layout) {
                break;
            }
            self.count_valid(layout.marker_count());
            let end = after(start, wire_len);
            let fpdu = Located { start, end, layout, whole: Some(wire) };
            let placed = if let Some(ulpdu) = fpdu.contiguous_ulpdu() {
                sink.place_next(&Ulpdu::from_slice(ulpdu), start)
            } else {
                let octets = Octets { slice, held: &self.held, store };
                let spread = Spread { octets, start, layout, whole: Some(wire) };
                sink.place_next(&Ulpdu::from_spread(&spread), start)
            };
            let token = placed.map_err(Stop::of_sink)?;
            rest = Slice { at: end, bytes: next };
            self.passed(wire_len, token, sink)?;
        }
        Ok(rest)
    }

    /// Counts the placed FPDU that is next in order and has `wire_len` bytes. Delivers it if the
    /// sink returned a token.
    #[inline(always)]
    pub(super) fn passed<S: FpduSink<Token = T>>(
        &mut self,
        wire_len: usize,
        token: Option<T>,
        sink: &mut S,
    ) -> Result<(), Stop<S::Error>> {
        self.counters.fpdus = self.counters.fpdus.wrapping_add(1);
        self.next = after(self.next, wire_len);
        match token {
            Some(token) => sink.deliver(token).map_err(Stop::of_sink),
            None => Ok(()),
        }
    }
}
