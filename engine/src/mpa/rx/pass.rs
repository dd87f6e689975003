//! Fast path: whole FPDUs in a segment that continues the stream, in a slice or in memory of the
//! device that another party may change. Requires that no bytes are held and no FPDU is placed
//! ahead. It stops at the first FPDU that is incomplete or has a fault: the general path,
//! `FpduReceiver::take`, processes the rest, copied to contiguous memory. `tests/ways.rs` compares
//! both: placement, delivery, errors, counters.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::mem::Scattered;
use crate::mpa::marker::MarkerGrid;
use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::cursor::{Look, look};
use crate::mpa::rx::error::Stop;
use crate::mpa::rx::octets::{Slice, Wire, after};
use crate::mpa::rx::{FpduReceiver, FpduSink, Taken};
use crate::types::StreamOffset;

/// Grid of a stream without markers. As a constant it removes all code for markers.
const UNMARKED: MarkerGrid = MarkerGrid::new(StreamOffset::ZERO, false);

impl<T: Copy> FpduReceiver<T> {
    /// Passes up whole FPDUs at the front, if nothing is held or ahead. Returns the rest.
    #[inline]
    pub(super) fn pass_whole<'s, S: FpduSink<Token = T>>(
        &mut self,
        slice: Slice<'s>,
        sink: &mut S,
    ) -> Result<Slice<'s>, Stop<S::Error>> {
        if slice.at != self.next || !self.has_nothing_apart() {
            return Ok(slice);
        }
        let rest = if self.grid.is_enabled() {
            self.pass_marked(slice.bytes, sink)?
        } else {
            self.pass::<_, _, false>(slice.bytes, sink)?
        };
        Ok(Slice { at: self.next, bytes: rest })
    }

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
        let passed = if self.grid.is_enabled() {
            self.pass_marked(*octets, sink)
        } else {
            self.pass::<_, _, false>(*octets, sink)
        };
        let passed = passed.map(|_| self.next);
        self.conclude(end, passed, store)
    }

    /// Not inlined: two copies would slow down the path without markers.
    #[inline(never)]
    fn pass_marked<'s, W: Wire<'s>, S: FpduSink<Token = T>>(
        &mut self,
        wire: W,
        sink: &mut S,
    ) -> Result<W, Stop<S::Error>> {
        self.pass::<_, _, true>(wire, sink)
    }

    /// `rest` begins with the next FPDU. Returns the bytes after the valid ones.
    #[inline(always)]
    fn pass<'s, W: Wire<'s>, S: FpduSink<Token = T>, const MARKERS: bool>(
        &mut self,
        mut rest: W,
        sink: &mut S,
    ) -> Result<W, Stop<S::Error>> {
        let (config, grid) = (self.config, if MARKERS { self.grid } else { UNMARKED });
        loop {
            let start = self.next;
            let Look::Valid { layout, fpdu, rest: behind } = look(&config, grid, start, rest)
            else {
                return Ok(rest);
            };
            self.count_valid(layout.marker_count());
            let placed = fpdu.with_ulpdu(layout, |ulpdu| sink.place_next(ulpdu, start));
            let token = placed.map_err(Stop::of_sink)?;
            rest = behind;
            self.counters.fpdus = self.counters.fpdus.wrapping_add(1);
            self.next = after(start, layout.wire_len());
            if let Some(token) = token {
                sink.deliver(token).map_err(Stop::of_sink)?;
            }
        }
    }
}
