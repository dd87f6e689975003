//! The scoreboard: every segment in flight. Segments keep the boundaries they were first sent with,
//! so that a retransmission repeats whole records (RFC 5044 appendix A.1); only a path that takes
//! less splits them. Invariants: segments are contiguous, the first holds SND.UNA, the last ends at
//! SND.NXT; the byte sums below equal what a walk over the segments would find.

mod loss;

use std::collections::VecDeque;
use std::ops::Range;

use super::rack::Deliveries;
use crate::mem::region::prefetch::prefetch_front;
use crate::time::Instant;
use crate::types::StreamOffset;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    start: StreamOffset,
    sent_at: Instant,
    /// Positions it takes: its bytes, or 1 for a FIN.
    len: u32,
    marks: Marks,
    /// Known length of the run of SACKed segments that starts here: a walk may skip them.
    sacked_run: u16,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Marks: u8 {
        const SACKED = 1;
        /// Considered lost; never together with SACKED.
        const LOST = 2;
        /// Lost and retransmitted; the retransmission is not considered lost.
        const RESENT = 4;
        /// Sent more than once at some time: gives no round-trip sample (Karn).
        const AMBIGUOUS = 8;
        const PUSH = 16;
        const FIN = 32;
        /// A piece of a segment that was sent in the doubted length; it was never sent by itself.
        const CUT = 64;
    }
}

const _: () = assert!(size_of::<Segment>() == 24);

impl Segment {
    const fn end(&self) -> StreamOffset {
        StreamOffset(self.start.0 + self.len as u64)
    }

    fn as_resend(&self, first: bool) -> Resend {
        let fin = self.marks.contains(Marks::FIN);
        let push = self.marks.contains(Marks::PUSH);
        let end = if fin { self.start } else { self.end() };
        Resend { data: self.start..end, fin, push, first }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Acknowledged {
    pub(crate) bytes: u64,
    /// Positions in `bytes` that were not SACKed before.
    pub(crate) fresh: u64,
    /// Send time of the earliest acknowledged segment that is fit for a round-trip sample.
    pub(crate) sample_from: Option<Instant>,
    /// Some of the acknowledged bytes had been sent more than once.
    pub(crate) ambiguous: bool,
    pub(crate) last_sent_at: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resend {
    pub(crate) data: Range<StreamOffset>,
    pub(crate) fin: bool,
    pub(crate) push: bool,
    pub(crate) first: bool,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Scoreboard {
    /// In the order sent. Stale if the segment has arrived, or was retransmitted once more.
    copies: VecDeque<(Instant, StreamOffset)>,
    segments: VecDeque<Segment>,
    /// All segments that start before this offset are SACKed, lost, or were retransmitted.
    examined: StreamOffset,
    /// No segment before this offset must be retransmitted.
    resend_from: StreamOffset,
    sacked_segments: u32,
    una: StreamOffset,
    nxt: StreamOffset,
    sacked_bytes: u64,
    lost_bytes: u64,
    resent_bytes: u64,
    /// Without SACK: bytes that have left the network according to duplicate ACKs.
    duplicate_bytes: u64,
    /// Length of the oldest segment when the path was assumed to shrink; 0 if it has grown since.
    doubted_len: u32,
    long_delivered: bool,
    #[cfg(test)]
    steps: u64,
}

impl Scoreboard {
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_front(&self.segments);
    }

    pub(crate) const fn una(&self) -> StreamOffset {
        self.una
    }

    pub(crate) const fn nxt(&self) -> StreamOffset {
        self.nxt
    }

    /// FlightSize (RFC 5681 §2): sent and not cumulatively acknowledged.
    pub(crate) const fn flight(&self) -> u64 {
        self.nxt.0 - self.una.0
    }

    /// Returns the bytes believed to be in the network (RFC 6675 §4 "SetPipe").
    pub(crate) const fn pipe(&self) -> u64 {
        let gone = self.sacked_bytes + self.lost_bytes + self.duplicate_bytes;
        (self.flight() + self.resent_bytes).saturating_sub(gone)
    }

    pub(crate) const fn has_unsent_loss(&self) -> bool {
        self.lost_bytes > self.resent_bytes
    }

    /// Returns true if nothing in flight is SACKed, lost, or counted by duplicate ACKs.
    pub(crate) const fn is_plain(&self) -> bool {
        self.sacked_bytes | self.lost_bytes | self.duplicate_bytes == 0
    }

    pub(crate) const fn sacked_bytes(&self) -> u64 {
        self.sacked_bytes
    }

    pub(crate) const fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    pub(crate) fn is_single(&self) -> bool {
        self.segments.len() == 1
    }

    /// Returns true if the peer reneged: it acknowledged only up to a segment that it had SACKed.
    pub(crate) fn first_is_sacked(&self) -> bool {
        self.segments.front().is_some_and(|first| first.marks.contains(Marks::SACKED))
    }

    pub(crate) fn first_len(&self) -> u32 {
        self.segments.front().map_or(0, |first| first.len)
    }

    /// Records `len` new bytes, sent as segments of `segment_len` (the last may be shorter).
    pub(crate) fn push(&mut self, now: Instant, len: u32, segment_len: u32, push: bool) {
        let mut left = len;
        while left > 0 {
            let len = left.min(segment_len);
            left -= len;
            let marks = if push && left == 0 { Marks::PUSH } else { Marks::empty() };
            self.append(now, len, marks);
        }
    }

    pub(crate) fn push_fin(&mut self, now: Instant) {
        self.append(now, 1, Marks::FIN);
    }

    fn append(&mut self, sent_at: Instant, len: u32, marks: Marks) {
        self.segments.push_back(Segment { start: self.nxt, sent_at, len, marks, sacked_run: 0 });
        self.nxt = self.nxt + u64::from(len);
    }

    /// Records that the peer has everything before `ack`, which lies in (SND.UNA, SND.NXT].
    pub(crate) fn acknowledge(
        &mut self,
        ack: StreamOffset,
        delivered: &mut Deliveries,
    ) -> Acknowledged {
        let (plain, sacked_before) = (self.is_plain(), self.sacked_bytes);
        let bytes = ack.bytes_since(self.una);
        let mut done = Acknowledged { bytes, ..Acknowledged::default() };
        while let Some(first) = self.segments.front_mut()
            && first.start < ack
        {
            let whole = first.end() <= ack;
            let gone = if whole {
                *first
            } else {
                let len = u32::try_from(ack.bytes_since(first.start));
                let len = len.expect("part of a segment is shorter than a segment");
                let gone = Segment { len, ..*first };
                first.start = ack;
                first.len -= len;
                gone
            };
            if whole {
                self.segments.pop_front();
            }
            if gone.marks.contains(Marks::AMBIGUOUS) {
                done.ambiguous = true;
            } else if done.sample_from.is_none() && !gone.marks.contains(Marks::SACKED) {
                done.sample_from = Some(gone.sent_at);
            }
            done.last_sent_at = gone.sent_at;
            if !plain {
                // A piece that was not sent by itself arrived with the whole.
                let cut = gone.marks.contains(Marks::CUT);
                self.note_length(if cut { self.doubted_len } else { gone.len });
                if !gone.marks.contains(Marks::SACKED) {
                    let sent_once = !gone.marks.contains(Marks::AMBIGUOUS);
                    delivered.note(gone.sent_at, gone.end(), sent_once);
                }
                self.forget_marks(&gone);
                if gone.marks.contains(Marks::SACKED) && whole {
                    self.sacked_segments -= 1;
                }
            }
        }
        if self.segments.is_empty() {
            // The next segment is stored at the start of the memory again.
            self.segments.clear();
        }
        if !plain {
            self.forget_copies(ack);
        }
        self.una = ack;
        done.fresh = bytes - (sacked_before - self.sacked_bytes);
        done
    }

    /// Assumes that the path does not take the oldest segment, until one as long arrives.
    pub(crate) fn path_shrank(&mut self) {
        if self.doubted_len == 0 {
            self.doubted_len = self.first_len();
            self.long_delivered = false;
        }
    }

    pub(crate) const fn forget_path_evidence(&mut self) {
        self.doubted_len = 0;
        self.long_delivered = false;
    }

    pub(crate) const fn is_long_delivered(&self) -> bool {
        self.long_delivered
    }

    /// One retransmitted since the path shrank is shorter.
    fn note_length(&mut self, len: u32) {
        self.long_delivered |= self.doubted_len > 0 && len >= self.doubted_len;
    }

    fn forget_copies(&mut self, ack: StreamOffset) {
        let first = self.segments.front().filter(|first| first.marks.contains(Marks::RESENT));
        // A part of the first segment may have arrived.
        let kept = first.map(|first| first.sent_at);
        while let Some((sent_at, start)) = self.copies.front()
            && *start < ack
            && Some(*sent_at) != kept
        {
            self.copies.pop_front();
        }
    }

    fn forget_marks(&mut self, segment: &Segment) {
        let len = u64::from(segment.len);
        if segment.marks.contains(Marks::SACKED) {
            self.sacked_bytes -= len;
        }
        if segment.marks.contains(Marks::LOST) {
            self.lost_bytes -= len;
        }
        if segment.marks.contains(Marks::RESENT) {
            self.resent_bytes -= len;
        }
    }

    /// Returns the bytes newly SACKed. Blocks outside SND.UNA to SND.NXT: duplicates, or invalid.
    pub(crate) fn sack(
        &mut self,
        blocks: impl IntoIterator<Item = Range<StreamOffset>>,
        delivered: &mut Deliveries,
    ) -> u64 {
        let before = self.sacked_bytes;
        for block in blocks {
            if block.start < block.end && block.start >= self.una && block.end <= self.nxt {
                self.mark_sacked(&block, delivered);
            }
        }
        self.sacked_bytes - before
    }

    /// Marks the segments that lie wholly in `block`. A peer may report any blocks with every
    /// acknowledgment. Therefore a walk skips earlier marks in runs, and no walk shortens a run:
    /// all walks together cost little more than one step for each segment.
    fn mark_sacked(&mut self, block: &Range<StreamOffset>, delivered: &mut Deliveries) {
        let from = self.segments.partition_point(|segment| segment.start < block.start);
        let mut index = from;
        while let Some(segment) = self.segments.get_mut(index)
            && segment.end() <= block.end
        {
            #[cfg(test)]
            {
                self.steps += 1;
            }
            if segment.sacked_run > 0 {
                index += usize::from(segment.sacked_run);
                continue;
            }
            let old = *segment;
            segment.marks.remove(Marks::LOST | Marks::RESENT);
            segment.marks.insert(Marks::SACKED);
            segment.sacked_run = 1;
            index += 1;
            self.forget_marks(&old);
            self.note_length(old.len);
            self.sacked_bytes += u64::from(old.len);
            self.sacked_segments += 1;
            delivered.note(old.sent_at, old.end(), !old.marks.contains(Marks::AMBIGUOUS));
        }
        self.join_runs(from, index);
    }

    /// Joins the runs of the segments from `from` to before `end`, which are all SACKed.
    fn join_runs(&mut self, from: usize, end: usize) {
        let mut index = from;
        while index < end {
            let run = &mut self.segments[index].sacked_run;
            let next = index + usize::from(*run);
            *run = u16::try_from(end - index).unwrap_or(u16::MAX);
            index = next;
        }
    }

    /// Without SACK: a duplicate ACK reports that `bytes` more have left the network.
    pub(crate) fn duplicate_ack(&mut self, bytes: u64) {
        let most = self.flight().saturating_sub(self.lost_bytes);
        self.duplicate_bytes = (self.duplicate_bytes + bytes).min(most);
    }

    /// Without SACK: `bytes` counted by duplicate ACKs are now acknowledged cumulatively.
    pub(crate) fn duplicates_acknowledged(&mut self, bytes: u64) {
        self.duplicate_bytes = self.duplicate_bytes.saturating_sub(bytes);
    }

    pub(crate) fn forget_duplicates(&mut self) {
        self.duplicate_bytes = 0;
    }

    /// Split if it is longer than `emss`. Beyond `window_end` only the first in flight is taken.
    // spec: TCP-A.1-7, TCP-6675-4
    pub(crate) fn resend(
        &mut self,
        now: Instant,
        emss: u32,
        window_end: StreamOffset,
    ) -> Option<Resend> {
        if !self.has_unsent_loss() {
            return None;
        }
        let from = self.resend_from.max(self.una);
        let mut index = self.segments.partition_point(|segment| segment.start < from);
        let due = |segment: &Segment| {
            segment.marks.contains(Marks::LOST) && !segment.marks.contains(Marks::RESENT)
        };
        while self.segments.get(index).is_some_and(|segment| !due(segment)) {
            index += 1;
        }
        let segment = *self.segments.get(index)?;
        self.resend_from = segment.start;
        if index > 0 && segment.start >= window_end {
            return None;
        }
        if segment.len > emss {
            self.split(index, emss);
        }
        let segment = &mut self.segments[index];
        segment.marks.insert(Marks::RESENT | Marks::AMBIGUOUS);
        segment.marks.remove(Marks::CUT);
        segment.sent_at = now;
        self.resent_bytes += u64::from(segment.len);
        self.resend_from = segment.end();
        self.copies.push_back((now, segment.start));
        Some(segment.as_resend(index == 0))
    }

    /// RFC 8985 §7.3. `None` if the last segment has arrived, is lost, or no longer fits.
    pub(crate) fn resend_last(&mut self, now: Instant, emss: u32) -> Option<Resend> {
        let first = self.is_single();
        let last = self.segments.back_mut()?;
        if last.marks.intersects(Marks::SACKED | Marks::LOST) || last.len > emss {
            return None;
        }
        last.marks.insert(Marks::AMBIGUOUS);
        last.marks.remove(Marks::CUT);
        last.sent_at = now;
        Some(last.as_resend(first))
    }

    fn split(&mut self, index: usize, len: u32) {
        let doubted_len = self.doubted_len;
        let segment = &mut self.segments[index];
        // A piece that was itself sent, and is cut once more, was shorter than the doubted length.
        if segment.len >= doubted_len {
            segment.marks.insert(Marks::CUT);
        }
        let mut rest = *segment;
        rest.start = rest.start + u64::from(len);
        rest.len -= len;
        segment.len = len;
        segment.marks.remove(Marks::PUSH);
        self.segments.insert(index + 1, rest);
    }

    #[cfg(test)]
    pub(crate) fn copies_len(&self) -> usize {
        self.copies.len()
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut at = self.una;
        let (mut sacked, mut lost, mut resent, mut sacked_segments) = (0, 0, 0, 0);
        for (index, segment) in self.segments.iter().enumerate() {
            assert_eq!(segment.start, at);
            let is_sacked = |segment: &Segment| segment.marks.contains(Marks::SACKED);
            let run = usize::from(segment.sacked_run);
            assert_eq!(run > 0, is_sacked(segment));
            assert!(self.segments.range(index..index + run).all(is_sacked));
            assert!(segment.len > 0);
            at = segment.end();
            let len = u64::from(segment.len);
            let has = |mark| if segment.marks.contains(mark) { len } else { 0 };
            assert!(!segment.marks.contains(Marks::SACKED | Marks::LOST));
            sacked += has(Marks::SACKED);
            sacked_segments += u32::from(segment.marks.contains(Marks::SACKED));
            lost += has(Marks::LOST);
            resent += has(Marks::RESENT);
            if segment.marks.contains(Marks::LOST) && !segment.marks.contains(Marks::RESENT) {
                assert!(segment.start >= self.resend_from || segment.start == self.una);
            }
        }
        assert_eq!(at, self.nxt);
        assert_eq!(sacked_segments, self.sacked_segments);
        assert_eq!((sacked, lost, resent), (self.sacked_bytes, self.lost_bytes, self.resent_bytes));
    }
}

#[cfg(test)]
mod tests;
