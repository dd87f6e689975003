//! The device context.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::limits::CQ_DEPTH_MAX;
use crate::mem::RegionTable;
use crate::types::PdNum;
use crate::verbs::{Cq, Pd};

/// What an [`Rnic`] is made with.
#[derive(Clone, Copy, Debug)]
pub struct RnicConfig {
    /// Seeds everything random: STags, initial sequence numbers. Use
    /// [`random_seed`](crate::driver::random_seed) unless a run has to be repeatable: who knows
    /// the seed can guess STags.
    pub seed: u64,
}

#[derive(Debug)]
pub(crate) struct RnicShared {
    pub(crate) table: RegionTable,
    pub(crate) seed: u64,
    pd_next: AtomicU32,
    pub(crate) qp_next: AtomicU32,
}

/// A software RNIC: the owner of registered memory, domains, queues and queue pairs.
///
/// One process may have several; they share nothing.
#[derive(Clone, Debug)]
pub struct Rnic {
    pub(crate) shared: Arc<RnicShared>,
}

impl Rnic {
    /// Makes an RNIC.
    #[must_use]
    pub fn new(config: RnicConfig) -> Self {
        Self {
            shared: Arc::new(RnicShared {
                table: RegionTable::new(key(config.seed)),
                seed: config.seed,
                pd_next: AtomicU32::new(1),
                qp_next: AtomicU32::new(1),
            }),
        }
    }

    /// Makes a protection domain.
    #[must_use]
    pub fn alloc_pd(&self) -> Pd {
        let number = self.shared.pd_next.fetch_add(1, Ordering::Relaxed);
        Pd::new(Arc::clone(&self.shared), PdNum(number))
    }

    /// Makes a completion queue for `depth` completions.
    ///
    /// Make it at least as deep as the sum of all work that can be outstanding on it: a queue that
    /// overflows puts its queue pairs in error.
    ///
    /// # Panics
    /// When `depth` is 0 or above [`CQ_DEPTH_MAX`].
    #[must_use]
    pub fn create_cq(&self, depth: usize) -> Cq {
        assert!((1..=CQ_DEPTH_MAX).contains(&depth), "depth outside 1..=CQ_DEPTH_MAX");
        Cq::new(depth)
    }
}

/// Spreads a seed over the key of a generator.
fn key(seed: u64) -> [u8; 32] {
    let mut key = [0; 32];
    ChaCha20Rng::seed_from_u64(seed).fill_bytes(&mut key);
    key
}
