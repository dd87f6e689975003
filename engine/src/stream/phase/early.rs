//! Bytes beyond a gap before full operation, when nothing tells yet where FPDUs begin. They are
//! copied, and TCP counts them as not received: copies may be dropped, because the peer keeps the
//! bytes. When the gap closes they are taken as if they had arrived again, which saves a
//! retransmission timeout.

use crate::limits::{EARLY_BYTES_MAX, EARLY_PIECES_MAX};
use crate::mem::TableLease;
use crate::mpa::pieces::PieceStore;
use crate::stream::Stream;
use crate::time::Instant;
use crate::types::StreamOffset;

#[derive(Debug, Default)]
pub(in crate::stream) struct Early {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    at: StreamOffset,
    octets: Box<[u8]>,
}

impl Piece {
    fn end(&self) -> StreamOffset {
        self.at + self.octets.len() as u64
    }
}

impl Early {
    /// Copies those of the bytes at `at` that are near enough to `next`, the first that is missing.
    fn keep(&mut self, next: StreamOffset, at: StreamOffset, bytes: &[u8]) {
        let limit = next + EARLY_BYTES_MAX as u64;
        let room = usize::try_from(limit.0.saturating_sub(at.0)).unwrap_or(usize::MAX);
        let octets = &bytes[..bytes.len().min(room)];
        let end = at + octets.len() as u64;
        let is_known = self.pieces.iter().any(|piece| piece.at <= at && piece.end() >= end);
        let kept: usize = self.pieces.iter().map(|piece| piece.octets.len()).sum();
        let is_full =
            self.pieces.len() == EARLY_PIECES_MAX || kept + octets.len() > EARLY_BYTES_MAX;
        if octets.is_empty() || is_known || is_full {
            return;
        }
        self.pieces.push(Piece { at, octets: octets.into() });
    }

    /// Takes out bytes that begin at `at`, and drops the copies of all before.
    fn take(&mut self, at: StreamOffset) -> Option<Vec<u8>> {
        self.pieces.retain(|piece| piece.end() > at);
        let index = self.pieces.iter().position(|piece| piece.at <= at)?;
        let piece = self.pieces.swap_remove(index);
        Some(piece.octets[at.index_from(piece.at)..].to_vec())
    }
}

impl Stream {
    /// Returns up to where the bytes were used, which is beyond their end if they close a gap.
    // spec: MPA-7.1.5-2
    #[cold]
    pub(in crate::stream) fn handle_bytes_before_full(
        &mut self,
        now: Instant,
        offset: StreamOffset,
        bytes: &[u8],
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> StreamOffset {
        if offset != self.startup_rx {
            self.early.keep(self.startup_rx, offset, bytes);
            return offset;
        }
        let mut end = offset + bytes.len() as u64;
        let mut taken = self.handle_startup_bytes(offset, bytes);
        while taken >= end
            && let Some(octets) = self.early.take(taken)
        {
            end = taken + octets.len() as u64;
            // They may be the first of full operation.
            taken = self.handle_bytes(now, taken, &octets, store, lease);
        }
        if self.phase.full().is_some() {
            self.early = Early::default();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_overlap_stay_within_their_bounds() {
        let (mut early, next) = (Early::default(), StreamOffset(100));
        let bytes = vec![7; 2 * EARLY_BYTES_MAX];
        for before in 1..1000 {
            early.keep(next, next + (1000 - before), &bytes);
            let kept: usize = early.pieces.iter().map(|piece| piece.octets.len()).sum();
            assert!(kept <= EARLY_BYTES_MAX && early.pieces.len() <= EARLY_PIECES_MAX);
            assert!(early.pieces.iter().all(|piece| piece.end() <= next + EARLY_BYTES_MAX as u64));
        }
        assert_eq!(early.pieces.len(), 1);
        for at in 0..2 * EARLY_PIECES_MAX as u64 {
            early.keep(next, next + 2 * at + 1, &bytes[..1]);
        }
        assert_eq!(early.pieces.len(), EARLY_PIECES_MAX);
    }
}
