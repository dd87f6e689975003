//! Published memory that a peer reads in place, as one sender of frames knows it. The peer reads
//! bytes sent by reference when it reaches their frame, long after the transmit call has returned.
//! The application may have overwritten them by then. This is correct for a transport whose
//! receiver acknowledges bytes only after it has read them:
//!
//! - *First transmission.* The application must not change bytes before their request is completed,
//!   that is, before the peer has acknowledged them.
//! - *Retransmission.* The peer may read changed bytes after it has acknowledged them. Its
//!   transport drops them as duplicates, by their sequence numbers.
//! - *Failed stream.* Frames may wait for the peer although their requests failed with the stream.
//!   The peer places their bytes only if the CRC is right, and never reports their message as
//!   complete.
//! - *Withdrawn memory.* The peer has it mapped until it has read the frames that refer to it.

use crate::SharedSlice;
use crate::published::Publisher;
use crate::published::lookup::Lookup;

/// `N` is the peer's name of a region.
#[derive(Debug)]
pub(crate) struct Readable<N> {
    publisher: Publisher,
    generation: u64,
    regions: Lookup<N>,
}

impl<N: Copy> Readable<N> {
    pub(crate) fn new(publisher: &Publisher) -> Self {
        let generation = publisher.generation();
        Self { publisher: publisher.clone(), generation, regions: Lookup::default() }
    }

    /// Otherwise a region may have been withdrawn, and its addresses reused for other memory.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.publisher.generation() == self.generation
    }

    /// Call only while the regions [are current](Self::is_current).
    #[inline]
    pub(crate) fn find(&mut self, fragment: SharedSlice<'_>) -> Option<(N, u64)> {
        self.regions.find(fragment)
    }

    /// Keeps the regions whose ID fulfils `stays`: all that exist in a generation.
    pub(super) fn update(&mut self, generation: u64, stays: impl Fn(u64) -> bool) {
        self.regions.retain(|entry| stays(entry.id));
        self.generation = generation;
    }

    pub(super) fn insert(&mut self, region: &super::Region, name: N) {
        self.regions.insert(region, name);
    }

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
