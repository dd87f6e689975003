//! Octets that wait for the rest of their FPDU.
//!
//! A [`PieceStore`] belongs to a port and owns the memory: blocks of a fixed size, allocated when
//! first needed and recycled for ever after. A [`PieceList`] belongs to one direction of one
//! connection and says which octets of its stream are held.
//!
//! A block backs one *page* of the stream (octets `2048·n` to `2048·(n+1)`), so pieces of one page
//! share a block in whatever order and however small they come: memory is bounded by the span of
//! stream held, never by the number of pieces.
//!
//! **No deadlock.** Octets once accepted are never given up, so two streams could each hold half the
//! store and wait for ever. Two rules prevent that: octets ahead of the in-order point leave a share
//! of the store free ([`Purpose::Ahead`]), and octets of the FPDU at the in-order point are accepted
//! only after [`PieceList::reserve`] got blocks for the whole of that FPDU.

mod wait;

use std::collections::VecDeque;
use std::fmt;

use wait::Wait;

use crate::limits::{FRAME_PAYLOAD_MAX, PIECE_BLOCK_LEN, PIECE_BLOCKS_MAX, RECEIVE_WINDOW_BYTES};
use crate::time::Instant;
use crate::types::StreamOffset;

/// Separate ranges that one [`PieceList`] keeps track of.
pub const PIECE_RANGES_MAX: usize = 1024;
/// Blocks that an FPDU of the largest size can touch.
const FPDU_BLOCKS_MAX: usize = FRAME_PAYLOAD_MAX.div_ceil(PIECE_BLOCK_LEN) + 1;
/// One in this many blocks is kept for FPDUs at the in-order point.
const IN_ORDER_SHARE: usize = 4;

const _: () = assert!(PIECE_BLOCK_LEN.is_power_of_two());
const _: () = assert!(PIECE_BLOCKS_MAX / IN_ORDER_SHARE >= FPDU_BLOCKS_MAX);
const _: () = assert!(PIECE_BLOCKS_MAX < u32::MAX as usize);
// A whole window beyond a gap is never refused.
const _: () = assert!(
    (PIECE_BLOCKS_MAX - PIECE_BLOCKS_MAX / IN_ORDER_SHARE - 1) * PIECE_BLOCK_LEN
        >= RECEIVE_WINDOW_BYTES as usize
);

type Block = [u8; PIECE_BLOCK_LEN];

/// What octets are held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// They belong to the FPDU at the in-order point; blocks for it were reserved before.
    InOrder,
    /// They lie beyond a gap, or beyond an FPDU that is not whole.
    Ahead,
}

/// A port's memory for pieces.
pub struct PieceStore {
    /// Every block ever allocated. An index names a block.
    #[expect(clippy::vec_box, reason = "growing the list must not move megabytes of blocks")]
    blocks: Vec<Box<Block>>,
    free: Vec<u32>,
    blocks_max: usize,
    /// Blocks promised to lists and not yet taken.
    reserved: usize,
    octets: u64,
    octets_peak: u64,
    now: Instant,
}

impl PieceStore {
    /// The fewest blocks a store can have: room for the largest FPDU twice.
    pub const BLOCKS_MIN: usize = 2 * FPDU_BLOCKS_MAX;

    /// A store of at most `blocks_max` blocks of [`PIECE_BLOCK_LEN`] octets; values outside
    /// [`BLOCKS_MIN`](Self::BLOCKS_MIN) to [`PIECE_BLOCKS_MAX`] are brought inside.
    #[must_use]
    pub fn new(blocks_max: usize) -> Self {
        Self {
            blocks: Vec::new(),
            free: Vec::new(),
            blocks_max: blocks_max.clamp(Self::BLOCKS_MIN, PIECE_BLOCKS_MAX),
            reserved: 0,
            octets: 0,
            octets_peak: 0,
            now: Instant::ZERO,
        }
    }

    /// Tells the store what time it is, for its lists to count how long octets wait.
    pub const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Octets held now, over all lists.
    #[must_use]
    pub const fn octets_held(&self) -> u64 {
        self.octets
    }

    /// Most octets held at one time.
    #[must_use]
    pub const fn octets_held_peak(&self) -> u64 {
        self.octets_peak
    }

    /// Blocks in use or promised.
    #[must_use]
    pub fn blocks_used(&self) -> usize {
        self.blocks_max - self.available()
    }

    /// Octets that can certainly still be held ahead of the in-order point when they come in one
    /// contiguous piece; a bound for the window to advertise.
    #[must_use]
    pub fn room_ahead(&self) -> usize {
        // A contiguous piece can begin and end inside a block.
        self.available().saturating_sub(self.in_order_share() + 1) * PIECE_BLOCK_LEN
    }

    fn available(&self) -> usize {
        self.blocks_max + self.free.len() - self.blocks.len() - self.reserved
    }

    fn in_order_share(&self) -> usize {
        (self.blocks_max / IN_ORDER_SHARE).max(FPDU_BLOCKS_MAX)
    }

    /// Takes a block that was counted as available or reserved.
    fn take(&mut self) -> u32 {
        if let Some(block) = self.free.pop() {
            return block;
        }
        let block = u32::try_from(self.blocks.len()).expect("fewer than PIECE_BLOCKS_MAX blocks");
        self.blocks.push(Box::new([0; PIECE_BLOCK_LEN]));
        // Room for every block on the free list now, so that giving back never allocates.
        self.free.reserve(self.blocks.len());
        block
    }

    fn give_back(&mut self, block: u32) {
        self.free.push(block);
    }

    fn block(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    fn block_mut(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block as usize]
    }

    fn count_in(&mut self, octets: usize) {
        self.octets += octets as u64;
        self.octets_peak = self.octets_peak.max(self.octets);
    }
}

impl Default for PieceStore {
    fn default() -> Self {
        Self::new(PIECE_BLOCKS_MAX)
    }
}

impl fmt::Debug for PieceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PieceStore")
            .field("blocks_max", &self.blocks_max)
            .field("blocks_used", &self.blocks_used())
            .field("octets", &self.octets)
            .finish_non_exhaustive()
    }
}

/// A contiguous range of held octets. No two ranges of a list touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first octet.
    pub start: StreamOffset,
    /// The octet after its last.
    pub end: StreamOffset,
    /// Where in it a marker said that an FPDU starts that was not whole yet.
    pub located: Option<StreamOffset>,
}

/// A page of stream with held octets in it.
#[derive(Clone, Copy, Debug)]
struct Page {
    number: u64,
    block: u32,
    /// Octets held in it, at least 1.
    octets: usize,
    /// When the first of its octets came.
    since: Instant,
}

/// What one direction of a connection holds in a [`PieceStore`].
///
/// Always used with the same store. [`clear`](Self::clear) it before dropping it: blocks do not find
/// their way back by themselves.
#[derive(Debug, Default)]
pub struct PieceList {
    /// Sorted by position.
    pieces: VecDeque<Piece>,
    /// Sorted by number.
    pages: VecDeque<Page>,
    octets: u64,
    /// Blocks the store has promised for the FPDU at the in-order point.
    reserved: usize,
    wait: Wait,
}

impl PieceList {
    /// A list that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing is held.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Octets held.
    #[must_use]
    pub const fn octets_held(&self) -> u64 {
        self.octets
    }

    /// Octets held, summed over the time that they were, up to the last change: octets × ns.
    #[must_use]
    pub const fn octet_ns(&self) -> u128 {
        self.wait.octet_ns()
    }

    /// Longest time for which an octet that is held no more was held, in nanoseconds. Octets of one
    /// page count from the first that came.
    #[must_use]
    pub const fn held_ns_max(&self) -> u64 {
        self.wait.ns_max()
    }

    /// The held ranges in stream order.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &Piece> {
        self.pieces.iter()
    }

    /// The range that `at` is in.
    #[must_use]
    pub fn piece_at(&self, at: StreamOffset) -> Option<&Piece> {
        let index = self.pieces.partition_point(|piece| piece.end <= at);
        self.pieces.get(index).filter(|piece| piece.start <= at)
    }

    /// The range that ends exactly at `at`.
    #[must_use]
    pub fn piece_ending_at(&self, at: StreamOffset) -> Option<&Piece> {
        let index = self.pieces.partition_point(|piece| piece.end < at);
        self.pieces.get(index).filter(|piece| piece.end == at)
    }

    /// The longest run of octets from `at` on that is contiguous in memory; empty when `at` is not
    /// held.
    #[must_use]
    pub fn run<'a>(&self, at: StreamOffset, store: &'a PieceStore) -> &'a [u8] {
        let Some(piece) = self.piece_at(at) else { return &[] };
        let (number, from) = split(at);
        let (end_number, end) = split(piece.end);
        let to = if end_number == number { end } else { PIECE_BLOCK_LEN };
        let index = self.page_index(number).expect("held octets have a page");
        &store.block(self.pages[index].block)[from..to]
    }

    /// Makes sure that blocks for every octet of `from..to` are in use or promised, so that holding
    /// them cannot fail. Replaces any earlier reservation of this list. `false` when the store
    /// cannot promise that; then nothing is reserved.
    pub fn reserve(
        &mut self,
        from: StreamOffset,
        to: StreamOffset,
        store: &mut PieceStore,
    ) -> bool {
        self.unreserve(store);
        if from >= to {
            return true;
        }
        let (first, last) = (split(from).0, split(StreamOffset(to.0 - 1)).0);
        let owned = self.pages.partition_point(|page| page.number <= last)
            - self.pages.partition_point(|page| page.number < first);
        let missing = (last - first + 1) - owned as u64;
        match usize::try_from(missing) {
            Ok(blocks) if blocks <= store.available() => {
                self.reserved = blocks;
                store.reserved += blocks;
                true
            }
            _ => false,
        }
    }

    /// Gives up what [`reserve`](Self::reserve) promised and was not used.
    #[inline]
    pub fn unreserve(&mut self, store: &mut PieceStore) {
        if self.reserved > 0 {
            store.reserved -= self.reserved;
            self.reserved = 0;
        }
    }

    /// Copies octets in; returns how many, from the front, found room.
    ///
    /// # Panics
    /// When some of them are held already: TCP passes each octet of a stream once.
    pub fn hold(
        &mut self,
        at: StreamOffset,
        octets: &[u8],
        purpose: Purpose,
        store: &mut PieceStore,
    ) -> usize {
        if octets.is_empty() {
            return 0;
        }
        let end = at + octets.len() as u64;
        let index = self.pieces.partition_point(|piece| piece.end < at);
        let touches_before = self.pieces.get(index).is_some_and(|piece| piece.end == at);
        let after = self.pieces.get(index + usize::from(touches_before));
        assert!(after.is_none_or(|piece| piece.start >= end), "octets held twice");
        let full = self.pieces.len() >= PIECE_RANGES_MAX && purpose == Purpose::Ahead;
        if full && !touches_before && after.is_none_or(|piece| piece.start != end) {
            return 0;
        }
        let kept = self.copy_in(at, octets, purpose, store);
        if kept > 0 {
            self.wait.advance(store.now, self.octets);
            self.octets += kept as u64;
            store.count_in(kept);
            self.join(index, touches_before, at, at + kept as u64);
        }
        kept
    }

    /// Copies octets into blocks until those run out; returns how many.
    fn copy_in(
        &mut self,
        at: StreamOffset,
        octets: &[u8],
        purpose: Purpose,
        store: &mut PieceStore,
    ) -> usize {
        let mut kept = 0;
        while kept < octets.len() {
            let (number, from) = split(at + kept as u64);
            let Some(index) = self.page_for(number, purpose, store) else { break };
            let len = (octets.len() - kept).min(PIECE_BLOCK_LEN - from);
            let page = &mut self.pages[index];
            store.block_mut(page.block)[from..from + len]
                .copy_from_slice(&octets[kept..kept + len]);
            page.octets += len;
            kept += len;
        }
        kept
    }

    /// Enters `start..end` among the pieces; `index` is the first that does not end before it.
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

    /// Gives up the held octets of `from..to`.
    pub fn remove(&mut self, from: StreamOffset, to: StreamOffset, store: &mut PieceStore) {
        let mut index = self.pieces.partition_point(|piece| piece.end <= from);
        self.wait.advance(store.now, self.octets);
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

    /// Notes that a marker located the start of an unfinished FPDU at `start`, which is held.
    pub fn set_located(&mut self, start: StreamOffset) {
        let index = self.pieces.partition_point(|piece| piece.end <= start);
        if let Some(piece) = self.pieces.get_mut(index).filter(|piece| piece.start <= start) {
            piece.located = Some(start);
        }
    }

    /// Forgets such a note: it proved wrong.
    pub fn clear_located(&mut self, start: StreamOffset) {
        let index = self.pieces.partition_point(|piece| piece.end <= start);
        if let Some(piece) = self.pieces.get_mut(index)
            && piece.located == Some(start)
        {
            piece.located = None;
        }
    }

    /// Gives everything back to the store.
    pub fn clear(&mut self, store: &mut PieceStore) {
        self.unreserve(store);
        self.wait.advance(store.now, self.octets);
        for page in self.pages.drain(..) {
            self.wait.end(store.now, page.since);
            store.give_back(page.block);
        }
        store.octets -= self.octets;
        self.octets = 0;
        self.pieces.clear();
    }

    fn page_index(&self, number: u64) -> Option<usize> {
        let index = self.pages.partition_point(|page| page.number < number);
        self.pages.get(index).filter(|page| page.number == number).map(|_| index)
    }

    /// The page `number`, backed by a new block if it has none; `None` when there is no room.
    fn page_for(&mut self, number: u64, purpose: Purpose, store: &mut PieceStore) -> Option<usize> {
        let index = self.pages.partition_point(|page| page.number < number);
        if self.pages.get(index).is_some_and(|page| page.number == number) {
            return Some(index);
        }
        match purpose {
            Purpose::InOrder if self.reserved > 0 => {
                self.reserved -= 1;
                store.reserved -= 1;
            }
            Purpose::InOrder if store.available() > 0 => {}
            Purpose::Ahead if store.available() > store.in_order_share() => {}
            _ => return None,
        }
        let page = Page { number, block: store.take(), octets: 0, since: store.now };
        self.pages.insert(index, page);
        Some(index)
    }

    /// Uncounts the held octets `start..end` and frees the blocks that become empty.
    fn release(&mut self, start: StreamOffset, end: StreamOffset, store: &mut PieceStore) {
        let mut at = start;
        let mut index = self.page_index(split(start).0).expect("held octets have a page");
        while at < end {
            let page_end = StreamOffset((split(at).0 + 1) * PIECE_BLOCK_LEN as u64).min(end);
            let len = page_end.index_from(at);
            let page = &mut self.pages[index];
            page.octets -= len;
            self.wait.end(store.now, page.since);
            if page.octets == 0 {
                store.give_back(page.block);
                self.pages.remove(index);
            } else {
                index += 1;
            }
            self.octets -= len as u64;
            store.octets -= len as u64;
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

/// The page that `at` is in, and where in it.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a remainder below PIECE_BLOCK_LEN")]
const fn split(at: StreamOffset) -> (u64, usize) {
    let len = PIECE_BLOCK_LEN as u64;
    (at.0 / len, (at.0 % len) as usize)
}

#[cfg(test)]
mod tests;
