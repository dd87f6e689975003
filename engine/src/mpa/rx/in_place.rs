//! Fast path for segments in memory of the device, which another party may change: passes up whole
//! FPDUs in place, without a copy.
//!
//! Requires a segment that continues the stream, with no bytes held and no FPDU placed ahead. It
//! stops at the first FPDU that is incomplete or has a fault: the caller copies the rest to
//! contiguous memory for [`FpduReceiver::handle_bytes`]. The test `tests/random.rs` compares both.
//!
//! The receiver decides by one copy of each length, marker and header. It reads the payload and the
//! whole FPDU for the CRC separately. A sender that changes bytes in between only places other
//! bytes, which it could have sent anyway: the CRC is no authentication (RFC 5042 §2).

use crate::limits::MARKER_LEN;
use crate::mem::{Scattered, crc32c_append_shared};
use crate::mpa::marker::{CRC_LEN, FpduLayout, LENGTH_LEN};
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::error::Stop;
use crate::mpa::rx::octets::{Marked, after};
use crate::mpa::rx::{FpduReceiver, FpduSink, RxConfig, Taken, Ulpdu};
use crate::types::StreamOffset;
use crate::wire::crc32c::{Crc32c, to_wire};
use crate::wire::mpa::Marker;

impl<T: Copy> FpduReceiver<T> {
    /// Takes stream bytes at `offset` that were never given before, as far as they are whole FPDUs
    /// that continue the stream. Give the bytes from [`Taken::end`] on to
    /// [`handle_bytes`](Self::handle_bytes).
    pub fn handle_scattered<S: FpduSink<Token = T>>(
        &mut self,
        offset: StreamOffset,
        octets: &Scattered<'_>,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Taken<S::Error> {
        let end = after(offset, octets.len());
        // Stopped: accept and discard, as in `handle_bytes`.
        if self.stopped {
            return Taken { end, error: None };
        }
        if offset != self.next || !self.has_nothing_apart() {
            return Taken { end: offset, error: None };
        }
        match self.pass_in_place(*octets, sink) {
            Ok(()) => Taken { end: self.next, error: None },
            Err(Stop { error, .. }) => {
                self.stop(store);
                Taken { end, error: Some(error) }
            }
        }
    }

    #[inline]
    fn pass_in_place<S: FpduSink<Token = T>>(
        &mut self,
        mut rest: Scattered<'_>,
        sink: &mut S,
    ) -> Result<(), Stop<S::Error>> {
        let RxConfig { crc, ulpdu_len_min, ulpdu_len_max, .. } = self.config;
        while let Some((_, field)) = rest.split_at_checked(self.grid.leading_len(self.next)) {
            let Some(length) = field.read::<LENGTH_LEN>() else { break };
            let ulpdu_len = usize::from(u16::from_be_bytes(length));
            if ulpdu_len < ulpdu_len_min || ulpdu_len > ulpdu_len_max {
                break;
            }
            let layout = self.grid.layout(self.next, ulpdu_len);
            let Some((covered, behind)) = rest.split_at_checked(layout.crc_at()) else { break };
            let Some((field, next)) = behind.split_at_checked(CRC_LEN) else { break };
            // RFC 5044 §4.4: the CRC is compared before anything of the FPDU is used. It covers
            // markers.
            if crc && Some(to_wire(digest(&covered))) != field.read::<CRC_LEN>() {
                break;
            }
            let markers = layout.marker_count();
            let placed = if markers == 0 {
                let Some((_, ulpdu)) = covered.split_at_checked(LENGTH_LEN) else { break };
                // Leaves out the pad.
                let Some((ulpdu, _)) = ulpdu.split_at_checked(ulpdu_len) else { break };
                self.count_valid(0);
                sink.place_next(&Ulpdu::from_scattered(ulpdu), self.next)
            } else if has_right_markers(&covered, &layout) {
                self.count_valid(markers);
                let marked = Marked { wire: covered, layout };
                sink.place_next(&Ulpdu::from_marked(&marked), self.next)
            } else {
                break;
            };
            let token = placed.map_err(Stop::of_sink)?;
            rest = next;
            self.passed(layout.wire_len(), token, sink)?;
        }
        Ok(())
    }
}

/// Returns true if all markers of an FPDU point at its header (RFC 5044 §4.3).
#[inline]
fn has_right_markers(wire: &Scattered<'_>, layout: &FpduLayout) -> bool {
    let run = wire.as_run();
    (0..layout.marker_count()).all(|index| {
        let at = layout.marker_at(index);
        let marker = match run {
            Some(run) => {
                let mut octets = [0; MARKER_LEN];
                run.copy_out(at, &mut octets);
                Some(octets)
            }
            None => wire.split_at_checked(at).and_then(|(_, marker)| marker.read()),
        };
        marker.is_some_and(|octets| Marker::from_bytes(octets).fpduptr == layout.fpduptr(index))
    })
}

#[inline]
fn digest(octets: &Scattered<'_>) -> u32 {
    let state = Crc32c::new().state();
    let state = match octets.as_run() {
        Some(run) => crc32c_append_shared(state, run),
        None => octets.runs().fold(state, crc32c_append_shared),
    };
    Crc32c::from_state(state).finish()
}
