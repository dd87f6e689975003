//! Generation of steering tags that a peer cannot guess.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::limits::STAGS_RETIRED_MAX;
use crate::types::Stag;

// RFC 5040 §8.1.1(8): STag values MUST be hard to predict, SHOULD use the whole space, and reuse
// SHOULD be as late as possible. So: 32 bits of a stream cipher, never a tag in use or recently
// retired.
pub(super) struct StagSource {
    random: ChaCha20Rng,
    retired: HashSet<u32, StagHash>,
    retired_order: VecDeque<u32>,
}

impl StagSource {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self {
            random: ChaCha20Rng::from_seed(seed),
            retired: HashSet::default(),
            retired_order: VecDeque::new(),
        }
    }

    /// Neither 0, nor recently retired, nor `in_use`. Ends quickly: few of the 2³² tags are in use.
    // spec: SEC-R-8
    pub(super) fn draw(&mut self, in_use: impl Fn(u32) -> bool) -> Stag {
        loop {
            let tag = self.random.next_u32();
            if tag != 0 && !self.retired.contains(&tag) && !in_use(tag) {
                return Stag(tag);
            }
        }
    }

    pub(super) fn retire(&mut self, stag: Stag) {
        if self.retired_order.len() == STAGS_RETIRED_MAX
            && let Some(earliest) = self.retired_order.pop_front()
        {
            self.retired.remove(&earliest);
        }
        self.retired.insert(stag.0);
        self.retired_order.push_back(stag.0);
    }
}

/// A hash for keys that are random already: one multiplication spreads them to the upper bits,
/// which the map compares first. Peers do not choose keys, so they cannot make the map slow.
#[derive(Clone, Copy, Default)]
pub(super) struct StagHasher(u64);

pub(super) type StagHash = BuildHasherDefault<StagHasher>;

impl Hasher for StagHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &octet in bytes {
            self.write_u32(octet.into());
        }
    }

    fn write_u32(&mut self, value: u32) {
        /// 2⁶⁴ divided by the golden ratio, odd.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(SPREAD);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5040 §8.1.1(8).
    // spec: SEC-R-8
    #[test]
    fn a_hundred_thousand_tags_are_sparse_distinct_and_without_stride() {
        let mut source = StagSource::new([7; 32]);
        let mut seen = HashSet::new();
        let mut ones = [0_u32; 32];
        let mut strides = HashSet::new();
        let mut last = 0_u32;
        for _ in 0..100_000 {
            let stag = source.draw(|_| false);
            // Retired at once: the worst case for reuse.
            source.retire(stag);
            assert_ne!(stag.0, 0);
            assert!(seen.insert(stag.0), "{stag} came back early");
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += stag.0 >> bit & 1;
            }
            strides.insert(stag.0.wrapping_sub(last));
            last = stag.0;
        }
        for (bit, count) in ones.iter().enumerate() {
            assert!((49_000..51_000).contains(count), "bit {bit} was one {count} times");
        }
        assert!(strides.len() > 99_900);
    }

    #[test]
    fn another_seed_draws_other_tags() {
        let first = |seed| StagSource::new(seed).draw(|_| false);
        assert_eq!(first([1; 32]), first([1; 32]));
        assert_ne!(first([1; 32]), first([2; 32]));
    }

    #[test]
    fn allocation_skips_tags_in_use() {
        let unhindered = StagSource::new([3; 32]).draw(|_| false);
        assert_ne!(StagSource::new([3; 32]).draw(|tag| tag == unhindered.0), unhindered);
    }

    #[test]
    fn memory_of_retired_tags_is_bounded() {
        let mut source = StagSource::new([0; 32]);
        for tag in 0..u32::try_from(STAGS_RETIRED_MAX).unwrap() + 10 {
            source.retire(Stag(tag));
        }
        assert_eq!(source.retired.len(), STAGS_RETIRED_MAX);
        assert_eq!(source.retired_order.len(), STAGS_RETIRED_MAX);
        assert!(!source.retired.contains(&9));
        assert!(source.retired.contains(&10));
    }
}
