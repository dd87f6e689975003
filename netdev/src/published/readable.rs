//! Published memory that a peer reads in place, as one sender of frames knows it.
//!
//! The peer reads bytes sent by reference when it reaches their frame, long after the transmit call
//! has returned. The application may have overwritten them by then. This is correct for a transport
//! whose receiver acknowledges bytes only after it has read them:
//!
//! - *First transmission.* The application must not change bytes before their request is completed,
//!   and the request is completed only when the peer has acknowledged the bytes. So the peer reads
//!   them unchanged.
//! - *Retransmission.* The peer may reach a retransmitted frame after it has acknowledged the bytes,
//!   and may then read changed bytes. Its transport drops them as duplicates, by their sequence
//!   numbers.
//! - *Failed stream.* Frames of a failed stream may wait for the peer. Their requests failed with
//!   the stream. The peer places their bytes only if the CRC is right, and never reports their
//!   message as complete.
//! - *Withdrawn memory.* The peer has it mapped until it has read the frames that refer to it.

use crate::SharedSlice;
use crate::published::Publisher;
use crate::published::lookup::Lookup;

/// Regions that frames can refer to. `N` is the peer's name of a region.
#[derive(Debug)]
pub(crate) struct Readable<N> {
    publisher: Publisher,
    /// Generation of the publisher that `regions` reflects.
    generation: u64,
    regions: Lookup<N>,
}

impl<N: Copy> Readable<N> {
    /// Creates an empty set.
    pub(crate) fn new(publisher: &Publisher) -> Self {
        let generation = publisher.generation();
        Self { publisher: publisher.clone(), generation, regions: Lookup::default() }
    }

    /// Returns true if the regions are up to date. Otherwise a region may have been withdrawn, and
    /// its addresses reused for other memory.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.publisher.generation() == self.generation
    }

    /// Returns the region of a fragment and the offset in it, if the peer can read it. Call only
    /// while the regions [are current](Self::is_current).
    #[inline]
    pub(crate) fn find(&mut self, fragment: SharedSlice<'_>) -> Option<(N, u64)> {
        self.regions.find(fragment)
    }

    /// Keeps the regions whose ID fulfils `stays`: all that exist in a generation.
    pub(super) fn update(&mut self, generation: u64, stays: impl Fn(u64) -> bool) {
        self.regions.retain(|entry| stays(entry.id));
        self.generation = generation;
    }

    /// Adds a region that the peer can read.
    pub(super) fn insert(&mut self, region: &super::Region, name: N) {
        self.regions.insert(region, name);
    }

    /// Removes the region with an ID.
    pub(super) fn remove(&mut self, id: u64) {
        self.regions.retain(|entry| entry.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_current_until_memory_is_published_or_withdrawn() {
        let publisher = Publisher::new();
        let mut readable = Readable::<u64>::new(&publisher);
        assert!(readable.is_current());
        let memory = publisher.allocate(1).unwrap();
        assert!(!readable.is_current());
        readable.update(publisher.generation(), |_| true);
        assert!(readable.is_current());
        drop(memory);
        assert!(!readable.is_current());
    }
}
