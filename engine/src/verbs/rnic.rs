//! The device context.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam::utils::CachePadded;
use urnic_netdev::published::Publisher;

use crate::limits::CQ_DEPTH_MAX;
use crate::mem::RegionTable;
use crate::mem::pool::BlockPool;
use crate::secret::{Purpose, Seed};
use crate::types::PdNum;
use crate::verbs::{Cq, Pd, QueueError};

/// Configuration of an [`Rnic`].
#[derive(Clone, Copy, Debug)]
pub struct RnicConfig {
    /// Source of all random values, each by a key of its own: `urnic::random_seed`, or a number
    /// (`1.into()`) for a repeatable run. A peer that knows the seed can guess STags.
    pub seed: Seed,
}

#[derive(Debug)]
pub(crate) struct RnicShared {
    pub(crate) table: RegionTable,
    pub(crate) seed: Seed,
    /// For streams over sockets; those of a port use the port's memory.
    blocks: Arc<BlockPool>,
    publisher: Publisher,
    pd_next: AtomicU32,
    ports: AtomicU32,
    pub(crate) qp_next: AtomicU32,
}

impl RnicShared {
    pub(crate) fn count_port(&self) -> u32 {
        self.ports.fetch_add(1, Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) const fn blocks(&self) -> &Arc<BlockPool> {
        &self.blocks
    }
}

/// Handle of an RNIC for one port, or for one stream over a socket. A port clones it for each burst
/// of frames: the count of the RNIC itself is in a cache line that the threads of all its ports
/// would write, the count of this handle is the port's alone.
#[derive(Clone, Debug)]
pub(crate) struct HeldRnic {
    held: Arc<CachePadded<Held>>,
}

#[derive(Debug)]
struct Held {
    rnic: Arc<RnicShared>,
    blocks: Arc<BlockPool>,
}

impl HeldRnic {
    pub(crate) fn by_port(rnic: &Rnic) -> Self {
        Self::new(rnic, Arc::new(BlockPool::published_by(rnic.publisher())))
    }

    pub(crate) fn by_stream(rnic: &Rnic) -> Self {
        Self::new(rnic, Arc::clone(&rnic.shared.blocks))
    }

    fn new(rnic: &Rnic, blocks: Arc<BlockPool>) -> Self {
        let held = Held { rnic: Arc::clone(&rnic.shared), blocks };
        Self { held: Arc::new(CachePadded::new(held)) }
    }

    pub(crate) fn blocks(&self) -> &Arc<BlockPool> {
        &self.held.blocks
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.held)
    }

    /// Address of the reference-counted value, directly after the two counts.
    #[cfg(test)]
    pub(crate) fn addr(&self) -> usize {
        Arc::as_ptr(&self.held).addr()
    }

    /// Returns true if both are handles of one RNIC.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.held.rnic, &other.held.rnic)
    }
}

impl Deref for HeldRnic {
    type Target = RnicShared;

    #[inline]
    fn deref(&self) -> &RnicShared {
        &self.held.rnic
    }
}

/// A software RNIC: the owner of registered memory, domains, queues and queue pairs.
#[derive(Clone, Debug)]
pub struct Rnic {
    pub(crate) shared: Arc<RnicShared>,
}

impl Rnic {
    /// Creates an RNIC.
    #[must_use]
    pub fn new(config: RnicConfig) -> Self {
        Self {
            shared: Arc::new(RnicShared {
                table: RegionTable::new(config.seed.key(Purpose::Stags, 0)),
                seed: config.seed,
                blocks: Arc::default(),
                publisher: Publisher::new(),
                pd_next: AtomicU32::new(1),
                ports: AtomicU32::new(0),
                qp_next: AtomicU32::new(1),
            }),
        }
    }

    /// Creates a protection domain.
    #[must_use]
    pub fn alloc_pd(&self) -> Pd {
        let number = self.shared.pd_next.fetch_add(1, Ordering::Relaxed);
        Pd::new(Arc::clone(&self.shared), PdNum(number))
    }

    /// Publisher of memory that the devices' peers may read
    /// ([`Region::published`](crate::mem::Region::published)).
    #[must_use]
    pub fn publisher(&self) -> &Publisher {
        &self.shared.publisher
    }

    /// Creates a completion queue for `depth` completions: at least the number of requests that can
    /// be outstanding on it, including completed ones until they are polled. As with
    /// `ibv_create_cq`, the application is responsible for that (RFC 5042 §6.4.3.2). A queue that
    /// overflows puts the queue pairs that lost a completion in error. Errors:
    /// [`QueueError::CqDepth`] if `depth` is 0 or above [`CQ_DEPTH_MAX`].
    pub fn create_cq(&self, depth: usize) -> Result<Cq, QueueError> {
        if !(1..=CQ_DEPTH_MAX).contains(&depth) {
            return Err(QueueError::CqDepth(depth));
        }
        Ok(Cq::new(depth))
    }
}
