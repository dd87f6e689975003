//! Memory that changes while the peer reads it.
//!
//! Every word of it holds the same counter, which grows at every step; all bytes are below 0x80. A
//! Read must bring counts between its post and its completion. Invalidated memory is overwritten
//! with bytes that no counter has.

use std::ops::RangeInclusive;

use crate::memory::{Memory, Part};

const WORD_LEN: usize = 8;
pub(crate) const REVOKED: u8 = 0xee;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Live {
    count: u64,
    is_revoked: bool,
}

impl Live {
    pub(crate) const fn counter(self) -> u64 {
        self.count
    }

    pub(crate) fn tick(&mut self, memory: &Memory) {
        let len = memory.part(Part::Live).len();
        if self.is_revoked || len == 0 {
            return;
        }
        self.count += 1;
        memory.part(Part::Live).copy_in(0, &word(self.count).repeat(len.div_ceil(WORD_LEN))[..len]);
    }

    /// Overwrites the memory then: none of the new bytes may leave this end.
    pub(crate) fn revoke(&mut self, memory: &Memory) {
        let live = memory.part(Part::Live);
        let start = memory.layout.part(Part::Live).start;
        if std::mem::replace(&mut self.is_revoked, true) {
            return;
        }
        live.invalidate();
        memory.region.write(start, &vec![REVOKED; live.len()]).expect("a part of the region");
    }
}

/// Encodes in digits of seven bits.
fn word(count: u64) -> [u8; WORD_LEN] {
    std::array::from_fn(|digit| {
        u8::try_from(count >> (7 * (WORD_LEN - 1 - digit)) & 0x7f).expect("seven bits")
    })
}

/// Checks for counts between the Read's post and its completion.
pub(crate) fn check(found: &[u8], counts: RangeInclusive<u64>) -> Result<(), String> {
    for (index, word) in found.chunks_exact(WORD_LEN).enumerate() {
        let count = word.iter().fold(0, |count, octet| count << 7 | u64::from(*octet));
        let is_word = word.iter().all(|octet| *octet < 0x80);
        if !is_word || !counts.contains(&count) {
            return Err(format!("word {index} is {word:02x?}, not a count of {counts:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_are_written() {
        for count in [0, 1, 127, 128, 16_383, 16_384, 1 << 40] {
            assert!(check(&word(count).repeat(3), count..=count).is_ok());
            assert!(check(&word(count), count + 1..=count + 2).is_err());
            assert!(word(count).iter().all(|octet| *octet < 0x80));
        }
        assert!(check(&[REVOKED; 8], 0..=u64::MAX).is_err());
    }
}
