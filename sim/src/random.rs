//! Numbers drawn from a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A seed gives the same stream on every machine and in every version.
#[derive(Debug)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(bound);
        u64::try_from(product >> 64).expect("the high half of 128 bits")
    }

    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub(crate) fn len(&mut self, least: usize, most: usize) -> usize {
        usize::try_from(self.between(least as u64, most as u64)).expect("between two lengths")
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.len(0, choices.len() - 1)]
    }

    /// Draws tenths of a percent.
    pub(crate) fn chance(&mut self, percent_max: u32) -> f64 {
        let mille = self.below(u64::from(percent_max) * 10 + 1);
        f64::from(u32::try_from(mille).expect("at most 1000")) / 1000.0
    }
}
