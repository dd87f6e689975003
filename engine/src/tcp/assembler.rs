//! Ranges of stream bytes received beyond the cumulative point, without the bytes.

use std::collections::VecDeque;
use std::ops::Range;

use crate::limits::OUT_OF_ORDER_RANGES_MAX;
use crate::types::StreamOffset;

/// Sorted, disjoint ranges that do not touch: for neighbours `a`, `b`: `a.end < b.start`.
#[derive(Clone, Debug)]
pub(crate) struct Assembler {
    ranges: VecDeque<Range<StreamOffset>>,
    ranges_max: usize,
}

impl Default for Assembler {
    fn default() -> Self {
        Self::new(OUT_OF_ORDER_RANGES_MAX)
    }
}

impl Assembler {
    pub(crate) fn new(ranges_max: usize) -> Self {
        Self { ranges: VecDeque::new(), ranges_max: ranges_max.min(OUT_OF_ORDER_RANGES_MAX) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn highest_end(&self) -> Option<StreamOffset> {
        self.ranges.back().map(|last| last.end)
    }

    pub(crate) fn containing(&self, offset: StreamOffset) -> Option<Range<StreamOffset>> {
        let range = self.ranges.get(self.first_ending_after(offset))?;
        (range.start <= offset).then(|| range.clone())
    }

    pub(crate) fn first_within(&self, within: &Range<StreamOffset>) -> Option<Range<StreamOffset>> {
        let held = self.ranges.get(self.first_ending_after(within.start))?;
        let (start, end) = (held.start.max(within.start), held.end.min(within.end));
        (start < end).then_some(start..end)
    }

    pub(crate) fn next_missing(&self, within: Range<StreamOffset>) -> Option<Range<StreamOffset>> {
        let Range { mut start, mut end } = within;
        let mut index = self.first_ending_after(start);
        if let Some(range) = self.ranges.get(index)
            && range.start <= start
        {
            start = range.end;
            index += 1;
        }
        if let Some(next) = self.ranges.get(index) {
            end = end.min(next.start);
        }
        (start < end).then_some(start..end)
    }

    /// Returns true if [`insert`](Self::insert) has room for a range from `start` on, whatever its
    /// length. Touching a later range does not count: a front part does not touch it.
    pub(crate) fn has_room_from(&self, start: StreamOffset) -> bool {
        self.ranges.len() < self.ranges_max
            || self.ranges.get(self.first_touching(start)).is_some_and(|held| held.start <= start)
    }

    /// Adds `range`. Returns false, with nothing changed, if there is no room for another range.
    pub(crate) fn insert(&mut self, range: Range<StreamOffset>) -> bool {
        // The usual case: the newest segment continues the highest range.
        if let Some(last) = self.ranges.back_mut()
            && last.end == range.start
        {
            last.end = range.end;
            return true;
        }
        let first = self.first_touching(range.start);
        let touching =
            self.ranges.iter().skip(first).take_while(|held| held.start <= range.end).count();
        if touching == 0 {
            if self.ranges.len() >= self.ranges_max {
                return false;
            }
            self.ranges.insert(first, range);
            return true;
        }
        let end = self.ranges[first + touching - 1].end.max(range.end);
        let merged = &mut self.ranges[first];
        merged.start = merged.start.min(range.start);
        merged.end = end;
        self.ranges.drain(first + 1..first + touching);
        true
    }

    /// Removes the bytes of `range`. Splits a range that surrounds it in two, even in a full table.
    pub(crate) fn remove(&mut self, range: &Range<StreamOffset>) {
        let mut index = self.first_ending_after(range.start);
        while let Some(held) = self.ranges.get_mut(index).filter(|held| held.start < range.end) {
            let after = range.end..held.end;
            if held.start < range.start {
                held.end = range.start;
                index += 1;
            } else {
                self.ranges.remove(index);
            }
            if after.start < after.end {
                self.ranges.insert(index, after);
                break;
            }
        }
    }

    /// Moves the cumulative point from `next` over every range it reaches; returns its new place.
    pub(crate) fn absorb(&mut self, mut next: StreamOffset) -> StreamOffset {
        while let Some(first) = self.ranges.front()
            && first.start <= next
        {
            next = next.max(first.end);
            self.ranges.pop_front();
        }
        next
    }

    fn first_ending_after(&self, offset: StreamOffset) -> usize {
        self.ranges.partition_point(|range| range.end <= offset)
    }

    fn first_touching(&self, offset: StreamOffset) -> usize {
        self.ranges.partition_point(|range| range.end < offset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, end: u64) -> Range<StreamOffset> {
        StreamOffset(start)..StreamOffset(end)
    }

    #[test]
    fn full_table_takes_ranges_that_touch_another() {
        let mut assembler = Assembler::default();
        for index in 0..OUT_OF_ORDER_RANGES_MAX as u64 {
            assert!(assembler.insert(range(10 + index * 10, 15 + index * 10)));
        }
        assert!(!assembler.has_room_from(StreamOffset(100_000)));
        assert!(!assembler.insert(range(100_000, 100_001)));
        assert!(!assembler.insert(range(17, 18)));
        assert!(assembler.has_room_from(StreamOffset(15)));
        assert!(assembler.insert(range(15, 20)));
        assert!(assembler.has_room_from(StreamOffset(100_000)));
    }

    #[test]
    fn remove_leaves_no_empty_range() {
        let mut assembler = Assembler::default();
        for (at, len, kept) in [(10, 10, None), (10, 4, Some(14..20)), (16, 4, Some(10..16))] {
            assert!(assembler.insert(range(10, 20)));
            assembler.remove(&range(at, at + len));
            let kept: Vec<_> = kept.into_iter().map(|kept| range(kept.start, kept.end)).collect();
            assert_eq!(assembler.ranges, kept);
            assembler.remove(&range(0, 100));
            assert!(assembler.is_empty());
        }
    }

    #[test]
    fn room_in_a_full_table_ignores_later_ranges() {
        let mut assembler = Assembler::default();
        for index in 0..OUT_OF_ORDER_RANGES_MAX as u64 {
            assert!(assembler.insert(range(10 + index * 10, 15 + index * 10)));
        }
        // 16..20 would touch the range after it, but 16..19 would not.
        assert!(!assembler.has_room_from(StreamOffset(16)));
        assert!(!assembler.insert(range(16, 19)));
        assert!(!assembler.has_room_from(StreamOffset(9)));
        for start in 10..=15 {
            assert!(assembler.has_room_from(StreamOffset(start)), "continues one: {start}");
        }
    }

    #[test]
    fn table_with_one_free_entry_takes_any_range() {
        let mut assembler = Assembler::default();
        for index in 1..OUT_OF_ORDER_RANGES_MAX as u64 {
            assert!(assembler.insert(range(10 + index * 10, 15 + index * 10)));
        }
        assert!(assembler.has_room_from(StreamOffset(3)));
        assert!(assembler.insert(range(3, 4)));
        assert!(!assembler.has_room_from(StreamOffset(6)));
    }

    proptest! {
        #[test]
        fn assembler_agrees_with_a_map_of_octets(
            inserts in proptest::collection::vec((1_u64..200, 1_u64..20), 1..40),
        ) {
            let mut assembler = Assembler::default();
            let mut map = [false; 256];
            for (start, len) in inserts {
                prop_assert!(assembler.insert(range(start, start + len)));
                map[usize::try_from(start).unwrap()..][..usize::try_from(len).unwrap()].fill(true);
                for probe in 0..230_usize {
                    let missing = assembler.next_missing(range(probe as u64, 240));
                    let first = (probe..240).find(|&at| !map[at]).unwrap();
                    let stop = (first..240).find(|&at| map[at]).unwrap_or(240);
                    prop_assert_eq!(missing, Some(range(first as u64, stop as u64)));
                    let held = assembler.containing(StreamOffset(probe as u64));
                    prop_assert_eq!(held.is_some(), map[probe]);
                }
                let neighbours = assembler.ranges.iter().zip(assembler.ranges.iter().skip(1));
                for (a, b) in neighbours {
                    prop_assert!(a.end < b.start);
                }
            }
            let reached = assembler.absorb(StreamOffset(1));
            let expected = (1..256).find(|&at| !map[at]).unwrap();
            prop_assert_eq!(reached, StreamOffset(expected as u64));
        }
    }
}
