//! Bytes of the stream that must stay as they were first sent, kept in wire format until TCP has
//! acknowledged them. Most FPDUs are gathered from the application's memory for each transmission,
//! but not:
//! - RDMA Read Responses: applications change memory that peers read (RFC 5040 §5.5 rule 8), and
//!   may withdraw it at any time (RFC 5042 §6.3.3).
//! - FPDUs that were sent or acknowledged only in part: the rest must have the bytes that the CRC
//!   was computed over.
//! - Requests that were flushed: their memory belongs to the application again.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::Arc;

use crate::limits::{FRAME_PAYLOAD_MAX, KEPT_BLOCK_LEN};
use crate::mem::pool::{Block, BlockPool};
use crate::mem::{SharedSlice, copy_and_digest};
use crate::stream::tx::frame::FrameBuilder;
use crate::types::StreamOffset;
use crate::wire::crc32c::Crc32c;

/// Upper bound of the memory runs that hold `wire_len` kept bytes.
pub(crate) const fn fragments(wire_len: usize) -> usize {
    wire_len.div_ceil(KEPT_BLOCK_LEN) + 1
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: StreamOffset,
    len: usize,
    block: u64,
    at: usize,
}

impl Piece {
    fn end(&self) -> StreamOffset {
        self.start + self.len as u64
    }
}

#[derive(Debug)]
struct Filled {
    octets: Block,
    live: usize,
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Kept {
    /// In stream order, without overlap.
    pieces: VecDeque<Piece>,
    /// In the order of filling; `None` if its bytes were acknowledged before an older block's.
    blocks: VecDeque<Option<Filled>>,
    pool: Arc<BlockPool>,
    base: u64,
    blocks_held: usize,
    used: usize,
    /// Position of the next byte, and the index at which a new piece for it is inserted.
    next: StreamOffset,
    cursor: usize,
}

const BLOCKS_PER_FPDU: usize = FRAME_PAYLOAD_MAX.div_ceil(KEPT_BLOCK_LEN) + 1;

impl Kept {
    /// End of the fields that show if something is kept.
    pub(super) const HOT_TO: usize = offset_of!(Self, pool);

    pub(crate) fn new(pool: Arc<BlockPool>) -> Self {
        Self {
            pool,
            pieces: VecDeque::new(),
            blocks: VecDeque::new(),
            base: 0,
            blocks_held: 0,
            used: KEPT_BLOCK_LEN,
            next: StreamOffset::ZERO,
            cursor: 0,
        }
    }

    /// Returns how many bytes of Responses may be kept now: the rest of the last block, and this
    /// stream's share of the pool. While no block is held, one FPDU always fits: the stream
    /// progresses.
    pub(crate) fn room(&self) -> usize {
        let share = self.pool.share(self.blocks_held);
        let blocks = if self.blocks_held == 0 { share.max(BLOCKS_PER_FPDU) } else { share };
        KEPT_BLOCK_LEN - self.used + blocks.saturating_mul(KEPT_BLOCK_LEN)
    }

    pub(crate) fn begin(&mut self, start: StreamOffset) {
        self.next = start;
        self.cursor = match self.pieces.back() {
            Some(last) if last.start >= start => self.index_after(start),
            _ => self.pieces.len(),
        };
    }

    pub(crate) fn append(&mut self, mut octets: &[u8]) {
        while !octets.is_empty() {
            let room = self.open_block();
            let len = octets.len().min(room.len());
            room[..len].copy_from_slice(&octets[..len]);
            self.advance(len);
            octets = &octets[len..];
        }
    }

    /// Contiguous room, unless a block would end in it; see [`appended`](Self::appended).
    pub(crate) fn room_for(&mut self, len: usize) -> Option<&mut [u8]> {
        self.open_block().get_mut(..len)
    }

    pub(crate) fn appended(&mut self, len: usize) {
        self.advance(len);
    }

    /// Keeps bytes that may change meanwhile, and adds the kept bytes to a digest.
    pub(crate) fn append_shared(&mut self, from: SharedSlice<'_>, crc: Option<&mut Crc32c>) {
        let (mut at, mut crc) = (0, crc);
        while at < from.len() {
            let room = self.open_block();
            let len = (from.len() - at).min(room.len());
            let (part, room) = (from.part(at, len), &mut room[..len]);
            match &mut crc {
                Some(crc) => **crc = Crc32c::from_state(copy_and_digest(crc.state(), part, room)),
                None => part.copy_out(0, room),
            }
            self.advance(len);
            at += len;
        }
    }

    fn open_block(&mut self) -> &mut [u8] {
        if self.used == KEPT_BLOCK_LEN {
            self.blocks.push_back(Some(Filled { octets: self.pool.take(), live: 0 }));
            self.blocks_held += 1;
            self.used = 0;
        }
        let last = self.blocks.back_mut().and_then(Option::as_mut);
        &mut last.expect("the last block is being filled").octets[self.used..]
    }

    fn advance(&mut self, len: usize) {
        let block = self.base + self.blocks.len() as u64 - 1;
        let (start, at) = (self.next, self.used);
        let last = self.blocks.back_mut().and_then(Option::as_mut);
        last.expect("the last block is being filled").live += len;
        self.used += len;
        self.next = start + len as u64;
        let before = self.cursor.checked_sub(1).map(|index| &mut self.pieces[index]);
        match before {
            Some(before)
                if before.end() == start
                    && before.block == block
                    && before.at + before.len == at =>
            {
                before.len += len;
            }
            _ => {
                self.pieces.insert(self.cursor, Piece { start, len, block, at });
                self.cursor += 1;
            }
        }
    }

    /// Number of the first piece that ends after `at`.
    fn index_after(&self, at: StreamOffset) -> usize {
        self.pieces.partition_point(|piece| piece.end() <= at)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn holds(&self, at: StreamOffset) -> bool {
        self.pieces.get(self.index_after(at)).is_some_and(|piece| piece.start <= at)
    }

    pub(crate) fn release(&mut self, snd_una: StreamOffset) {
        while let Some(front) = self.pieces.front_mut()
            && front.start < snd_una
        {
            let len = snd_una.min(front.end()).index_from(front.start);
            let block = front.block;
            front.start = front.start + len as u64;
            front.at += len;
            front.len -= len;
            if front.len == 0 {
                self.pieces.pop_front();
            }
            self.let_go(block, len);
        }
        while let Some(None) = self.blocks.front() {
            self.blocks.pop_front();
            self.base += 1;
        }
    }

    fn let_go(&mut self, block: u64, len: usize) {
        let index = usize::try_from(block - self.base).expect("a queue fits the address space");
        let is_last = index + 1 == self.blocks.len();
        let place = &mut self.blocks[index];
        let filled = place.as_mut().expect("a piece is in a block");
        filled.live -= len;
        if filled.live == 0 {
            if let Some(filled) = place.take() {
                self.pool.give_back(filled.octets);
            }
            self.blocks_held -= 1;
            if is_last {
                self.used = KEPT_BLOCK_LEN;
            }
        }
    }

    /// Adds kept bytes to `frame`; calls `each` with the other parts, in stream order.
    #[inline]
    pub(crate) fn gather<'a, 'f>(
        &'a self,
        range: std::ops::Range<StreamOffset>,
        frame: &mut FrameBuilder<'a, 'f>,
        mut each: impl FnMut(std::ops::Range<StreamOffset>, &mut FrameBuilder<'a, 'f>),
    ) {
        let mut at = range.start;
        for piece in self.pieces.range(self.index_after(at)..) {
            if piece.start >= range.end {
                break;
            }
            if at < piece.start {
                each(at..piece.start, frame);
                at = piece.start;
            }
            let end = piece.end().min(range.end);
            let from = piece.at + at.index_from(piece.start);
            let octets = &self.octets(piece.block)[from..from + end.index_from(at)];
            frame.push_memory(SharedSlice::from_bytes(octets));
            at = end;
        }
        if at < range.end {
            each(at..range.end, frame);
        }
    }

    fn octets(&self, block: u64) -> &[u8] {
        let index = usize::try_from(block - self.base).expect("a queue fits the address space");
        &self.blocks[index].as_ref().expect("a piece is in a block").octets
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for filled in self.blocks.drain(..).flatten() {
            self.pool.give_back(filled.octets);
        }
    }
}

#[cfg(test)]
mod tests;
