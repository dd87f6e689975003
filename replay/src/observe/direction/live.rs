//! State of a direction during a live capture.

use urnic_engine::tcp::{self, Flags};
use urnic_engine::types::StreamOffset;

use super::{Direction, Phase, Shared};
use crate::observe::passed::LiveFigures;
use crate::read::packet::Segment;

impl Direction {
    pub(crate) const fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost)
    }

    /// Handles an acknowledgment of bytes that did not pass: the interface has lost frames. FPDUs
    /// after the gap cannot be found. Returns true the first time.
    pub(crate) fn note_lost(&mut self, segment: &Segment<'_>, shared: &mut Shared) -> bool {
        let tcp::Header { flags, ack, .. } = segment.header;
        if !flags.contains(Flags::ACK) || flags.intersects(Flags::SYN | Flags::RST) {
            return false;
        }
        let Some(acked) = self.space.offset_near(ack, StreamOffset(self.high)) else {
            return false;
        };
        let seen = self.seen.end_of_run(0);
        // RFC 9293 §3.4: a FIN takes a sequence number.
        let last = seen + u128::from(self.is_finished);
        if u128::from(acked.0) <= last {
            return false;
        }
        self.seen.insert_within(seen..u128::from(acked.0), &mut self.held, &mut shared.notes);
        self.high = self.high.max(acked.0);
        let is_first = !self.is_discarding && self.startup().is_some();
        self.discard(shared);
        if let Phase::Full(_, full) = &mut self.phase {
            full.mpa.stop(&mut shared.store);
        }
        is_first
    }

    /// An ended connection holds no bytes.
    pub(crate) fn add_figures(&self, figures: &mut LiveFigures, is_over: bool) {
        figures.directions_incomplete +=
            u64::from(self.is_discarding && matches!(self.phase, Phase::Full(..)));
        figures.segments += self.segments;
        figures.segments_aligned += self.alignment.aligned;
        figures.segments_unaligned += self.alignment.unaligned;
        figures.segments_out_of_order += self.segments_out_of_order;
        figures.segments_retransmitted += self.segments_retransmitted;
        if let (Phase::Full(_, full), false) = (&self.phase, is_over) {
            figures.bytes_held += full.mpa.bytes_held() + self.waiting_bytes;
        }
    }
}
