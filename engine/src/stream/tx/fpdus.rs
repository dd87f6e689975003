//! Descriptors of framed, not yet acknowledged FPDUs, in a queue that grows on demand.

use std::collections::VecDeque;
use std::ops::Range;

use crate::mem::region::prefetch::prefetch_front;
use crate::mpa::marker::{EqualFpdus, MarkerGrid};
use crate::mpa::tx;
use crate::stream::tx::message::{Front, Head, Source};
use crate::types::StreamOffset;

/// Consecutive FPDUs of one message with equal lengths. Suffices to write any of them again.
#[derive(Clone, Debug)]
pub(crate) struct FpduRun {
    /// First byte on the stream, a leading marker included.
    pub(crate) start: StreamOffset,
    pub(crate) lengths: EqualFpdus,
    pub(crate) count: u32,
    pub(crate) head: Head,
    pub(crate) source: Source,
    pub(crate) offset: u32,
    pub(crate) last: bool,
}

impl FpduRun {
    #[inline]
    pub(crate) fn end(&self) -> StreamOffset {
        self.start + u64::from(self.wire_len()) * u64::from(self.count)
    }

    #[inline]
    pub(crate) const fn wire_len(&self) -> u32 {
        self.lengths.wire_len()
    }

    /// For the run's `count`: the end of its payload.
    #[inline]
    pub(crate) const fn offset_of(&self, number: u32) -> u32 {
        self.offset + self.lengths.payload_before(number)
    }

    #[inline]
    pub(crate) fn numbers_in(&self, range: &Range<StreamOffset>) -> Range<u32> {
        // Common case without division: only the last FPDU, which was just framed.
        let end = self.end();
        if range.end == end && range.start.0 + u64::from(self.wire_len()) == end.0 {
            return self.count - 1..self.count;
        }
        let wire_len = u64::from(self.wire_len());
        let narrow = |number| u32::try_from(number).unwrap_or(u32::MAX).min(self.count);
        let first = range.start.max(self.start).bytes_since(self.start) / wire_len;
        let end = range.end.bytes_since(self.start).div_ceil(wire_len);
        narrow(first)..narrow(end)
    }

    pub(super) fn is_whole(&self, numbers: &Range<u32>, range: &Range<StreamOffset>) -> bool {
        numbers
            .clone()
            .map(|number| self.fpdu(number))
            .all(|fpdu| range.start <= fpdu.start() && fpdu.end() <= range.end)
    }

    #[inline]
    pub(crate) const fn fpdu(&self, number: u32) -> QueuedFpdu<'_> {
        QueuedFpdu { run: self, number }
    }

    /// Returns true if `next` continues the run alike.
    fn extend(&mut self, next: &NextFpdu) -> bool {
        let alike = !self.last
            && self.source == next.source
            && self.wire_len() == next.wire_len
            && self.lengths.payload_len(self.count) == next.len
            && self.head.inline.is_empty()
            && next.offset == self.offset_of(self.count);
        if alike {
            self.count += 1;
            self.last = next.last;
        }
        alike
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NextFpdu {
    pub(crate) start: StreamOffset,
    pub(crate) wire_len: u32,
    pub(crate) source: Source,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) last: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedFpdu<'a> {
    run: &'a FpduRun,
    number: u32,
}

impl<'a> QueuedFpdu<'a> {
    #[inline]
    pub(crate) fn start(self) -> StreamOffset {
        self.run.start + u64::from(self.number) * u64::from(self.run.wire_len())
    }

    #[inline]
    pub(crate) fn end(self) -> StreamOffset {
        self.start() + u64::from(self.run.wire_len())
    }

    pub(crate) const fn source(self) -> Source {
        self.run.source
    }

    #[inline]
    pub(crate) const fn len(self) -> u32 {
        self.run.lengths.payload_len(self.number)
    }

    #[inline]
    pub(crate) const fn offset(self) -> u32 {
        self.run.offset_of(self.number)
    }

    #[inline]
    pub(crate) fn front(self) -> Front {
        let last = self.run.last && self.number + 1 == self.run.count;
        self.run.head.front(self.offset(), last)
    }

    #[inline]
    pub(crate) fn framed<'f>(self, front: &'f Front, grid: MarkerGrid) -> tx::Fpdu<'f> {
        tx::Fpdu::new(grid, self.start(), front.octets(), self.len() as usize)
    }
}

#[derive(Debug, Default)]
pub(crate) struct FpduQueue {
    runs: VecDeque<FpduRun>,
}

/// Number of runs examined from the back before a binary search: new segments are at the back.
const BACK_SCAN: usize = 64;

impl FpduQueue {
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch_front(&self.runs);
    }

    /// Appends an FPDU. Calls `head` only if the FPDU does not continue the last run.
    #[inline]
    pub(crate) fn push(&mut self, grid: MarkerGrid, fpdu: &NextFpdu, head: impl FnOnce() -> Head) {
        debug_assert!(self.runs.back().is_none_or(|last| last.end() == fpdu.start));
        if !self.runs.back_mut().is_some_and(|back| back.extend(fpdu)) {
            let NextFpdu { start, wire_len, source, offset, len, last } = *fpdu;
            let head = head();
            let lengths = EqualFpdus::new(grid, start, wire_len, len);
            self.runs.push_back(FpduRun { start, lengths, count: 1, head, source, offset, last });
        }
    }

    #[inline]
    pub(crate) fn back(&self) -> Option<&FpduRun> {
        self.runs.back()
    }

    #[inline]
    pub(crate) fn back_mut(&mut self) -> Option<&mut FpduRun> {
        self.runs.back_mut()
    }

    /// Drops acknowledged FPDUs. Calls `dropped` with their source and number, run by run.
    pub(crate) fn release(&mut self, snd_una: StreamOffset, mut dropped: impl FnMut(Source, u32)) {
        while let Some(run) = self.runs.front_mut() {
            if run.start >= snd_una {
                break;
            }
            let octets = snd_una.bytes_since(run.start);
            let whole = octets / u64::from(run.wire_len());
            let whole = u32::try_from(whole).unwrap_or(u32::MAX).min(run.count);
            dropped(run.source, whole);
            if whole < run.count {
                run.start = run.start + u64::from(run.wire_len()) * u64::from(whole);
                run.offset = run.offset_of(whole);
                run.lengths = run.lengths.without_first(whole);
                run.count -= whole;
                break;
            }
            self.runs.pop_front();
        }
        if self.runs.is_empty() {
            // Resets the deque, so that the next run is at the beginning of the memory.
            self.runs.clear();
        }
    }

    /// The FPDU that starts before `at` and ends after it, if any.
    pub(crate) fn across(&self, at: StreamOffset) -> Option<QueuedFpdu<'_>> {
        let run = self.runs_from(at).next().filter(|run| run.start < at)?;
        let number = at.bytes_since(run.start) / u64::from(run.wire_len());
        let fpdu = run.fpdu(u32::try_from(number).expect("a run has fewer"));
        (fpdu.start() < at).then_some(fpdu)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = QueuedFpdu<'_>> {
        self.runs.iter().flat_map(|run| (0..run.count).map(|number| run.fpdu(number)))
    }

    pub(crate) fn last(&self) -> Option<QueuedFpdu<'_>> {
        self.runs.back().map(|run| run.fpdu(run.count - 1))
    }

    /// The runs in stream order, from the first that ends after `at`.
    #[inline]
    pub(crate) fn runs_from(&self, at: StreamOffset) -> impl Iterator<Item = &FpduRun> {
        self.runs.range(self.index_after(at)..)
    }

    #[inline]
    fn index_after(&self, at: StreamOffset) -> usize {
        let len = self.runs.len();
        // Bytes that are about to be sent for the first time are at the back.
        let mut index = len;
        while index > 0 && len - index < BACK_SCAN {
            if self.runs[index - 1].end() <= at {
                return index;
            }
            index -= 1;
        }
        self.runs.partition_point(|run| run.end() <= at)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::tx::Target;
    use crate::stream::tx::message::Inline;
    use crate::types::{Stag, TaggedOffset};
    use crate::wire::ProtocolVersion;

    const UNMARKED: MarkerGrid = MarkerGrid::new(StreamOffset(0), false);

    fn head() -> Head {
        Head {
            target: Target::Tagged { stag: Stag(1), to: TaggedOffset(0) },
            control: 0,
            version: ProtocolVersion::IETF,
            inline: Inline::new(),
        }
    }

    /// A message of FPDUs of these lengths on the stream, with half of that as payload.
    fn queue(lens: &[u32]) -> FpduQueue {
        let mut queue = FpduQueue::default();
        let (mut start, mut offset) = (StreamOffset(100), 0);
        for (index, &wire_len) in lens.iter().enumerate() {
            let (len, last) = (wire_len / 2, index + 1 == lens.len());
            let source = Source::Work(7);
            queue.push(UNMARKED, &NextFpdu { start, wire_len, source, offset, len, last }, head);
            start = start + u64::from(wire_len);
            offset += len;
        }
        queue
    }

    /// Start and payload offset of the FPDUs in a range of the stream.
    fn found(queue: &FpduQueue, range: Range<u64>) -> Vec<(u64, u32)> {
        let range = StreamOffset(range.start)..StreamOffset(range.end);
        queue
            .runs_from(range.start)
            .take_while(|run| run.start < range.end)
            .flat_map(|run| run.numbers_in(&range).map(|number| run.fpdu(number)))
            .map(|fpdu| (fpdu.start().0, fpdu.offset()))
            .collect()
    }

    #[test]
    fn fpdus_are_found_by_stream_range_wherever_they_are() {
        let mixed: Vec<u32> = (0..500).map(|i| 24 + 4 * (i % 7)).collect();
        let alike: Vec<u32> = (0..500).map(|i| 24 + 4 * (i / 50)).collect();
        for lens in [mixed, alike] {
            let mut queue = queue(&lens);
            let mut at = (100, 0);
            let mut all: Vec<(u64, u64, u32)> = lens
                .iter()
                .map(|&len| {
                    let (start, offset) = at;
                    at = (start + u64::from(len), offset + len / 2);
                    (start, at.0, offset)
                })
                .collect();
            for released in [0, 1, 3, 70] {
                let una = all[released].0;
                queue.release(StreamOffset(una), |_, _| {});
                all.retain(|&(start, ..)| start >= una);
                for (start, end) in
                    [(100, 101), (123, 125), (5000, 9000), (100, 1 << 20), (124, 148)]
                {
                    let expected: Vec<(u64, u32)> = all
                        .iter()
                        .filter(|(first, last, _)| *first < end && *last > start)
                        .map(|&(first, _, offset)| (first, offset))
                        .collect();
                    assert_eq!(found(&queue, start..end), expected, "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn equal_fpdus_of_a_message_share_a_descriptor() {
        let mut queue = queue(&[40, 40, 40, 36, 36]);
        assert_eq!(queue.runs.iter().map(|run| run.count).collect::<Vec<_>>(), [3, 2]);
        let lasts: Vec<bool> = queue.runs.iter().map(|run| run.last).collect();
        assert_eq!(lasts, [false, true]);
        let start = queue.runs[1].end();
        let source = Source::Work(8);
        let next = NextFpdu { start, wire_len: 36, source, offset: 0, len: 18, last: false };
        queue.push(UNMARKED, &next, head);
        assert_eq!(queue.runs.len(), 3);
    }

    #[test]
    fn across_finds_the_fpdu_around_an_interior_offset() {
        let queue = queue(&[40, 40, 40, 36]);
        let across = |at| queue.across(StreamOffset(at)).map(|fpdu| fpdu.start().0);
        let expected = [(100, None), (101, Some(100)), (139, Some(100)), (140, None)];
        for (at, start) in expected {
            assert_eq!(across(at), start, "{at}");
        }
        assert_eq!((across(219), across(220), across(221)), (Some(180), None, Some(220)));
        assert_eq!((across(255), across(256), across(99)), (Some(220), None, None));
        let last = queue.last().unwrap();
        assert_eq!((last.start().0, last.len()), (220, 18));
        assert_eq!(
            queue.iter().map(|fpdu| fpdu.start().0).collect::<Vec<_>>(),
            [100, 140, 180, 220]
        );
    }

    #[test]
    fn only_whole_acknowledged_fpdus_are_released() {
        let mut queue = queue(&[24, 24, 24]);
        let mut released = 0;
        queue.release(StreamOffset(147), |_, count| released += count);
        assert_eq!(released, 1);
        queue.release(StreamOffset(148), |_, count| released += count);
        assert_eq!(released, 2);
        assert!(!queue.is_empty());
        queue.release(StreamOffset(172), |_, count| released += count);
        assert_eq!(released, 3);
        assert!(queue.is_empty());
    }
}
