//! Seeded bytes, and the comparison of memory with them: cheap, because they run beside the engine
//! whose throughput is shown.

use urnic_engine::verbs::Mr;

/// SplitMix64: the run depends only on its seed.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Draws a number below `bound`, which is not 0.
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// Draws a number from `low` to `high`, inclusive.
    pub(super) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(super) const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: usize,
    pub(super) len: usize,
}

/// Source memory of one direction. No eight bytes repeat, so data at a wrong place, or from an
/// earlier operation, is detected.
#[derive(Debug)]
pub(super) struct Pattern {
    octets: Vec<u8>,
    /// Memory is copied here, a chunk at a time, and compared while it is in the cache.
    scratch: Vec<u8>,
}

impl Pattern {
    pub(super) fn new(seed: u64, len: usize) -> Self {
        let mut octets = vec![0; len];
        let mut counter = mix(seed);
        for word in octets.chunks_mut(8) {
            counter = counter.wrapping_add(GOLDEN);
            word.copy_from_slice(&mix(counter).to_le_bytes()[..word.len()]);
        }
        Self { octets, scratch: vec![0; CHUNK_LEN] }
    }

    pub(super) fn octets(&self) -> &[u8] {
        &self.octets
    }

    pub(super) const fn len(&self) -> usize {
        self.octets.len()
    }

    pub(super) fn compare(
        &mut self,
        memory: &Mr,
        at: usize,
        pieces: &[Piece],
    ) -> Result<(), Difference> {
        let mut done = 0;
        for piece in pieces {
            let expected = &self.octets[piece.at..][..piece.len];
            for expected in expected.chunks(CHUNK_LEN) {
                let found = &mut self.scratch[..expected.len()];
                memory.copy_out(at + done, found);
                if found != expected {
                    return Err(Difference::between(expected, found, done));
                }
                done += expected.len();
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// Offset from the beginning of the comparison.
    pub(super) offset: usize,
    pub(super) expected: u8,
    pub(super) found: u8,
}

impl Difference {
    /// The slices differ, and begin at `start`.
    pub(super) fn between(expected: &[u8], found: &[u8], start: usize) -> Self {
        let index = expected.iter().zip(found).position(|(expected, found)| expected != found);
        let index = index.expect("the slices differ");
        Self { offset: start + index, expected: expected[index], found: found[index] }
    }
}

/// Fits the smallest first-level cache twice.
const CHUNK_LEN: usize = 8 << 10;
/// 2⁶⁴ divided by the golden ratio: the increment of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64: a bijection that looks random.
const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use urnic_engine::mem::Access;
    use urnic_engine::verbs::{Rnic, RnicConfig};

    use super::*;

    #[test]
    fn a_pattern_matches_itself_and_nothing_else() {
        let mut pattern = Pattern::new(7, 50_001);
        let pd = Rnic::new(RnicConfig { seed: 1.into() }).alloc_pd();
        let memory = pd.reg_mr(50_000, Access::LOCAL_WRITE).unwrap();
        memory.copy_in(5, &pattern.octets()[100..20_100]);
        memory.copy_in(20_005, &pattern.octets()[3..33]);
        let pieces = [Piece { at: 100, len: 20_000 }, Piece { at: 3, len: 30 }];
        assert_eq!(pattern.compare(&memory, 5, &pieces), Ok(()));
        let wrong = pattern.octets()[3 + 29] ^ 1;
        memory.copy_in(20_034, &[wrong]);
        let difference = Difference { offset: 20_029, expected: wrong ^ 1, found: wrong };
        assert_eq!(pattern.compare(&memory, 5, &pieces), Err(difference));
    }

    #[test]
    fn patterns_of_two_seeds_differ_everywhere() {
        let (a, b) = (Pattern::new(1, 8192), Pattern::new(2, 8192));
        let equal = a.octets().chunks(8).zip(b.octets().chunks(8)).filter(|(a, b)| a == b);
        assert_eq!(equal.count(), 0);
    }

    #[test]
    fn random_numbers_stay_inside_their_bounds() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| (3..=7).contains(&random.between(3, 7))));
        assert!((0..1000).all(|_| random.below(1) == 0));
    }
}
