//! Blocks of private memory, shared by all streams of a port.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use urnic_netdev::published::{PublishedBlock, Publisher};

use crate::limits::{KEPT_BLOCK_LEN, KEPT_BLOCKS_FREE_MAX, KEPT_BLOCKS_MAX};

/// A block of memory that only its owner writes, so references to it are sound.
#[derive(Debug)]
pub(crate) enum Block {
    Private(Box<[u8]>),
    /// Peers of a device in shared memory can read the kept bytes in place.
    Published(PublishedBlock),
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Private(octets) => octets,
            Self::Published(octets) => octets,
        }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Private(octets) => octets,
            Self::Published(octets) => octets,
        }
    }
}

/// Source of blocks for bytes that must stay as they were first sent. A stream takes one for each
/// [`KEPT_BLOCK_LEN`] bytes, so an uncontended lock costs little. The last returned block is taken
/// first: it is still in the cache.
//
// Each queue of an interface has its own pool, without a common cache line: each Read Response
// takes at least one block.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct BlockPool {
    free: Mutex<Vec<Block>>,
    taken: AtomicUsize,
    pools: AtomicUsize,
    publisher: Option<Publisher>,
}

impl Default for BlockPool {
    fn default() -> Self {
        Self {
            free: Mutex::default(),
            taken: AtomicUsize::new(0),
            pools: AtomicUsize::new(1),
            publisher: None,
        }
    }
}

impl BlockPool {
    pub(crate) fn published_by(publisher: &Publisher) -> Self {
        Self { publisher: Some(publisher.clone()), ..Self::default() }
    }

    /// `pools` pools share the limits of one.
    pub(crate) fn divide_among(&self, pools: usize) {
        self.pools.store(pools, Ordering::Relaxed);
    }

    fn part_of(&self, bound: usize) -> usize {
        bound / self.pools.load(Ordering::Relaxed).max(1)
    }

    /// Blocks that a stream with `own` blocks may take for bytes that a peer asked for: never more
    /// than are still free for the others. A peer that acknowledges nothing gets at most half of
    /// [`KEPT_BLOCKS_MAX`], two such peers a third each. A stream that holds no block may exceed
    /// its share by one FPDU (`Kept::room`), so every stream progresses.
    pub(crate) fn share(&self, own: usize) -> usize {
        let taken = self.taken.load(Ordering::Relaxed);
        let left = self.part_of(KEPT_BLOCKS_MAX).saturating_sub(taken);
        left.saturating_sub(own) / 2
    }

    /// Takes a block; its contents are arbitrary.
    pub(crate) fn take(&self) -> Block {
        self.taken.fetch_add(1, Ordering::Relaxed);
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> Block {
        let publisher = self.publisher.as_ref().filter(|publisher| publisher.has_devices());
        // Blocks announced to a peer at once. Memory that cannot be published is copied.
        let published = publisher
            .and_then(|publisher| publisher.allocate_blocks(BLOCKS_AT_ONCE, KEPT_BLOCK_LEN).ok());
        let mut blocks = published.into_iter().flatten().map(Block::Published);
        let Some(block) = blocks.next() else {
            return Block::Private(vec![0; KEPT_BLOCK_LEN].into_boxed_slice());
        };
        self.free.lock().unwrap_or_else(PoisonError::into_inner).extend(blocks);
        block
    }

    pub(crate) fn give_back(&self, block: Block) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.part_of(KEPT_BLOCKS_FREE_MAX) {
            free.push(block);
        }
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

const BLOCKS_AT_ONCE: usize = 64;

const _: () = assert!(BLOCKS_AT_ONCE <= KEPT_BLOCKS_FREE_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_published_only_where_a_peer_could_read_them() {
        let publisher = Publisher::new();
        let pool = BlockPool::published_by(&publisher);
        assert!(matches!(pool.take(), Block::Private(_)), "there is no device");
        let refused = BlockPool::default();
        assert!(matches!(refused.take(), Block::Private(_)));
    }

    #[test]
    fn each_stream_may_hold_half_of_the_remaining_blocks() {
        let pool = BlockPool::default();
        let blocks = |count| -> Vec<Block> { (0..count).map(|_| pool.take()).collect() };
        assert_eq!(pool.share(0), KEPT_BLOCKS_MAX / 2);
        let first = blocks(100);
        assert_eq!(pool.share(100), (KEPT_BLOCKS_MAX - 200) / 2);
        assert_eq!(pool.share(0), (KEPT_BLOCKS_MAX - 100) / 2, "a newcomer");
        pool.taken.store(KEPT_BLOCKS_MAX - 50, Ordering::Relaxed);
        assert_eq!(pool.share(50), 0);
        assert_eq!(pool.share(49), 0);
        assert_eq!(pool.share(48), 1);
        pool.taken.store(100, Ordering::Relaxed);
        for block in first {
            pool.give_back(block);
        }
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn pools_of_one_interface_share_one_limit() {
        let pools = [(); 4].map(|()| BlockPool::default());
        for pool in &pools {
            pool.divide_among(pools.len());
        }
        assert_eq!(pools.iter().map(|pool| pool.share(0)).sum::<usize>(), KEPT_BLOCKS_MAX / 2);
        let [pool, ..] = &pools;
        pool.taken.store(KEPT_BLOCKS_FREE_MAX, Ordering::Relaxed);
        for _ in 0..KEPT_BLOCKS_FREE_MAX {
            pool.give_back(Block::Private(Box::default()));
        }
        assert_eq!(pool.free.lock().unwrap().len(), KEPT_BLOCKS_FREE_MAX / pools.len());
    }

    #[test]
    fn returned_blocks_are_reused_up_to_the_free_limit() {
        let pool = BlockPool::default();
        let block = pool.take();
        assert_eq!(block.len(), KEPT_BLOCK_LEN);
        let address = block.as_ptr();
        pool.give_back(block);
        let again = pool.take();
        assert_eq!(again.as_ptr(), address);
        pool.taken.store(KEPT_BLOCKS_FREE_MAX + 1, Ordering::Relaxed);
        for _ in 0..=KEPT_BLOCKS_FREE_MAX {
            pool.give_back(Block::Private(Box::default()));
        }
        assert_eq!(pool.free.lock().unwrap().len(), KEPT_BLOCKS_FREE_MAX);
    }
}
