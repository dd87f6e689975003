//! Sets of octet positions.

use std::collections::BTreeMap;
use std::ops::Range;

/// Positions, kept as disjoint ranges that do not touch.
///
/// Positions are 128 bits wide because a tagged buffer may end at 2⁶⁴.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeSet {
    /// End by start.
    ranges: BTreeMap<u128, u128>,
}

impl RangeSet {
    /// Adds a range; returns how many of its positions are new.
    pub(super) fn insert(&mut self, range: Range<u128>) -> u128 {
        let Range { mut start, mut end } = range;
        if start >= end {
            return 0;
        }
        let mut present = 0;
        // Every range that overlaps or touches it ends up in it.
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

    /// The parts of `range` that are not in the set, in order.
    pub(super) fn missing(&self, range: Range<u128>) -> Vec<Range<u128>> {
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

    /// Whether any position of `range` is in the set.
    pub(super) fn overlaps(&self, range: &Range<u128>) -> bool {
        range.start < range.end
            && self.ranges.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    /// Whether a range of the set ends or begins at `position`.
    pub(super) fn touches(&self, position: u128) -> bool {
        let before = self.ranges.range(..=position).next_back();
        before.is_some_and(|(&start, &end)| start == position || end == position)
    }

    /// The end of the range that holds `position`; `position` itself when none does.
    pub(super) fn end_of_run(&self, position: u128) -> u128 {
        match self.ranges.range(..=position).next_back() {
            Some((_, &end)) => end.max(position),
            None => position,
        }
    }

    /// The ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u128>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// From the lowest to after the highest position.
    pub(super) fn span(&self) -> Option<Range<u128>> {
        let (&start, _) = self.ranges.first_key_value()?;
        let (_, &end) = self.ranges.last_key_value()?;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn it_agrees_with_a_map_of_positions(
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
    fn the_highest_position_of_a_tagged_buffer_fits() {
        let mut set = RangeSet::default();
        let end = 1_u128 << 64;
        assert_eq!(set.insert(end - 16..end), 16);
        assert_eq!(set.span(), Some(end - 16..end));
    }
}
