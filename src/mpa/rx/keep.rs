//! Holding octets that no FPDU used yet, and taking them up again.

use crate::mpa::pieces::{PieceStore, Purpose};
use crate::mpa::rx::error::Failure;
use crate::mpa::rx::locate::{self, Search};
use crate::mpa::rx::octets::{Octets, Slice, after};
use crate::mpa::rx::{FpduSink, Halt, Receiver};
use crate::types::StreamOffset;

impl<T: Copy> Receiver<T> {
    /// Holds the segment's octets before `to`; where it had to stop, if it had to.
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

    /// Goes on with octets that were already held when delivery reached them.
    pub(super) fn resume<S: FpduSink<Token = T>>(
        &mut self,
        end: StreamOffset,
        store: &mut PieceStore,
        sink: &mut S,
    ) -> Result<(), Failure<S::Error>> {
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

    /// Keeps what no FPDU used; returns up to where the segment is accepted.
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

    /// Copies octets into the piece store; returns how many found room.
    fn hold(&mut self, part: Slice<'_>, store: &mut PieceStore) -> usize {
        if part.bytes.is_empty() {
            return 0;
        }
        let purpose = if self.run_start(part.at) == self.next {
            let octets = Octets { slice: part, held: &self.held, store };
            // Accept the beginning of an FPDU only if all of it will find room.
            let end = match locate::locate(&self.config, self.grid, self.next, &octets) {
                Search::Partial { end: Some(end) } => end.max(part.end()),
                _ => part.end(),
            };
            if !self.held.reserve(self.next, end, store) {
                return 0;
            }
            Purpose::InOrder
        } else {
            Purpose::Ahead
        };
        let kept = self.held.hold(part.at, part.bytes, purpose, store);
        self.counters.bytes_held = self.counters.bytes_held.wrapping_add(kept as u64);
        self.counters.bytes_held_peak = self.counters.bytes_held_peak.max(self.held.octets_held());
        kept
    }

    /// Takes over how long octets have waited.
    pub(super) const fn count_wait(&mut self) {
        self.counters.held_octet_ns = self.held.octet_ns();
        self.counters.held_ns_max = self.held.held_ns_max();
    }

    /// Counts a segment of which something found no room.
    #[cold]
    pub(super) fn count_refusal(&mut self) {
        self.counters.refused_for_room = self.counters.refused_for_room.wrapping_add(1);
    }
}
