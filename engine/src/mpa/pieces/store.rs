//! The memory of a port for pieces, and the share of each connection.

use std::fmt;

use crate::limits::{PIECE_BLOCK_LEN, PIECE_BLOCKS_MAX, RECEIVE_WINDOW_BYTES};
use crate::time::Instant;

/// Far pages that a list may have per free block.
const FAR_SHARE: usize = 2;

// One stream alone may hold more than a whole window beyond a gap.
const _: () = assert!(
    (PIECE_BLOCKS_MAX * FAR_SHARE / (FAR_SHARE + 1) - 1) * PIECE_BLOCK_LEN
        >= RECEIVE_WINDOW_BYTES as usize
);

type Block = [u8; PIECE_BLOCK_LEN];

/// A port's memory for pieces.
pub struct PieceStore {
    /// By index. `None`: freed, because the store keeps at most [`PIECE_BLOCKS_MAX`].
    pub(super) blocks: Vec<Option<Box<Block>>>,
    free: Vec<u32>,
    pub(super) allocated: usize,
    far_max: usize,
    pub(super) far: usize,
    /// A far page was refused since the last [`take_refused`](Self::take_refused).
    refused: bool,
    pub(super) bytes: u64,
    bytes_peak: u64,
    pub(super) now: Instant,
}

impl PieceStore {
    /// A store with `far_max` blocks for far pages, limited to [`PIECE_BLOCKS_MAX`]. Each
    /// connection may have [`NEAR_PAGES`](super::NEAR_PAGES) more.
    #[must_use]
    pub fn new(far_max: usize) -> Self {
        Self {
            blocks: Vec::new(),
            free: Vec::new(),
            allocated: 0,
            far_max: far_max.min(PIECE_BLOCKS_MAX),
            far: 0,
            refused: false,
            bytes: 0,
            bytes_peak: 0,
            now: Instant::ZERO,
        }
    }

    /// Records the arrival time of bytes. The lists measure waiting and stalls by it.
    pub(in crate::mpa) const fn note_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Bytes held now, over all lists.
    #[must_use]
    pub const fn bytes_held(&self) -> u64 {
        self.bytes
    }

    /// Peak of the bytes held.
    #[must_use]
    pub const fn bytes_held_peak(&self) -> u64 {
        self.bytes_peak
    }

    /// Blocks in use.
    #[must_use]
    pub const fn blocks_used(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Returns true if a list was refused a far page since the last call.
    pub(crate) const fn take_refused(&mut self) -> bool {
        std::mem::replace(&mut self.refused, false)
    }

    /// Time of the last arrival of bytes.
    #[must_use]
    pub const fn time(&self) -> Instant {
        self.now
    }

    /// Returns true if a list with `own` far pages may take another one.
    pub(super) const fn grants_far(&self, own: usize) -> bool {
        own < FAR_SHARE * (self.far_max - self.far)
    }

    #[cold]
    pub(super) fn refuse(&mut self, number: u64, own: usize) {
        let (far, far_max) = (self.far, self.far_max);
        tracing::debug!(target: "urnic::mpa", page = number, own, far, far_max, "far page refused");
        self.refused = true;
    }

    pub(super) fn take(&mut self) -> u32 {
        let block = self.free.pop().unwrap_or_else(|| {
            let block = u32::try_from(self.blocks.len()).expect("fewer blocks than 2^32");
            self.blocks.push(None);
            // Reserves free-list capacity for every block, so that `give_back` never allocates.
            self.free.reserve(self.blocks.len());
            block
        });
        let place = &mut self.blocks[block as usize];
        if place.is_none() {
            *place = Some(Box::new([0; PIECE_BLOCK_LEN]));
            self.allocated += 1;
        }
        block
    }

    pub(super) fn give_back(&mut self, block: u32) {
        // Memory for a peak of many connections is not kept for ever.
        if self.allocated > PIECE_BLOCKS_MAX {
            self.blocks[block as usize] = None;
            self.allocated -= 1;
        }
        self.free.push(block);
    }

    pub(super) fn block(&self, block: u32) -> &Block {
        self.blocks[block as usize].as_deref().expect("a page has its block")
    }

    pub(super) fn block_mut(&mut self, block: u32) -> &mut Block {
        self.blocks[block as usize].as_deref_mut().expect("a page has its block")
    }

    pub(super) fn count_in(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
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
            .field("far_max", &self.far_max)
            .field("far", &self.far)
            .field("blocks_used", &self.blocks_used())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
