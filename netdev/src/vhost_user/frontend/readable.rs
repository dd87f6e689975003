//! Published memory that the backend reads in place, as one virtqueue pair knows it.
//!
//! The backend reads the bytes after the transmit call, perhaps after the application has
//! overwritten or withdrawn them. The head of `shm/outbox.rs`, whose ring does the same, explains
//! why this is safe. One difference: a backend may return frames in any order, so this file records
//! which of them were returned.

use crate::Fragment;
use crate::published::Publisher;
use crate::published::lookup::Lookup;
use crate::vhost_user::frontend::arena::QUEUE_SIZE;

#[derive(Debug)]
pub(super) struct Readable {
    publisher: Publisher,
    /// Generation of the publisher that `regions` reflects.
    generation: u64,
    /// Regions, by the guest addresses of their first bytes.
    pub(super) regions: Lookup<u64>,
    /// For each transmit buffer: the sequence number of the frame by reference in it, from 1, while
    /// the backend has that frame. Otherwise 0.
    referring: [u64; QUEUE_SIZE as usize],
    /// Number of frames by reference sent so far.
    sent: u64,
}

impl Readable {
    /// Creates an empty set.
    pub(super) fn new(publisher: &Publisher) -> Self {
        Self {
            publisher: publisher.clone(),
            generation: publisher.generation(),
            regions: Lookup::default(),
            referring: [0; QUEUE_SIZE as usize],
            sent: 0,
        }
    }

    /// Returns true if the regions are up to date. Otherwise a region may have been withdrawn, and
    /// its addresses reused for other memory.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.publisher.generation() == self.generation
    }

    /// Marks the regions as those of a generation.
    pub(super) const fn set_current(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Returns the guest address of a fragment, if the backend reads it in place. Call only while
    /// the regions [are current](Self::is_current).
    #[inline]
    pub(super) fn find(&mut self, fragment: Fragment<'_>) -> Option<u64> {
        self.regions.find(fragment).map(|(start, into)| start + into)
    }

    /// Records that the backend gets a frame by reference in a buffer.
    #[inline]
    pub(super) fn give(&mut self, number: u16) {
        self.sent += 1;
        self.referring[usize::from(number)] = self.sent;
    }

    /// Records that a buffer was returned.
    #[inline]
    pub(super) fn take_back(&mut self, number: u16) {
        self.referring[usize::from(number)] = 0;
    }

    /// Returns the number of frames by reference sent so far.
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns true if the backend still has one of the first `sent` frames by reference.
    pub(super) fn is_out(&self, sent: u64) -> bool {
        self.referring.iter().any(|number| (1..=sent).contains(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_out_until_each_is_back_in_any_order() {
        let mut readable = Readable::new(&Publisher::new());
        assert!(!readable.is_out(u64::MAX));
        for number in [5, 0, 127] {
            readable.give(number);
        }
        let sent = readable.sent();
        readable.give(7);
        for (number, is_out) in [(127, true), (5, true), (7, true), (0, false)] {
            readable.take_back(number);
            assert_eq!(readable.is_out(sent), is_out, "{number}");
        }
        // The same buffer again, with memory that the backend reads now.
        readable.give(0);
        assert!(!readable.is_out(sent) && readable.is_out(readable.sent()));
    }

    #[test]
    fn regions_are_current_until_memory_is_published_or_withdrawn() {
        let publisher = Publisher::new();
        let mut readable = Readable::new(&publisher);
        assert!(readable.is_current());
        let memory = publisher.allocate(1).unwrap();
        assert!(!readable.is_current());
        readable.set_current(publisher.generation());
        assert!(readable.is_current());
        drop(memory);
        assert!(!readable.is_current());
    }
}
