//! Ring of AF_XDP: one side puts entries in, the other takes them out, word by word and by atomics:
//! a kernel that violates the protocol can cause wrong numbers only.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys::mapping::Mapping;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RingOffsets {
    pub(crate) producer: usize,
    pub(crate) consumer: usize,
    pub(crate) flags: usize,
    pub(crate) entries: usize,
}

/// This side is the producer of the fill and transmit rings, and the consumer of the other two.
#[derive(Debug)]
pub(crate) struct Ring {
    mapping: Mapping,
    offsets: RingOffsets,
    entries: u32,
    entry_len: usize,
    /// This side's count, ahead of the shared one until it is published.
    own: u32,
    other: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) at: u64,
    pub(crate) len: u32,
}

impl Ring {
    /// Panics if the number of entries is no power of two.
    pub(crate) fn new(
        mapping: Mapping,
        offsets: RingOffsets,
        entries: u32,
        entry_len: usize,
    ) -> Self {
        assert!(entries.is_power_of_two(), "rings have a power of two of entries");
        Self { mapping, offsets, entries, entry_len, own: 0, other: 0 }
    }

    #[cfg(test)]
    pub(crate) fn set_word(&self, at: usize, value: u32) {
        self.mapping.word(at).store(value, Release);
    }

    /// Returns the number of entries that can be put in, as producer.
    pub(crate) fn room(&mut self) -> u32 {
        // The entries in the ring are those between the two counts.
        let full = |own: u32, other: u32| own.wrapping_sub(other) >= self.entries;
        if full(self.own, self.other) {
            // Acquire: the other side has read an entry before it is overwritten.
            self.other = self.mapping.word(self.offsets.consumer).load(Acquire);
        }
        self.entries.saturating_sub(self.own.wrapping_sub(self.other))
    }

    /// Returns the number of entries that can be taken out, as consumer.
    pub(crate) fn waiting(&mut self) -> u32 {
        if self.own == self.other {
            // Acquire: entries are read after the count that covers them.
            self.other = self.mapping.word(self.offsets.producer).load(Acquire);
        }
        // More entries than the ring has cannot be true.
        self.other.wrapping_sub(self.own).min(self.entries)
    }

    /// As [`waiting`](Self::waiting), without storing the result.
    pub(crate) fn unclaimed(&self) -> u32 {
        let producer = self.mapping.word(self.offsets.producer).load(Acquire);
        producer.wrapping_sub(self.own).min(self.entries)
    }

    fn next(&mut self) -> usize {
        let index = usize::try_from(self.own & (self.entries - 1)).expect("32 bits fit");
        self.own = self.own.wrapping_add(1);
        self.offsets.entries + index * self.entry_len
    }

    fn write_address(&self, at: usize, address: u64) {
        let [a, b, c, d, e, f, g, h] = address.to_ne_bytes();
        self.mapping.word(at).store(u32::from_ne_bytes([a, b, c, d]), Relaxed);
        self.mapping.word(at + 4).store(u32::from_ne_bytes([e, f, g, h]), Relaxed);
    }

    fn read_address(&self, at: usize) -> u64 {
        let [a, b, c, d] = self.mapping.word(at).load(Relaxed).to_ne_bytes();
        let [e, f, g, h] = self.mapping.word(at + 4).load(Relaxed).to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }

    pub(crate) fn put_address(&mut self, address: u64) {
        let at = self.next();
        self.write_address(at, address);
    }

    pub(crate) fn put(&mut self, descriptor: Descriptor) {
        let at = self.next();
        self.write_address(at, descriptor.at);
        self.mapping.word(at + 8).store(descriptor.len, Relaxed);
        self.mapping.word(at + 12).store(0, Relaxed);
    }

    pub(crate) fn take_address(&mut self) -> u64 {
        let at = self.next();
        self.read_address(at)
    }

    pub(crate) fn take(&mut self) -> Descriptor {
        let at = self.next();
        Descriptor { at: self.read_address(at), len: self.mapping.word(at + 8).load(Relaxed) }
    }

    /// Publishes the entries put in to the consumer.
    pub(crate) fn publish_put(&self) {
        // Release: entries are written before the count that covers them.
        self.mapping.word(self.offsets.producer).store(self.own, Release);
    }

    /// Returns the entries taken out to the producer.
    pub(crate) fn publish_taken(&self) {
        // Release: entries have been read before the producer may overwrite them.
        self.mapping.word(self.offsets.consumer).store(self.own, Release);
    }

    pub(crate) fn has_unconsumed(&self) -> bool {
        self.unconsumed() != 0
    }

    /// Returns the number of entries put in that the consumer has not taken.
    pub(crate) fn unconsumed(&self) -> u32 {
        self.own.wrapping_sub(self.mapping.word(self.offsets.consumer).load(Acquire))
    }

    /// Returns true if the consumer sleeps until a system call wakes it.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.mapping.word(self.offsets.flags).load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: RingOffsets =
        RingOffsets { producer: 0, consumer: 64, flags: 128, entries: 192 };

    fn ring(entry_len: usize) -> Ring {
        Ring::new(Mapping::fresh(4096).unwrap(), OFFSETS, 4, entry_len)
    }

    fn set(ring: &Ring, at: usize, value: u32) {
        ring.mapping.word(at).store(value, Release);
    }

    #[test]
    fn a_producer_fills_and_goes_on_when_entries_are_taken() {
        let mut ring = ring(16);
        for i in 0..4 {
            assert_eq!(ring.room(), 4 - i);
            ring.put(Descriptor { at: (1 << 40) + u64::from(i), len: i });
        }
        assert_eq!(ring.room(), 0);
        assert_eq!(ring.mapping.word(0).load(Acquire), 0, "not published yet");
        ring.publish_put();
        assert_eq!(ring.mapping.word(0).load(Acquire), 4);
        assert_eq!(ring.unconsumed(), 4);
        set(&ring, 64, 3);
        assert_eq!((ring.room(), ring.unconsumed()), (3, 1));
        ring.put(Descriptor { at: 77, len: 7 });
        assert_eq!(ring.mapping.word(192).load(Acquire), 77, "the first entry again");
        assert_eq!(ring.mapping.word(200).load(Acquire), 7);
    }

    #[test]
    fn a_consumer_takes_in_order_across_the_wrap_of_counts() {
        let mut ring = ring(8);
        set(&ring, 0, u32::MAX);
        (ring.own, ring.other) = (u32::MAX, u32::MAX);
        assert_eq!(ring.waiting(), 0, "nothing new");
        set(&ring, 0, 1);
        ring.write_address(192 + 3 * 8, 30);
        ring.write_address(192, 40);
        assert_eq!(ring.waiting(), 2);
        assert_eq!(ring.take_address(), 30);
        assert_eq!(ring.take_address(), 40);
        assert_eq!(ring.waiting(), 0);
        ring.publish_taken();
        assert_eq!(ring.mapping.word(64).load(Acquire), 1);
    }

    #[test]
    fn impossible_ring_counts_do_no_harm() {
        let mut ring = ring(8);
        set(&ring, 0, 1_000_000);
        assert_eq!(ring.waiting(), 4);
        (ring.own, ring.other) = (4, 0);
        set(&ring, 64, 1_000_000);
        assert_eq!(ring.room(), 0);
    }

    #[test]
    fn ring_flag_requests_wakeups() {
        let ring = ring(8);
        assert!(!ring.needs_wakeup());
        set(&ring, 128, 1);
        assert!(ring.needs_wakeup());
    }
}
