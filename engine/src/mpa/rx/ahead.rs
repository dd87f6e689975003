//! FPDUs placed ahead of the delivery point.

use std::collections::VecDeque;

use crate::limits::FPDUS_AHEAD_MAX;
use crate::types::StreamOffset;

#[derive(Clone, Copy, Debug)]
struct FpduAhead<T> {
    start: StreamOffset,
    end: StreamOffset,
    token: T,
}

/// Tokens of the FPDUs that wait for delivery. The FPDUs never overlap.
#[derive(Debug)]
pub(super) struct Ahead<T> {
    /// Sorted by start, hence by end.
    placed: VecDeque<FpduAhead<T>>,
    max: usize,
}

impl<T: Copy> Ahead<T> {
    /// A list of at most `max` FPDUs, limited to [`FPDUS_AHEAD_MAX`].
    pub(super) fn new(max: usize) -> Self {
        Self { placed: VecDeque::new(), max: max.min(FPDUS_AHEAD_MAX) }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.placed.iter().map(|fpdu| fpdu.end.bytes_since(fpdu.start)).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.placed.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.placed.len() >= self.max
    }

    pub(super) fn clear(&mut self) {
        self.placed = VecDeque::new();
    }

    #[inline]
    pub(super) fn ends_at(&self, at: StreamOffset) -> bool {
        // Common case: the segment follows the last FPDU.
        if self.placed.back().is_none_or(|last| last.end <= at) {
            return self.placed.back().is_some_and(|last| last.end == at);
        }
        let index = self.placed.partition_point(|fpdu| fpdu.end < at);
        self.placed.get(index).is_some_and(|fpdu| fpdu.end == at)
    }

    pub(super) fn conflicts_with(&self, start: StreamOffset, end: StreamOffset) -> bool {
        let index = self.placed.partition_point(|fpdu| fpdu.end <= start);
        self.placed.get(index).is_some_and(|fpdu| fpdu.start < end)
    }

    pub(super) fn insert(&mut self, start: StreamOffset, end: StreamOffset, token: T) {
        let fpdu = FpduAhead { start, end, token };
        if self.placed.back().is_none_or(|last| last.end <= start) {
            self.placed.push_back(fpdu);
            return;
        }
        let index = self.placed.partition_point(|fpdu| fpdu.start < start);
        self.placed.insert(index, fpdu);
    }

    #[inline]
    pub(super) fn pop_at(&mut self, at: StreamOffset) -> Option<(StreamOffset, T)> {
        let fpdu = *self.placed.front().filter(|first| first.start == at)?;
        self.placed.pop_front();
        Some((fpdu.end, fpdu.token))
    }
}
