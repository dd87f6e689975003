//! Published memory that the backend reads where it is, as one pair of queues knows it.
//!
//! What a descriptor refers to is read after the call that made it, perhaps when the program has written over it, or
//! has withdrawn it. Why nothing wrong comes of that is said in `shm/outbox.rs`, whose ring does the same; here
//! memory that was withdrawn is taken from the backend when the frames are back that refer to it, in whatever
//! order it gives them back.

use crate::Fragment;
use crate::published::Publisher;
use crate::published::lookup::Lookup;
use crate::vhost_user::frontend::arena::QUEUE_SIZE;

#[derive(Debug)]
pub(super) struct Readable {
    publisher: Publisher,
    /// The publisher's when `regions` was made.
    generation: u64,
    /// By the addresses that descriptors call their first bytes.
    pub(super) regions: Lookup<u64>,
    /// For each buffer that the backend has and that refers to memory, its number among all such; zero for others.
    referring: [u64; QUEUE_SIZE as usize],
    /// Frames sent that referred to memory.
    sent: u64,
}

impl Readable {
    /// Of nothing as yet.
    pub(super) fn new(publisher: &Publisher) -> Self {
        Self {
            publisher: publisher.clone(),
            generation: publisher.generation(),
            regions: Lookup::default(),
            referring: [0; QUEUE_SIZE as usize],
            sent: 0,
        }
    }

    /// Whether the regions are those that there are. If not, one of them may be no more, and its addresses those of
    /// other memory.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.publisher.generation() == self.generation
    }

    /// The regions are those of a generation.
    pub(super) const fn set_current(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// What descriptors call the first byte of a fragment, if the backend reads it where it is. Only while the
    /// regions [are current](Self::is_current).
    #[inline]
    pub(super) fn find(&mut self, fragment: Fragment<'_>) -> Option<u64> {
        self.regions.find(fragment).map(|(start, into)| start + into)
    }

    /// The backend is given a buffer that refers to memory.
    #[inline]
    pub(super) fn give(&mut self, number: u16) {
        self.sent += 1;
        self.referring[usize::from(number)] = self.sent;
    }

    /// A buffer is back.
    #[inline]
    pub(super) fn take_back(&mut self, number: u16) {
        self.referring[usize::from(number)] = 0;
    }

    /// Frames sent that referred to memory.
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether one of the first `sent` such frames is not back.
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
        // The same buffer again, with what is read now.
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
