//! Sets of byte positions.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::limits::{Holding, Room};

/// Disjoint ranges that are not adjacent, 128 bits wide because a tagged buffer may end at 2⁶⁴.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeSet {
    ranges: BTreeMap<u128, u128>,
}

impl RangeSet {
    /// Adds a range, if it joins another or there is room; returns true if it was added.
    pub(crate) fn insert_within(
        &mut self,
        range: Range<u128>,
        held: &mut Holding,
        room: &mut Room,
    ) -> bool {
        if range.start >= range.end {
            return true;
        }
        let joins =
            self.ranges.range(..=range.end).next_back().is_some_and(|(_, &to)| to >= range.start);
        if !joins && !held.take(room) {
            return false;
        }
        let before = self.ranges.len() + usize::from(!joins);
        self.insert(range);
        held.give(before - self.ranges.len(), room);
        true
    }

    /// Returns the number of new positions.
    pub(crate) fn insert(&mut self, range: Range<u128>) -> u128 {
        let Range { mut start, mut end } = range;
        if start >= end {
            return 0;
        }
        let mut present = 0;
        // Every range that overlaps it or is adjacent is merged into it.
        while let Some((&from, &to)) =
            self.ranges.range(..=end).next_back().filter(|&(_, &to)| to >= start)
        {
            present += to.min(range.end).saturating_sub(from.max(range.start));
            self.ranges.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.ranges.insert(start, end);
        range.end - range.start - present
    }

    pub(crate) fn missing(&self, range: Range<u128>) -> Vec<Range<u128>> {
        let mut parts = Vec::new();
        let mut from = range.start;
        let before = self.ranges.range(..=range.start).next_back();
        if let Some((_, &end)) = before {
            from = from.max(end);
        }
        for (&start, &end) in self.ranges.range(range.start..) {
            if start >= range.end {
                break;
            }
            if start > from {
                parts.push(from..start);
            }
            from = from.max(end);
        }
        if from < range.end {
            parts.push(from..range.end);
        }
        parts
    }

    pub(crate) fn overlaps(&self, range: &Range<u128>) -> bool {
        range.start < range.end
            && self.ranges.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    pub(crate) fn touches(&self, position: u128) -> bool {
        let before = self.ranges.range(..=position).next_back();
        before.is_some_and(|(&start, &end)| start == position || end == position)
    }

    /// Returns the end of the range that contains `position`, or `position`.
    pub(crate) fn end_of_run(&self, position: u128) -> u128 {
        match self.ranges.range(..=position).next_back() {
            Some((_, &end)) => end.max(position),
            None => position,
        }
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = Range<u128>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    pub(crate) fn span(&self) -> Option<Range<u128>> {
        let (&start, _) = self.ranges.first_key_value()?;
        let (_, &end) = self.ranges.last_key_value()?;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::NOTES_OWN;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn range_set_agrees_with_a_map_of_positions(
            inserts in proptest::collection::vec((0_u128..200, 0_u128..20), 1..40),
        ) {
            let mut set = RangeSet::default();
            let mut map = [false; 256];
            for (start, len) in inserts {
                let touched = start..start + len;
                let new = touched.clone().filter(|&at| !map[usize::try_from(at).unwrap()]).count();
                let missing: Vec<u128> =
                    touched.clone().filter(|&at| !map[usize::try_from(at).unwrap()]).collect();
                let reported: Vec<u128> = set.missing(touched.clone()).into_iter().flatten().collect();
                prop_assert_eq!(missing, reported);
                prop_assert_eq!(set.overlaps(&touched), (new as u128) < len);
                prop_assert_eq!(set.insert(touched.clone()), new as u128);
                for at in touched {
                    map[usize::try_from(at).unwrap()] = true;
                }
            }
            let all: Vec<u128> = set.iter().flatten().collect();
            let expected: Vec<u128> = (0..256).filter(|&at| map[at]).map(|at| at as u128).collect();
            prop_assert_eq!(all, expected);
            for at in 0..255_usize {
                let run = (at..256).find(|&probe| !map[probe]).unwrap();
                prop_assert_eq!(set.end_of_run(at as u128), run as u128);
                let touches = (at > 0 && map[at - 1] != map[at]) || (at == 0 && map[0]);
                prop_assert_eq!(set.touches(at as u128), touches);
            }
        }
    }

    #[test]
    fn ranges_that_join_others_need_no_room() {
        let (mut room, mut held) = (Room::new(0), Holding::of_notes());
        let mut set = RangeSet::default();
        let mut taken = 0;
        while set.insert_within(taken * 10..taken * 10 + 5, &mut held, &mut room) {
            taken += 1;
        }
        assert_eq!(set.iter().count(), NOTES_OWN, "no more than there is room");
        assert!(set.insert_within(5..7, &mut held, &mut room), "behind the first");
        assert!(!set.insert_within(8..9, &mut held, &mut room), "between two");
        assert!(set.insert_within(7..10, &mut held, &mut room), "joins two");
        assert!(set.insert_within(1000..1001, &mut held, &mut room), "room for one again");
        assert!(!set.insert_within(2000..2001, &mut held, &mut room));
        assert!(set.insert_within(0..5000, &mut held, &mut room), "all become one");
        for at in 0..NOTES_OWN as u128 - 1 {
            assert!(set.insert_within(6000 + 2 * at..6001 + 2 * at, &mut held, &mut room));
        }
        assert!(!set.insert_within(9000..9001, &mut held, &mut room));
    }

    #[test]
    fn the_highest_position_of_a_tagged_buffer_fits() {
        let mut set = RangeSet::default();
        let end = 1_u128 << 64;
        assert_eq!(set.insert(end - 16..end), 16);
        assert_eq!(set.span(), Some(end - 16..end));
    }
}
