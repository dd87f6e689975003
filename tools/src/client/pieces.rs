//! Order of the chunks of a file: pieces in flight, and their rate.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use anyhow::{bail, ensure};
use urnic::monotonic_now;
use urnic_engine::time::Instant;

use crate::transfer::chunk_range;

#[derive(Debug)]
pub(super) struct Pieces {
    len: u64,
    waiting: VecDeque<u64>,
    /// The current chunk, and its part that was not cut yet.
    current: Option<(u64, Range<u64>)>,
    /// Chunks that arrived wrong, and how often.
    wrong: HashMap<u64, u32>,
    rate: Option<u64>,
    due: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) chunk: u64,
    pub(super) range: Range<u64>,
    pub(super) is_last: bool,
}

impl Pieces {
    /// Cuts chunks into pieces, for at most `rate` bits per second.
    pub(super) fn new(len: u64, chunks: VecDeque<u64>, rate: Option<u64>) -> Self {
        let rate = rate.map(|bits| (bits / 8).max(1));
        let (waiting, wrong) = (chunks, HashMap::new());
        let mut pieces = Self { len, waiting, current: None, wrong, rate, due: monotonic_now() };
        // Otherwise a file that is shorter than a piece would never wait.
        pieces.due = pieces.due + pieces.time_of(pieces.piece_len().min(len));
        pieces
    }

    /// Shorter at a low rate, which would otherwise come in bursts.
    fn piece_len(&self) -> u64 {
        let in_a_burst = |rate: u64| rate / (1_000_000_000 / BURST_NS);
        self.rate.map_or(PIECE_LEN, in_a_burst).clamp(1, PIECE_LEN)
    }

    fn time_of(&self, octets: u64) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let ns = u128::from(octets) * 1_000_000_000 / u128::from(rate);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    pub(super) fn add(&mut self, chunk: u64) {
        self.waiting.push_back(chunk);
    }

    pub(super) const fn is_within_chunk(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.current.is_none()
    }

    pub(super) fn pause(&self) -> Duration {
        if self.rate.is_none() { Duration::ZERO } else { self.due - monotonic_now() }
    }

    pub(super) fn next(&mut self) -> Option<Piece> {
        if self.current.is_none() {
            let chunk = self.waiting.pop_front()?;
            self.current = chunk_range(chunk, self.len).map(|range| (chunk, range));
        }
        let piece_len = self.piece_len();
        let (chunk, rest) = self.current.as_mut()?;
        let range = rest.start..rest.end.min(rest.start + piece_len);
        let piece = Piece { chunk: *chunk, is_last: range.end == rest.end, range };
        rest.start = piece.range.end;
        if piece.is_last {
            self.current = None;
        }
        if self.rate.is_some() {
            // An end that was late catches up, but only by a moment.
            let time = self.time_of(piece.range.end - piece.range.start);
            let missed =
                (monotonic_now() - self.due).saturating_sub(Duration::from_nanos(BURST_NS));
            self.due = self.due + missed + time;
        }
        Some(piece)
    }

    /// Fails if the chunk was wrong too often: else [add](Self::add) it again.
    pub(super) fn again(&mut self, chunk: u64) -> anyhow::Result<()> {
        ensure!(
            chunk_range(chunk, self.len).is_some(),
            "the peer named a chunk that does not exist"
        );
        let times = self.wrong.entry(chunk).or_insert(0);
        *times += 1;
        if *times > WRONG_MAX {
            bail!("chunk {chunk} of the file (4 MiB each) arrives wrong again and again");
        }
        Ok(())
    }
}

const PIECE_LEN: u64 = 256 << 10;
/// With a rate: duration of a burst, and longest time by which a late end may catch up.
const BURST_NS: u64 = 20_000_000;
pub(super) const PIECES_MAX: usize = 32;
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
            assert_eq!(pieces.is_within_chunk(), !piece.is_last);
            if piece.is_last {
                ended.push(piece.chunk);
            }
        }
        assert!(!pieces.is_within_chunk());
        assert_eq!(at, [CHUNK_LEN, 2 * CHUNK_LEN, len]);
        assert_eq!(ended, [0, 2, 1]);
        assert!(pieces.is_empty() && pieces.pause().is_zero());
    }

    #[test]
    fn a_rate_holds_from_the_first_octet_on() {
        for (rate, piece_len) in
            [(1, 1), (8, 1), (800_000, 2_000), (8_000_000_000, PIECE_LEN), (u64::MAX, PIECE_LEN)]
        {
            let began = monotonic_now();
            let mut pieces = Pieces::new(2 * CHUNK_LEN, VecDeque::from([0, 1]), Some(rate));
            let first = pieces.pause();
            let octets = pieces.next().unwrap().range.end;
            assert_eq!(octets, piece_len, "{rate} bits per second");
            let time = Duration::from_secs_f64(octets as f64 / (rate / 8).max(1) as f64);
            // Plus the time for which this thread was not scheduled.
            let slack = Duration::from_millis(15) + (monotonic_now() - began);
            assert!(first <= time && first + slack >= time, "{rate}: {first:?} of {time:?}");
            let second = pieces.pause();
            let slack = Duration::from_millis(15) + (monotonic_now() - began);
            assert!(second <= 2 * time && second + slack >= time, "{rate}: {second:?}");
        }
        let short = Pieces::new(5, VecDeque::from([0]), Some(8));
        assert!(short.pause() <= Duration::from_secs(1), "a byte");
        let none = Pieces::new(0, VecDeque::new(), Some(1));
        assert!(none.pause().is_zero(), "nothing takes no time");
    }

    #[test]
    fn a_chunk_that_is_always_wrong_is_given_up() {
        let mut pieces = Pieces::new(10, VecDeque::new(), Some(8));
        pieces.add(0);
        for _ in 0..WRONG_MAX {
            let octets = std::iter::from_fn(|| pieces.next()).count();
            assert_eq!(octets, 10, "one by one at such a rate");
            pieces.again(0).unwrap();
            pieces.add(0);
        }
        assert!(pieces.pause() > Duration::from_secs(25), "a byte per second");
        assert!(pieces.again(0).is_err());
        assert!(pieces.again(1).is_err(), "there is no such chunk");
    }
}
