//! Bytes that wait for the rest of their FPDU. A [`PieceStore`] belongs to a port and owns the
//! memory, in blocks. A [`PieceList`] belongs to one direction of one connection. A block backs one
//! *page* of the stream (bytes `2048·n` to `2048·(n+1)`), from its first byte that arrives. So the
//! span of held stream bounds the memory; the number of pieces does not matter.
//!
//! Bytes that TCP has acknowledged in order cannot be given up, so no stream may depend on memory
//! that another stream holds:
//!
//! - *Near* pages are the [`NEAR_PAGES`] pages that the FPDU at the in-order point can touch. They
//!   are always granted, so bytes in order are never refused.
//! - *Far* pages come from the blocks that all connections share. A list may take another far page
//!   while it has fewer than twice as many as are free: one stream alone gets two thirds of the
//!   blocks, and each further stream two thirds of the rest. The peer retransmits bytes that were
//!   refused.
//! - TCP has at most reported far bytes in SACK blocks, which a receiver may take back (RFC 2018
//!   §8). If another stream was refused, a list whose stream has made no progress for
//!   [`PIECES_IDLE_NS`](crate::limits::PIECES_IDLE_NS) gives up its far pages
//!   ([`PieceList::give_up_far`]).

mod store;
mod wait;

use std::collections::VecDeque;
use std::ops::Range;

pub use store::PieceStore;
use wait::Wait;

use crate::limits::{FRAME_PAYLOAD_MAX, PIECE_BLOCK_LEN};
use crate::time::Instant;
use crate::types::StreamOffset;

/// Limit of the separate ranges in one [`PieceList`].
pub const PIECE_RANGES_MAX: usize = 1024;
/// Limit of the pages that one FPDU can touch.
pub const NEAR_PAGES: usize = FRAME_PAYLOAD_MAX.div_ceil(PIECE_BLOCK_LEN) + 1;

const _: () = assert!(PIECE_BLOCK_LEN.is_power_of_two());

/// A contiguous range of held bytes. No two ranges of a list touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub start: StreamOffset,
    /// Position after the last byte.
    pub end: StreamOffset,
    /// Start of an incomplete FPDU inside the range, known from a marker.
    pub located: Option<StreamOffset>,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    number: u64,
    block: u32,
    bytes: usize,
    since: Instant,
}

/// Bytes that one direction of a connection holds in a [`PieceStore`], always the same one. Call
/// [`clear`](Self::clear) before dropping the list: dropping it does not return the blocks.
#[derive(Debug)]
#[repr(C)]
pub struct PieceList {
    pieces_max: usize,
    pages: VecDeque<Page>,
    bytes: u64,
    in_order: StreamOffset,
    /// Time at which `in_order` last moved or the list took its first far page.
    progress_at: Instant,
    far: usize,
    wait: Wait,
    pieces: VecDeque<Piece>,
}

impl Default for PieceList {
    fn default() -> Self {
        Self::new()
    }
}

impl PieceList {
    /// A list that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::with_pieces_max(PIECE_RANGES_MAX)
    }

    /// Limited to [`PIECE_RANGES_MAX`].
    #[must_use]
    pub(crate) fn with_pieces_max(pieces_max: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            pieces_max: pieces_max.min(PIECE_RANGES_MAX),
            pages: VecDeque::new(),
            bytes: 0,
            in_order: StreamOffset::ZERO,
            progress_at: Instant::ZERO,
            far: 0,
            wait: Wait::default(),
        }
    }

    /// Returns true if no byte is held.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes held.
    #[must_use]
    pub const fn bytes_held(&self) -> u64 {
        self.bytes
    }

    /// Sum of the holding times of all bytes, up to the last change: bytes × ns.
    #[must_use]
    pub const fn octet_ns(&self) -> u128 {
        self.wait.octet_ns()
    }

    /// Longest holding time of a released byte, in nanoseconds. A page counts from its first byte.
    #[must_use]
    pub const fn held_ns_max(&self) -> u64 {
        self.wait.ns_max()
    }

    /// The held ranges in stream order.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &Piece> {
        self.pieces.iter()
    }

    #[must_use]
    pub(crate) fn piece_at(&self, at: StreamOffset) -> Option<&Piece> {
        let index = self.pieces.partition_point(|piece| piece.end <= at);
        self.pieces.get(index).filter(|piece| piece.start <= at)
    }

    #[must_use]
    pub(crate) fn piece_ending_at(&self, at: StreamOffset) -> Option<&Piece> {
        let index = self.pieces.partition_point(|piece| piece.end < at);
        self.pieces.get(index).filter(|piece| piece.end == at)
    }

    /// The longest run of held bytes from `at` on that is contiguous in memory.
    #[must_use]
    pub fn run<'a>(&self, at: StreamOffset, store: &'a PieceStore) -> &'a [u8] {
        let Some(piece) = self.piece_at(at) else { return &[] };
        let (number, from) = split(at);
        let (end_number, end) = split(piece.end);
        let to = if end_number == number { end } else { PIECE_BLOCK_LEN };
        let index = self.page_index(number).expect("held bytes have a page");
        &store.block(self.pages[index].block)[from..to]
    }

    /// Moves the in-order point to `at`: pages that were far may become near.
    #[inline]
    pub fn advance(&mut self, at: StreamOffset, store: &mut PieceStore) {
        if at == self.in_order {
            return;
        }
        self.in_order = at;
        self.progress_at = store.now;
        if self.far > 0 {
            let first_far = self.first_far();
            let far = self.pages.len() - self.pages.partition_point(|page| page.number < first_far);
            store.far -= self.far - far;
            self.far = far;
        }
    }

    /// Time since which the stream has made no progress while the list held far pages.
    #[must_use]
    pub(crate) fn stalled_since(&self) -> Option<Instant> {
        (self.far > 0).then_some(self.progress_at)
    }

    /// Gives up all bytes in far pages. TCP must treat the ranges given to `forget` as never
    /// received.
    pub fn give_up_far(
        &mut self,
        store: &mut PieceStore,
        mut forget: impl FnMut(Range<StreamOffset>),
    ) {
        let from = StreamOffset(self.first_far() * PIECE_BLOCK_LEN as u64);
        let first = self.pieces.partition_point(|piece| piece.end <= from);
        for piece in self.pieces.iter().skip(first) {
            forget(piece.start.max(from)..piece.end);
        }
        self.remove(from, StreamOffset(u64::MAX), store);
    }

    const fn first_far(&self) -> u64 {
        split(self.in_order).0 + NEAR_PAGES as u64
    }

    /// Copies bytes into blocks. Returns how many, from the front, found room: in near pages all
    /// that continue the in-order stream. Panics if some of the bytes are held already.
    // spec: TCP-A.5.2-1, SEC-R-19
    pub fn hold(&mut self, at: StreamOffset, octets: &[u8], store: &mut PieceStore) -> usize {
        if octets.is_empty() {
            return 0;
        }
        let end = at + octets.len() as u64;
        let index = self.pieces.partition_point(|piece| piece.end < at);
        let touches_before = self.pieces.get(index).is_some_and(|piece| piece.end == at);
        let after = self.pieces.get(index + usize::from(touches_before));
        assert!(after.is_none_or(|piece| piece.start >= end), "bytes held twice");
        // Only a range that touches the piece before it, or starts at the in-order point, joins a
        // full list, as in TCP's own table. To touch the next piece is not enough: if there is room
        // for only a part of the bytes, that part does not touch it.
        let full = self.pieces.len() >= self.pieces_max;
        if full && !touches_before && at != self.in_order {
            return 0;
        }
        let kept = self.copy_in(at, octets, store);
        if kept > 0 {
            self.wait.advance(store.now, self.bytes);
            self.bytes += kept as u64;
            store.count_in(kept);
            self.join(index, touches_before, at, at + kept as u64);
        }
        kept
    }

    /// Copies bytes into blocks until the store refuses a page. Returns the number of bytes copied.
    fn copy_in(&mut self, at: StreamOffset, octets: &[u8], store: &mut PieceStore) -> usize {
        let mut kept = 0;
        while kept < octets.len() {
            let (number, from) = split(at + kept as u64);
            let Some(index) = self.page_for(number, store) else { break };
            let len = (octets.len() - kept).min(PIECE_BLOCK_LEN - from);
            let page = &mut self.pages[index];
            store.block_mut(page.block)[from..from + len]
                .copy_from_slice(&octets[kept..kept + len]);
            page.bytes += len;
            kept += len;
        }
        kept
    }

    /// `index`: the first piece that does not end before `start`; `touches_before`: it ends there.
    fn join(&mut self, index: usize, touches_before: bool, start: StreamOffset, end: StreamOffset) {
        let after_index = index + usize::from(touches_before);
        let after = self.pieces.get(after_index).copied().filter(|piece| piece.start == end);
        match (touches_before, after) {
            (false, None) => self.pieces.insert(index, Piece { start, end, located: None }),
            (false, Some(_)) => self.pieces[index].start = start,
            (true, None) => self.pieces[index].end = end,
            (true, Some(after)) => {
                let before = &mut self.pieces[index];
                before.end = after.end;
                before.located = before.located.or(after.located);
                self.pieces.remove(after_index);
            }
        }
    }

    /// Releases the held bytes of `from..to`.
    pub fn remove(&mut self, from: StreamOffset, to: StreamOffset, store: &mut PieceStore) {
        let mut index = self.pieces.partition_point(|piece| piece.end <= from);
        self.wait.advance(store.now, self.bytes);
        while let Some(piece) = self.pieces.get(index).copied().filter(|piece| piece.start < to) {
            let (start, end) = (piece.start.max(from), piece.end.min(to));
            self.release(start, end, store);
            let before = Piece { end: start, ..piece }.without_stale_location();
            let after = Piece { start: end, ..piece }.without_stale_location();
            match (before.start < before.end, after.start < after.end) {
                (false, false) => {
                    self.pieces.remove(index);
                }
                (true, false) => {
                    self.pieces[index] = before;
                    index += 1;
                }
                (false, true) => self.pieces[index] = after,
                (true, true) => {
                    self.pieces[index] = before;
                    self.pieces.insert(index + 1, after);
                    return;
                }
            }
        }
    }

    /// Records that a marker located the start of an incomplete FPDU at `start`, a held byte.
    pub(crate) fn set_located(&mut self, start: StreamOffset) {
        let index = self.pieces.partition_point(|piece| piece.end <= start);
        if let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.start <= start) {
            piece.located = Some(start);
        }
    }

    pub(crate) fn clear_located(&mut self, start: StreamOffset) {
        let index = self.pieces.partition_point(|piece| piece.end <= start);
        if let Some(piece) = self.pieces.get_mut(index)
            && piece.located == Some(start)
        {
            piece.located = None;
        }
    }

    /// Returns all blocks to the store.
    pub fn clear(&mut self, store: &mut PieceStore) {
        store.far -= self.far;
        self.far = 0;
        self.wait.advance(store.now, self.bytes);
        for page in self.pages.drain(..) {
            self.wait.end(store.now, page.since);
            store.give_back(page.block);
        }
        store.bytes -= self.bytes;
        self.bytes = 0;
        self.pieces.clear();
    }

    fn page_index(&self, number: u64) -> Option<usize> {
        let index = self.pages.partition_point(|page| page.number < number);
        self.pages.get(index).filter(|page| page.number == number).map(|_| index)
    }

    /// Index of page `number`, which gets a new block if it has none and the store grants one.
    fn page_for(&mut self, number: u64, store: &mut PieceStore) -> Option<usize> {
        let index = self.pages.partition_point(|page| page.number < number);
        if self.pages.get(index).is_some_and(|page| page.number == number) {
            return Some(index);
        }
        if number >= self.first_far() {
            if !store.grants_far(self.far) {
                store.refuse(number, self.far);
                return None;
            }
            if self.far == 0 {
                self.progress_at = store.now;
            }
            self.far += 1;
            store.far += 1;
        }
        let page = Page { number, block: store.take(), bytes: 0, since: store.now };
        self.pages.insert(index, page);
        Some(index)
    }

    /// Subtracts `start..end` from their pages, and frees the blocks that become empty.
    fn release(&mut self, start: StreamOffset, end: StreamOffset, store: &mut PieceStore) {
        let mut at = start;
        let first_far = self.first_far();
        let mut index = self.page_index(split(start).0).expect("held bytes have a page");
        while at < end {
            let page_end = StreamOffset((split(at).0 + 1) * PIECE_BLOCK_LEN as u64).min(end);
            let len = page_end.index_from(at);
            let page = &mut self.pages[index];
            page.bytes -= len;
            self.wait.end(store.now, page.since);
            if page.bytes == 0 {
                if page.number >= first_far {
                    self.far -= 1;
                    store.far -= 1;
                }
                store.give_back(page.block);
                self.pages.remove(index);
            } else {
                index += 1;
            }
            self.bytes -= len as u64;
            store.bytes -= len as u64;
            at = page_end;
        }
    }
}

impl Piece {
    fn without_stale_location(self) -> Self {
        let located = self.located.filter(|at| (self.start..self.end).contains(at));
        Self { located, ..self }
    }
}

/// The page of `at`, and the offset of `at` in it.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a remainder below PIECE_BLOCK_LEN")]
const fn split(at: StreamOffset) -> (u64, usize) {
    let len = PIECE_BLOCK_LEN as u64;
    (at.0 / len, (at.0 % len) as usize)
}

#[cfg(test)]
mod tests;
