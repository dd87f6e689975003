//! The order in which the chunks of a file cross: pieces under way, and how fast they may go.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use anyhow::{bail, ensure};
use urnic::driver::monotonic_now;
use urnic::time::Instant;

use crate::transfer::chunk_range;

/// Chunks that are to cross, cut into pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    len: u64,
    waiting: VecDeque<u64>,
    /// The chunk that is being cut, and what of it has not been.
    current: Option<(u64, Range<u64>)>,
    /// Chunks that were wrong when they had crossed, and how often.
    wrong: HashMap<u64, u32>,
    started: Instant,
    /// Octets per second at most, and octets so far.
    rate: Option<u64>,
    taken: u64,
}

/// A piece, and whether it is the last of its chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) chunk: u64,
    pub(super) range: Range<u64>,
    pub(super) is_last: bool,
}

impl Pieces {
    /// The given chunks of a file of `len` octets, at `rate` bits per second at most.
    pub(super) fn new(len: u64, chunks: VecDeque<u64>, rate: Option<u64>) -> Self {
        Self {
            len,
            waiting: chunks,
            current: None,
            wrong: HashMap::new(),
            started: monotonic_now(),
            rate: rate.map(|bits| (bits / 8).max(1)),
            taken: 0,
        }
    }

    /// Whether none is left.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    /// How long to wait before the next piece.
    pub(super) fn pause(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let due_ns = u128::from(self.taken) * 1_000_000_000 / u128::from(rate);
        let due = Duration::from_nanos(u64::try_from(due_ns).unwrap_or(u64::MAX));
        due.saturating_sub(monotonic_now() - self.started)
    }

    /// The next piece.
    pub(super) fn next(&mut self) -> Option<Piece> {
        if self.current.is_none() {
            let chunk = self.waiting.pop_front()?;
            self.current = chunk_range(chunk, self.len).map(|range| (chunk, range));
        }
        let (chunk, rest) = self.current.as_mut()?;
        let range = rest.start..rest.end.min(rest.start + PIECE_LEN);
        let piece = Piece { chunk: *chunk, is_last: range.end == rest.end, range };
        rest.start = piece.range.end;
        self.taken += piece.range.end - piece.range.start;
        if piece.is_last {
            self.current = None;
        }
        Some(piece)
    }

    /// A chunk has crossed and is wrong: it has to cross again.
    ///
    /// # Errors
    /// When it was wrong too often.
    pub(super) fn again(&mut self, chunk: u64) -> anyhow::Result<()> {
        ensure!(chunk_range(chunk, self.len).is_some(), "the peer speaks of a chunk there is not");
        let times = self.wrong.entry(chunk).or_insert(0);
        *times += 1;
        if *times > WRONG_MAX {
            bail!("octets {chunk} x 4 MiB of the file arrive wrong again and again");
        }
        self.waiting.push_back(chunk);
        Ok(())
    }
}

/// Octets of a piece.
const PIECE_LEN: u64 = 256 << 10;
/// Pieces under way at a time.
pub(super) const PIECES_MAX: usize = 32;
/// How often a chunk may arrive wrong.
const WRONG_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::CHUNK_LEN;

    #[test]
    fn pieces_cover_each_chunk_once() {
        let len = 2 * CHUNK_LEN + 5;
        let mut pieces = Pieces::new(len, VecDeque::from([0, 2, 1]), None);
        let mut at = [0, CHUNK_LEN, 2 * CHUNK_LEN];
        let mut ended = Vec::new();
        while let Some(piece) = pieces.next() {
            let chunk = usize::try_from(piece.chunk).unwrap();
            assert_eq!(piece.range.start, at[chunk]);
            at[chunk] = piece.range.end;
            if piece.is_last {
                ended.push(piece.chunk);
            }
        }
        assert_eq!(at, [CHUNK_LEN, 2 * CHUNK_LEN, len]);
        assert_eq!(ended, [0, 2, 1]);
        assert!(pieces.is_empty() && pieces.pause().is_zero());
    }

    #[test]
    fn a_chunk_that_is_always_wrong_is_given_up() {
        let mut pieces = Pieces::new(10, VecDeque::from([0]), Some(8));
        for _ in 0..WRONG_MAX {
            assert!(pieces.next().unwrap().is_last);
            pieces.again(0).unwrap();
        }
        assert!(pieces.pause() > Duration::from_secs(5), "a byte per second");
        assert!(pieces.again(0).is_err());
        assert!(pieces.again(1).is_err(), "there is no such chunk");
    }
}
