//! Anti-replay window (RFC 4303 §3.4.3, Appendix A) as a ring of bits (RFC 6479).
//!
//! Numbers are 64 bits long. A packet carries the lower 32; the window infers the upper ones.

use crate::limits::{WINDOW_MAX, WINDOW_MIN};

const WORD_BITS: u64 = u64::BITS as u64;

/// Sequence numbers that were received.
#[derive(Clone, Debug)]
pub struct Window {
    /// Ring of words. It has at least one word more than the window, so that a word is cleared
    /// before the window reaches it.
    words: Box<[u64]>,
    /// Largest number received; 0 before the first packet.
    top: u64,
    /// Number of packets that the window covers.
    size: u64,
}

impl Window {
    /// Creates a window of at least `size` packets, within [`WINDOW_MIN`] and [`WINDOW_MAX`].
    // spec: SEC-I-3
    #[must_use]
    pub fn new(size: usize) -> Self {
        let size = size.clamp(WINDOW_MIN, WINDOW_MAX) as u64;
        let count = (size.div_ceil(WORD_BITS) + 1).next_power_of_two();
        Self { words: (0..count).map(|_| 0).collect(), top: 0, size }
    }

    /// Largest number received; 0 before the first packet.
    #[must_use]
    pub const fn top(&self) -> u64 {
        self.top
    }

    /// Number of packets that the window covers.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Infers a 64-bit number from its lower half (RFC 4303 Appendix A2.2). Returns `None` if it
    /// would be below the first or above the last number.
    // spec: SEC-I-13
    #[must_use]
    pub fn infer(&self, low: u32) -> Option<u64> {
        let [high, top_low] = [self.top >> 32, self.top & u64::from(u32::MAX)];
        let low = u64::from(low);
        let high = if top_low >= self.size - 1 {
            // The window is within one cycle: a smaller number is of the next cycle.
            if low + self.size > top_low { high } else { high + 1 }
        } else {
            // The window begins in the cycle before.
            let bottom = (1 << 32) + top_low + 1 - self.size;
            if low >= bottom { high.checked_sub(1)? } else { high }
        };
        (high <= u64::from(u32::MAX)).then_some(high << 32 | low)
    }

    /// Returns true if a packet with this number may be new: it is right of the window, or inside
    /// and not marked.
    #[must_use]
    pub const fn is_new(&self, number: u64) -> bool {
        if number > self.top {
            return true;
        }
        number != 0 && self.top - number < self.size && !self.bit(number)
    }

    /// Marks a number as received, and moves the window if the number is right of it. Call this
    /// after the packet was authenticated, and only for numbers that [`is_new`](Self::is_new).
    pub fn mark(&mut self, number: u64) {
        if number > self.top {
            let count = self.words.len() as u64;
            let (from, to) = (self.top / WORD_BITS, number / WORD_BITS);
            for word in 1..=(to - from).min(count) {
                let at = self.at((from + word) * WORD_BITS);
                self.words[at] = 0;
            }
            self.top = number;
        }
        let at = self.at(number);
        self.words[at] |= 1 << (number % WORD_BITS);
    }

    const fn bit(&self, number: u64) -> bool {
        self.words[self.at(number)] >> (number % WORD_BITS) & 1 == 1
    }

    const fn at(&self, number: u64) -> usize {
        (number / WORD_BITS) as usize & (self.words.len() - 1)
    }
}

#[cfg(test)]
mod tests;
