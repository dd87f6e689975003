//! A file in chunks, all of the same length except the last.

use std::ops::Range;

use crate::protocol::CHUNK_LEN;

pub(crate) const fn chunk_count(len: u64) -> u64 {
    len.div_ceil(CHUNK_LEN)
}

/// `None` if a file of `len` bytes has no such chunk.
pub(crate) fn chunk_range(index: u64, len: u64) -> Option<Range<u64>> {
    let start = index.checked_mul(CHUNK_LEN).filter(|start| *start < len)?;
    Some(start..len.min(start.saturating_add(CHUNK_LEN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_file_and_nothing_else() {
        for len in [0, 1, CHUNK_LEN - 1, CHUNK_LEN, CHUNK_LEN + 1, 3 * CHUNK_LEN] {
            let mut at = 0;
            for index in 0..chunk_count(len) {
                let range = chunk_range(index, len).unwrap();
                assert!(range.start == at && range.end > at);
                at = range.end;
            }
            assert_eq!(at, len);
            assert_eq!(chunk_range(chunk_count(len), len), None);
        }
        assert_eq!(chunk_range(u64::MAX, u64::MAX), None);
    }
}
