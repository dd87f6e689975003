//! 32-bit sequence numbers, and their only conversion to and from stream offsets. All comparisons
//! are modulo 2³² (RFC 9293 §3.4): right while the numbers are less than 2³¹ apart, which every
//! window guarantees.

use std::fmt;

use crate::types::StreamOffset;

/// A TCP sequence number (RFC 9293 §3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Returns the number `bytes` later, modulo 2³².
    #[must_use]
    pub const fn plus(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Returns the distance from `other` to `self` in bytes; negative if `self` is before `other`.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    // spec: TCP-9293-22
    #[must_use]
    pub(crate) const fn is_after(self, other: Self) -> bool {
        self.distance_from(other) > 0
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The numbering of one direction of a connection: stream offset 0 is the byte after the SYN, which
/// has no offset. A FIN takes the offset after the last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqSpace {
    first: SeqNum,
}

impl SeqSpace {
    /// A numbering that starts with the initial sequence number `isn` (that of the SYN).
    #[must_use]
    pub const fn new(isn: SeqNum) -> Self {
        Self { first: isn.plus(1) }
    }

    /// The number of the SYN.
    #[must_use]
    pub const fn isn(self) -> SeqNum {
        SeqNum(self.first.0.wrapping_sub(1))
    }

    /// The sequence number of the byte at `offset`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "sequence numbers are offsets mod 2^32")]
    pub const fn seq_at(self, offset: StreamOffset) -> SeqNum {
        self.first.plus(offset.0 as u32)
    }

    /// The offset less than 2³¹ away from `near`, unless before the first byte.
    // spec: TCP-A.5.2-3
    #[must_use]
    pub fn offset_near(self, seq: SeqNum, near: StreamOffset) -> Option<StreamOffset> {
        let distance = seq.distance_from(self.seq_at(near));
        near.0.checked_add_signed(i64::from(distance)).map(StreamOffset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: TCP-9293-22
    #[test]
    fn comparison_is_modulo_two_to_the_32() {
        assert!(SeqNum(5).is_after(SeqNum(0xffff_fff0)));
        assert!(!SeqNum(0xffff_fff0).is_after(SeqNum(5)));
        assert!(!SeqNum(7).is_after(SeqNum(7)));
        assert_eq!(SeqNum(3).distance_from(SeqNum(0xffff_ffff)), 4);
    }

    // spec: TCP-A.5.2-3, TCP-9293-22
    #[test]
    fn offsets_unwrap_across_every_wrap() {
        let space = SeqSpace::new(SeqNum(0xffff_f000));
        assert_eq!(space.isn(), SeqNum(0xffff_f000));
        for near in [0_u64, 0xfff, 0x1000, 1 << 31, (1 << 32) - 1, 1 << 32, 5 << 40] {
            let near = StreamOffset(near);
            for ahead in [0_u64, 1, 1000, (1 << 31) - 1] {
                let there = near + ahead;
                assert_eq!(space.offset_near(space.seq_at(there), near), Some(there));
                assert_eq!(space.offset_near(space.seq_at(near), there), Some(near));
            }
        }
    }

    #[test]
    fn numbers_before_the_stream_have_no_offset() {
        let space = SeqSpace::new(SeqNum(100));
        assert_eq!(space.offset_near(SeqNum(100), StreamOffset(0)), None);
        assert_eq!(space.offset_near(SeqNum(101), StreamOffset(0)), Some(StreamOffset(0)));
    }
}
