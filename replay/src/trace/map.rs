//! Memory of one steering tag: the written parts, with times and numbers of writes.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) octets: u64,
    pub(crate) again: u64,
}

/// Parts have equal length, which is doubled when there are too many.
#[derive(Debug)]
pub(crate) struct MemoryMap {
    pub(crate) parts: BTreeMap<u64, Part>,
    /// Length of a part as a power of two.
    pub(crate) shift: u32,
    /// From the lowest to after the highest byte written.
    pub(crate) span: (u64, u128),
    pub(crate) writes: u64,
    pub(crate) octets: u64,
    pub(crate) again: u64,
}

impl Default for MemoryMap {
    fn default() -> Self {
        let (parts, span) = (BTreeMap::new(), (u64::MAX, 0));
        Self { parts, shift: 6, span, writes: 0, octets: 0, again: 0 }
    }
}

impl MemoryMap {
    /// `fresh` bytes were never written before.
    pub(crate) fn write(&mut self, at: u64, len: u64, fresh: u64, now_ns: u64) {
        let end = u128::from(at) + u128::from(len);
        self.span = (self.span.0.min(at), self.span.1.max(end));
        self.writes += 1;
        self.octets += len;
        self.again += len - fresh;
        let last = at.saturating_add(len.saturating_sub(1));
        // If a write crosses parts, each gets its share of the rewritten bytes.
        let mut from = at;
        loop {
            let index = from >> self.shift;
            let until = (index << self.shift) | ((1 << self.shift) - 1);
            let octets = until.min(last) - from + 1;
            let again = u128::from(len - fresh) * u128::from(octets) / u128::from(len.max(1));
            let again = u64::try_from(again).unwrap_or(0);
            merge(
                &mut self.parts,
                index,
                Part { first_ns: now_ns, last_ns: now_ns, octets, again },
            );
            if until >= last {
                break;
            }
            from = until + 1;
        }
        while self.parts.len() > PARTS_MAX {
            self.shift += 1;
            for (index, part) in std::mem::take(&mut self.parts) {
                merge(&mut self.parts, index >> 1, part);
            }
        }
    }
}

fn merge(parts: &mut BTreeMap<u64, Part>, index: u64, part: Part) {
    let known = parts.entry(index).or_insert(Part { octets: 0, again: 0, ..part });
    known.first_ns = known.first_ns.min(part.first_ns);
    known.last_ns = known.last_ns.max(part.last_ns);
    known.octets += part.octets;
    known.again += part.again;
}

const PARTS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_few_and_cover_what_was_written() {
        let mut map = MemoryMap::default();
        for number in 0..10_000 {
            map.write(0x1000 + number * 100, 100, 100, number);
        }
        map.write(0x1000, 50, 0, 20_000);
        map.write(u64::MAX, 1, 1, 20_001);
        assert!(map.parts.len() <= PARTS_MAX);
        assert_eq!(map.span, (0x1000, 1 << 64));
        assert_eq!(map.parts.values().map(|part| part.octets).sum::<u64>(), 1_000_051);
        assert_eq!((map.again, map.parts.values().map(|part| part.again).sum::<u64>()), (50, 50));
    }
}
