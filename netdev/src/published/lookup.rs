//! Finds the published region of a fragment, and the peer's name of that region.

use crate::SharedSlice;
use crate::published::Region;

/// Regions that do not overlap, each with a peer's name of it.
#[derive(Debug)]
pub(crate) struct Lookup<N> {
    /// Regions, ordered by address.
    entries: Vec<Entry<N>>,
    /// Index of the last hit: the next fragment is mostly in the same region.
    last: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<N> {
    start: usize,
    len: usize,
    /// [`Region::id`].
    pub(crate) id: u64,
    name: N,
}

impl<N> Default for Lookup<N> {
    fn default() -> Self {
        Self { entries: Vec::new(), last: 0 }
    }
}

impl<N: Copy> Lookup<N> {
    pub(crate) fn insert(&mut self, region: &Region, name: N) {
        let Region { id, start, len, .. } = *region;
        let at = self.entries.partition_point(|entry| entry.start < start);
        self.entries.insert(at, Entry { start, len, id, name });
    }

    /// Keeps only the regions for which `stays` returns true.
    pub(crate) fn retain(&mut self, stays: impl FnMut(&Entry<N>) -> bool) {
        self.entries.retain(stays);
        self.last = 0;
    }

    /// Returns the region that contains a whole fragment, and the fragment's offset in it.
    #[inline]
    pub(crate) fn find(&mut self, fragment: SharedSlice<'_>) -> Option<(N, u64)> {
        let address = fragment.as_ptr().addr();
        let holds = |entry: &Entry<N>| {
            let into = address.wrapping_sub(entry.start);
            (into < entry.len && fragment.len() <= entry.len - into).then_some(into)
        };
        let into = match self.entries.get(self.last).and_then(holds) {
            Some(into) => into,
            None => {
                let behind = self.entries.partition_point(|entry| entry.start <= address);
                self.last = behind.checked_sub(1)?;
                holds(&self.entries[self.last])?
            }
        };
        Some((self.entries[self.last].name, into as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Publisher;

    #[test]
    fn a_fragment_is_found_that_is_in_a_region() {
        let publisher = Publisher::new();
        let memory: Vec<_> =
            (0..3).map(|_| publisher.allocate_blocks(1, 8192).unwrap().pop().unwrap()).collect();
        let mut lookup = Lookup::default();
        publisher.look(|_, regions| {
            for (region, name) in regions.iter().zip(0..) {
                lookup.insert(region, name);
            }
        });
        for _ in 0..2 {
            for (octets, name) in memory.iter().zip(0..) {
                for (at, len) in [(0, 8192), (8191, 1), (17, 300)] {
                    let fragment = SharedSlice::from_bytes(&octets[at..at + len]);
                    assert_eq!(lookup.find(fragment), Some((name, at as u64)));
                }
            }
            assert_eq!(lookup.find(SharedSlice::from_bytes(&[0; 10])), None);
        }
        lookup.retain(|entry| entry.name != 1);
        assert_eq!(lookup.find(SharedSlice::from_bytes(&memory[1])), None);
        assert_eq!(lookup.find(SharedSlice::from_bytes(&memory[2][1..])), Some((2, 1)));
    }

    #[test]
    fn a_fragment_that_is_longer_than_its_region_is_not_found() {
        // As if the second half of the bytes were not published.
        let octets = [0; 200];
        let start = octets.as_ptr().addr();
        let file = std::fs::File::open("/dev/null").unwrap();
        let region = Region { id: 1, start, len: 100, file: std::sync::Arc::new(file.into()) };
        let mut lookup = Lookup::default();
        lookup.insert(&region, ());
        for (at, len, is_found) in [(0, 100, true), (99, 1, true), (99, 2, false), (100, 1, false)]
        {
            let found = lookup.find(SharedSlice::from_bytes(&octets[at..at + len]));
            assert_eq!(found.is_some(), is_found, "{at} {len}");
        }
    }
}
