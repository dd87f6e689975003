//! Published memory that one virtqueue pair sends by reference, and the frames that refer to it.

use super::arena::QUEUE_SIZE;
use crate::published::Publisher;
use crate::published::readable::Readable;

/// Published memory, as one virtqueue pair sends it.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Regions, by the guest addresses of their first bytes.
    pub(super) readable: Readable<u64>,
    /// For each transmit buffer: the sequence number of the frame by reference in it, from 1, while
    /// the backend has that frame. Otherwise 0. A backend may return frames in any order.
    referring: [u64; QUEUE_SIZE as usize],
    /// Number of frames by reference sent so far.
    pub(super) sent: u64,
}

impl Sharing {
    /// Creates an empty set.
    pub(super) fn new(publisher: &Publisher) -> Self {
        let readable = Readable::new(publisher);
        Self { readable, referring: [0; QUEUE_SIZE as usize], sent: 0 }
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

    /// Returns true if the backend still has one of the first `sent` frames by reference.
    pub(super) fn is_out(&self, sent: u64) -> bool {
        self.referring.iter().any(|number| (1..=sent).contains(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_in_flight_until_each_is_returned_in_any_order() {
        let mut sharing = Sharing::new(&Publisher::new());
        assert!(!sharing.is_out(u64::MAX));
        for number in [5, 0, 127] {
            sharing.give(number);
        }
        let sent = sharing.sent;
        sharing.give(7);
        for (number, is_out) in [(127, true), (5, true), (7, true), (0, false)] {
            sharing.take_back(number);
            assert_eq!(sharing.is_out(sent), is_out, "{number}");
        }
        // The same buffer again, with memory that the backend reads now.
        sharing.give(0);
        assert!(!sharing.is_out(sent) && sharing.is_out(sharing.sent));
    }
}
