//! Holding bytes that no FPDU has used yet, and resuming with them.

use std::ops::Range;

use crate::mpa::pieces::PieceStore;
use crate::mpa::rx::error::Stop;
use crate::mpa::rx::octets::{Slice, after};
use crate::mpa::rx::{FpduReceiver, FpduSink, Halt};
use crate::time::Instant;
use crate::types::StreamOffset;

impl<T: Copy> FpduReceiver<T> {
    /// Returns the position of the first byte that the store refused; `None` if it took all.
    pub(super) fn hold_before(
        &mut self,
        to: StreamOffset,
        slice: Slice<'_>,
        store: &mut PieceStore,
    ) -> Option<StreamOffset> {
        let before = slice.before(to);
        let kept_to = after(slice.at, self.hold(before, store));
        (kept_to < before.end()).then_some(kept_to)
    }

    /// From held bytes at the delivered position. `end` is the end of the segment.
    pub(super) fn resume<S: FpduSink<Token = T>>(
        &mut self,
        end: StreamOffset,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<(), Stop<S::Error>> {
        let nothing = Slice { at: end, bytes: &[] };
        while self.held.pieces().next().is_some_and(|piece| piece.start == self.next) {
            let from = self.next;
            self.walk(from, None, nothing, store, sink)?;
            if self.next == from {
                break;
            }
        }
        Ok(())
    }

    /// Holds the bytes that no FPDU used. Returns the position up to which the segment is accepted.
    #[inline]
    pub(super) fn keep_rest(
        &mut self,
        halt: &Halt,
        slice: Slice<'_>,
        store: &mut PieceStore,
    ) -> StreamOffset {
        let end = slice.end();
        match *halt {
            Halt::Hold { from, .. } | Halt::Refuse { from } if from >= end => end,
            Halt::Refuse { from } => from.max(slice.at),
            Halt::Hold { from, located } => {
                let rest = slice.from(from);
                let kept_to = after(rest.at, self.hold(rest, store));
                if let Some(start) = located {
                    self.held.set_located(start);
                }
                if kept_to < end {
                    self.count_refusal();
                }
                kept_to
            }
        }
    }

    fn hold(&mut self, part: Slice<'_>, store: &mut PieceStore) -> usize {
        self.held.advance(self.next, store);
        let kept = self.held.hold(part.at, part.bytes, store);
        self.counters.bytes_held = self.counters.bytes_held.wrapping_add(kept as u64);
        self.counters.bytes_held_peak = self.counters.bytes_held_peak.max(self.held.bytes_held());
        kept
    }

    /// Gives up held bytes far beyond the in-order point, and calls `forget` with each range. TCP
    /// must treat them as never received, so that the peer retransmits them.
    pub fn give_up_far(&mut self, store: &mut PieceStore, forget: impl FnMut(Range<StreamOffset>)) {
        tracing::debug!(
            target: "urnic::mpa", next = %self.next, bytes_held = self.bytes_held(),
            "bytes far beyond a gap are given up"
        );
        self.held.give_up_far(store, forget);
        self.count_wait();
    }

    /// `None` if no bytes far beyond the in-order point are held.
    #[must_use]
    pub(crate) fn stalled_since(&self) -> Option<Instant> {
        self.held.stalled_since()
    }

    pub(super) const fn count_wait(&mut self) {
        self.counters.held_byte_ns = self.held.octet_ns();
        self.counters.held_ns_max = self.held.held_ns_max();
    }

    #[cold]
    pub(super) fn count_refusal(&mut self) {
        let (bytes_held, fpdus_ahead) = (self.bytes_held(), self.fpdus_ahead());
        tracing::debug!(
            target: "urnic::mpa", next = %self.next, bytes_held, fpdus_ahead,
            "no room for a segment beyond a gap"
        );
        self.counters.refused_for_room = self.counters.refused_for_room.wrapping_add(1);
    }
}
