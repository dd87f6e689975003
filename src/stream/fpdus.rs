//! FPDUs that are framed but not acknowledged, as descriptors: no payload is stored.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::mpa::marker::MarkerGrid;
use crate::mpa::tx;
use crate::types::StreamOffset;

/// Octets of the longest DDP header with an RDMAP header behind it (a Terminate that returns a
/// Read Request: 18 + 4 + 2 + 18 + 28, or an Atomic Request: 18 + 52).
pub(crate) const ULPDU_FRONT_LEN_MAX: usize = 70;

/// The octets of a ULPDU that are not gathered.
pub(crate) type Front = ArrayVec<u8, ULPDU_FRONT_LEN_MAX>;

/// Where an FPDU's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It has none beyond the inline octets.
    Inline,
    /// In the memory of a request of the send queue.
    Work(u64),
    /// In the memory that an inbound RDMA Read asked for.
    Response(u64),
}

/// One FPDU: enough to write it again at any time.
#[derive(Clone, Debug)]
pub(crate) struct Fpdu {
    /// First octet on the stream, a leading marker included.
    pub(crate) start: StreamOffset,
    /// Octets on the stream: markers, length, ULPDU, pad and CRC.
    pub(crate) wire_len: u32,
    /// DDP header and whatever of the ULPDU is not gathered.
    pub(crate) front: Front,
    /// Where the gathered payload is.
    pub(crate) source: Source,
    /// Its first octet in the source.
    pub(crate) offset: u32,
    /// Its octets.
    pub(crate) len: u32,
}

impl Fpdu {
    /// The FPDU as MPA frames it.
    #[inline]
    pub(crate) fn framed(&self, grid: MarkerGrid) -> tx::Fpdu<'_> {
        tx::Fpdu::new(grid, self.start, &self.front, self.len as usize)
    }

    #[inline]
    pub(crate) fn end(&self) -> StreamOffset {
        self.start + u64::from(self.wire_len)
    }
}

/// Framed FPDUs in stream order, without gaps.
#[derive(Debug, Default)]
pub(crate) struct FpduQueue {
    fpdus: VecDeque<Fpdu>,
}

/// How many FPDUs are looked at from the back before searching: new segments are at the back.
const BACK_SCAN: usize = 64;

impl FpduQueue {
    pub(crate) fn with_capacity(fpdus: usize) -> Self {
        Self { fpdus: VecDeque::with_capacity(fpdus) }
    }

    pub(crate) fn push(&mut self, fpdu: Fpdu) {
        debug_assert!(self.fpdus.back().is_none_or(|last| last.end() == fpdu.start));
        self.fpdus.push_back(fpdu);
    }

    /// Drops what is acknowledged; returns each dropped FPDU's source to `dropped`.
    pub(crate) fn release(&mut self, snd_una: StreamOffset, mut dropped: impl FnMut(Source)) {
        while let Some(fpdu) = self.fpdus.front() {
            if fpdu.end() > snd_una {
                break;
            }
            dropped(fpdu.source);
            self.fpdus.pop_front();
        }
    }

    /// Index of the first FPDU that ends after `at`.
    #[inline]
    pub(crate) fn index_after(&self, at: StreamOffset) -> usize {
        let len = self.fpdus.len();
        // What is about to be sent for the first time is at the back.
        let mut index = len;
        while index > 0 && len - index < BACK_SCAN {
            if self.fpdus[index - 1].end() <= at {
                return index;
            }
            index -= 1;
        }
        self.fpdus.partition_point(|fpdu| fpdu.end() <= at)
    }

    /// The FPDU at `index`.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Fpdu> {
        self.fpdus.get(index)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.fpdus.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn queue(lens: &[u32]) -> FpduQueue {
        let mut queue = FpduQueue::default();
        let mut start = StreamOffset(100);
        for &wire_len in lens {
            queue.push(Fpdu {
                start,
                wire_len,
                front: ArrayVec::new(),
                source: Source::Inline,
                offset: 0,
                len: 0,
            });
            start = start + u64::from(wire_len);
        }
        queue
    }

    fn starts(queue: &FpduQueue, range: Range<u64>) -> Vec<u64> {
        let range = StreamOffset(range.start)..StreamOffset(range.end);
        (queue.index_after(range.start)..)
            .map_while(|index| queue.get(index))
            .take_while(|fpdu| fpdu.start < range.end)
            .map(|fpdu| fpdu.start.0)
            .collect()
    }

    #[test]
    fn fpdus_are_found_by_stream_range_wherever_they_are() {
        let lens: Vec<u32> = (0..500).map(|i| 24 + 4 * (i % 7)).collect();
        let queue = queue(&lens);
        let all: Vec<(u64, u64)> = {
            let mut at = 100;
            lens.iter()
                .map(|&len| {
                    at += u64::from(len);
                    (at - u64::from(len), at)
                })
                .collect()
        };
        for (start, end) in [(100, 101), (123, 125), (5000, 9000), (100, 1 << 20), (124, 148)] {
            let expected: Vec<u64> = all
                .iter()
                .filter(|(first, last)| *first < end && *last > start)
                .map(|(first, _)| *first)
                .collect();
            assert_eq!(starts(&queue, start..end), expected, "{start}..{end}");
        }
    }

    #[test]
    fn only_whole_acknowledged_fpdus_are_released() {
        let mut queue = queue(&[24, 24]);
        let mut released = 0;
        queue.release(StreamOffset(147), |_| released += 1);
        assert_eq!(released, 1);
        queue.release(StreamOffset(148), |_| released += 1);
        assert_eq!(released, 2);
        assert!(queue.is_empty());
    }
}
