//! The receive half: acceptability of segments, the bytes still missing, and the receive window.
//! Owns RCV.NXT, the window's right edge and the table of out-of-order ranges; holds no payload.
//! Bytes reported missing were never committed: data that was processed once is never overwritten
//! (RFC 5044 appendix A.3). [`ReceiveHalf::passive`] follows one direction of a capture.

use std::ops::Range;

use arrayvec::ArrayVec;

use super::assembler::Assembler;
use super::header::SackBlock;
use super::seq::{SeqNum, SeqSpace};
use crate::types::StreamOffset;

/// The part of an arrived segment's payload that lies in the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedPayload {
    /// Number of bytes at the start of the segment's payload that lie before `range`.
    pub skip: usize,
    /// The remaining bytes; never empty. Ask [`ReceiveHalf::next_missing`] about it.
    pub range: Range<StreamOffset>,
}

/// Another out-of-order range would exceed `limits::OUT_OF_ORDER_RANGES_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many out-of-order ranges")]
pub struct Full;

/// Position of a segment relative to the window (RFC 9293 §3.4, the acceptability test).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acceptability {
    Old,
    Beyond,
    Inside { payload: Option<ArrivedPayload>, starts_at_next: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    /// Wholly before RCV.NXT.
    Old,
    /// Starts beyond the window.
    Beyond,
    /// Acceptable: distances of its text's start and end from RCV.NXT.
    Inside { start: i64, text_end: i64 },
}

impl Stand {
    /// The acceptability test of RFC 9293 §3.4, where `next` is RCV.NXT and `window` RCV.WND. A
    /// segment without text exactly at the right edge is acceptable, too: a peer that used up the
    /// window and lost some of it sends acknowledgments from there.
    #[inline]
    pub(crate) fn of(
        seq: SeqNum,
        payload_len: usize,
        control: u8,
        next: SeqNum,
        window: u64,
    ) -> Self {
        let start = i64::from(seq.distance_from(next));
        let Ok(len) = i64::try_from(payload_len) else { return Self::Beyond };
        let text_end = start.saturating_add(len);
        let end = text_end.saturating_add(i64::from(control));
        if end < 0 || (end == 0 && end != start) {
            Self::Old
        } else if u64::try_from(start).unwrap_or(0) > window {
            Self::Beyond
        } else {
            Self::Inside { start, text_end }
        }
    }
}

/// The receive half of a connection.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct ReceiveHalf {
    assembler: Assembler,
    /// Position of the peer's FIN, once one was received.
    fin_at: Option<StreamOffset>,
    rcv_nxt: StreamOffset,
    /// Right edge: one more than the highest offset ever advertised. It never moves back.
    edge: StreamOffset,
    /// Right edge as the peer can compute it from the last window field.
    advertised: StreamOffset,
    committed_bytes: u64,
    space: SeqSpace,
    window_bytes: u32,
    mss: u32,
    shift: u8,
    fin_taken: bool,
    /// A duplicate to report once (RFC 2883).
    duplicate: Option<Range<StreamOffset>>,
    /// Starts of the out-of-order ranges reported most recently, newest first (RFC 2018 §4).
    recent: ArrayVec<StreamOffset, 4>,
}

/// Largest window: RFC 7323 §2.3 keeps it below 2³⁰.
const WINDOW_MAX: u32 = 1 << 30;
/// Largest shift (RFC 7323 §2.3).
pub(crate) const SHIFT_MAX: u8 = 14;

impl ReceiveHalf {
    /// A receiver for the stream after the SYN numbered `irs`; the window opens in steps of `mss`.
    #[must_use]
    pub(crate) fn new(irs: SeqNum, window_bytes: u32, mss: u32) -> Self {
        let window_bytes = window_bytes.min(WINDOW_MAX);
        Self {
            space: SeqSpace::new(irs),
            rcv_nxt: StreamOffset::ZERO,
            edge: StreamOffset::ZERO + u64::from(window_bytes),
            advertised: StreamOffset::ZERO,
            window_bytes,
            shift: 0,
            mss,
            assembler: Assembler::default(),
            fin_at: None,
            fin_taken: false,
            recent: ArrayVec::new(),
            duplicate: None,
            committed_bytes: 0,
        }
    }

    /// A receiver that follows the direction whose SYN is numbered `irs`, and accepts any segment.
    #[must_use]
    pub fn passive(irs: SeqNum) -> Self {
        Self::new(irs, WINDOW_MAX, 1)
    }

    /// Sets the most out-of-order ranges that the table holds.
    #[must_use]
    pub fn with_ranges_max(self, ranges_max: usize) -> Self {
        Self { assembler: Assembler::new(ranges_max), ..self }
    }

    /// For a passive receiver: the stream range of `len` bytes numbered from `seq`; `None` if all
    /// lie before the cumulative point. To continue after bytes that a capture lacks, commit the
    /// gap.
    #[must_use]
    pub fn handle_data(&self, seq: SeqNum, len: usize) -> Option<ArrivedPayload> {
        let near = self.highest_end();
        let distance = i64::from(seq.distance_from(self.space.seq_at(near)));
        let len = i64::try_from(len).ok()?;
        // Positions relative to `near`; the cumulative point is at or before it.
        let next = -i64::try_from(near.bytes_since(self.rcv_nxt)).ok()?;
        let (start, end) = (distance.max(next), distance.checked_add(len)?);
        if end <= start {
            return None;
        }
        let skip = usize::try_from(start - distance).ok()?;
        let start = near.0.checked_add_signed(start)?;
        let end = near.0.checked_add_signed(end)?;
        Some(ArrivedPayload { skip, range: StreamOffset(start)..StreamOffset(end) })
    }

    /// The cumulative point: every byte before it was committed.
    #[must_use]
    pub const fn rcv_nxt(&self) -> StreamOffset {
        self.rcv_nxt
    }

    /// Returns the first part of `within` that was never committed.
    // spec: TCP-A.3-3, SEC-T-9
    #[must_use]
    pub fn next_missing(&self, within: Range<StreamOffset>) -> Option<Range<StreamOffset>> {
        let start = within.start.max(self.rcv_nxt);
        if start >= within.end {
            return None;
        }
        if self.assembler.is_empty() {
            return Some(start..within.end);
        }
        self.assembler.next_missing(start..within.end)
    }

    /// Returns true if [`commit`](Self::commit) has room for `range` and for any front part of it.
    #[must_use]
    pub fn can_commit(&self, range: &Range<StreamOffset>) -> bool {
        range.start <= self.rcv_nxt || self.assembler.has_room_from(range.start)
    }

    /// Records that the bytes of `range` are kept: they count as received. Errors: [`Full`] if the
    /// range touches no other and there are too many.
    pub fn commit(&mut self, range: Range<StreamOffset>) -> Result<(), Full> {
        if range.start >= range.end {
            return Ok(());
        }
        let octets = range.end.bytes_since(range.start);
        if range.start <= self.rcv_nxt {
            self.rcv_nxt = self.rcv_nxt.max(range.end);
            if !self.assembler.is_empty() {
                self.rcv_nxt = self.assembler.absorb(self.rcv_nxt);
            }
            // The caller may commit more than was advertised; the window must not become negative.
            self.edge = self.edge.max(self.rcv_nxt);
            // A FIN before what is kept contradicts it.
            self.fin_at = self.fin_at.filter(|at| *at >= self.rcv_nxt);
        } else {
            let start = range.start;
            // spec: TCP-9293-21
            if !self.assembler.insert(range) {
                return Err(Full);
            }
            self.report(start);
        }
        self.committed_bytes = self.committed_bytes.wrapping_add(octets);
        Ok(())
    }

    /// Returns the range of a segment's text that is exactly the next one and fits the window.
    #[inline]
    pub(crate) fn next_range(&self, seq: SeqNum, len: usize) -> Option<Range<StreamOffset>> {
        let start = self.rcv_nxt;
        let is_next = seq == self.space.seq_at(start)
            && len > 0
            && len as u64 <= self.edge.0.saturating_sub(start.0)
            && self.assembler.is_empty()
            && self.fin_at.is_none();
        is_next.then(|| start..start + len as u64)
    }

    /// Commits the bytes up to `end`, a range that [`next_range`](Self::next_range) returned.
    #[inline]
    pub(crate) const fn commit_next(&mut self, end: StreamOffset) {
        let octets = end.0 - self.rcv_nxt.0;
        self.rcv_nxt = end;
        self.committed_bytes = self.committed_bytes.wrapping_add(octets);
    }

    /// Discards the out-of-order bytes of `range`, even if SACK blocks reported them. RFC 2018 §8
    /// permits this, and makes the sender keep the bytes until they are acknowledged.
    pub fn forget(&mut self, range: &Range<StreamOffset>) {
        self.assembler.remove(range);
    }

    #[must_use]
    pub(crate) fn has_gap(&self) -> bool {
        !self.assembler.is_empty()
    }

    #[must_use]
    pub(crate) fn highest_end(&self) -> StreamOffset {
        self.assembler.highest_end().unwrap_or(self.rcv_nxt)
    }

    pub(crate) const fn space(&self) -> SeqSpace {
        self.space
    }

    pub(crate) const fn committed_bytes(&self) -> u64 {
        self.committed_bytes
    }

    pub(crate) const fn fin_taken(&self) -> bool {
        self.fin_taken
    }

    pub(crate) fn ack_number(&self) -> SeqNum {
        self.space.seq_at(self.next_position())
    }

    fn next_position(&self) -> StreamOffset {
        self.rcv_nxt + u64::from(self.fin_taken)
    }

    /// RFC 9293 §3.4; see [`Stand::of`].
    pub(crate) fn acceptability(
        &self,
        seq: SeqNum,
        payload_len: usize,
        control: u8,
    ) -> Acceptability {
        let next = self.next_position();
        let window = if self.fin_taken { 0 } else { self.edge.0.saturating_sub(next.0) };
        let stand = Stand::of(seq, payload_len, control, self.space.seq_at(next), window);
        let (start, text_end) = match stand {
            Stand::Old => return Acceptability::Old,
            Stand::Beyond => return Acceptability::Beyond,
            Stand::Inside { start, text_end } => (start, text_end),
        };
        let limit = if self.fin_taken { next } else { self.edge.min(self.fin_limit()) };
        let payload = || {
            let from = next + u64::try_from(start).unwrap_or(0);
            let to = StreamOffset(next.0.checked_add_signed(text_end)?).min(limit);
            let skip = usize::try_from(start.min(0).unsigned_abs()).ok()?;
            (from < to).then_some(ArrivedPayload { skip, range: from..to })
        };
        Acceptability::Inside { payload: payload(), starts_at_next: start <= 0 }
    }

    /// Discards everything beyond the cumulative point, as RFC 2018 §8 permits and discourages.
    #[cfg(test)]
    pub(crate) fn renege(&mut self) {
        self.assembler = Assembler::default();
    }

    fn fin_limit(&self) -> StreamOffset {
        self.fin_at.unwrap_or(StreamOffset(u64::MAX))
    }

    pub(crate) fn note_fin(&mut self, seq: SeqNum) {
        let Some(at) = self.space.offset_near(seq, self.rcv_nxt) else { return };
        if self.fin_at.is_none() && at >= self.highest_end() && at <= self.edge {
            self.fin_at = Some(at);
        }
    }

    /// Takes the FIN if everything before it was committed; returns true once.
    pub(crate) fn take_fin(&mut self) -> bool {
        let due = !self.fin_taken && self.fin_at == Some(self.rcv_nxt);
        self.fin_taken |= due;
        due
    }

    /// Sets the window policy. The right edge already advertised stays (RFC 9293 SHLD-14).
    // spec: TCP-9293-15
    pub(crate) fn set_window(&mut self, bytes: u32) {
        self.window_bytes = bytes.min(WINDOW_MAX);
        if self.advertised == StreamOffset::ZERO {
            // No segment has advertised a window yet.
            self.edge = self.rcv_nxt + u64::from(self.window_bytes);
        }
    }

    pub(crate) const fn window_bytes(&self) -> u32 {
        self.window_bytes
    }

    pub(crate) fn set_shift(&mut self, shift: u8) {
        self.shift = shift;
    }

    pub(crate) const fn shift(&self) -> u8 {
        self.shift
    }

    /// Returns true if the window grew so much that an update should be sent.
    pub(crate) fn update_is_due(&self) -> bool {
        let wanted = self.rcv_nxt + u64::from(self.offered_max());
        wanted.0.saturating_sub(self.advertised.0) >= self.step()
    }

    /// The smallest step of the right edge (RFC 9293 §3.8.6.2.2).
    // spec: TCP-9293-17
    fn step(&self) -> u64 {
        u64::from(self.mss.min(self.window_bytes / 2).max(1))
    }

    fn offered_max(&self) -> u32 {
        self.window_bytes.min(u32::from(u16::MAX) << self.shift)
    }

    // spec: TCP-7323-2
    pub(crate) fn window_field(&mut self, on_syn: bool) -> u16 {
        let wanted = self.rcv_nxt + u64::from(self.offered_max());
        if wanted.0.saturating_sub(self.edge.0) >= self.step() {
            self.edge = wanted;
        }
        let shift = if on_syn { 0 } else { self.shift };
        let window = self.edge.bytes_since(self.rcv_nxt) >> shift;
        let field = u16::try_from(window).unwrap_or(u16::MAX);
        self.advertised = self.rcv_nxt + (u64::from(field) << shift);
        field
    }

    /// The first bytes that were received before, if other bytes of the segment were not.
    pub(crate) fn repeated(&self, arrived: &ArrivedPayload) -> Option<Range<StreamOffset>> {
        let ArrivedPayload { skip, range } = arrived;
        if *skip > 0 {
            let start = range.start.0.checked_sub(*skip as u64)?;
            return Some(StreamOffset(start)..range.start);
        }
        self.assembler.first_within(range)
    }

    /// For the next acknowledgment (RFC 2883 §4). Contiguous duplicates become one block.
    // spec: TCP-2883-1
    pub(crate) fn report_duplicate(&mut self, range: Range<StreamOffset>) {
        if range.start >= self.rcv_nxt {
            // RFC 2883 §4.2: the block that contains the duplicate is reported second.
            self.report(range.start);
        }
        match &mut self.duplicate {
            Some(held) if held.end == range.start => held.end = range.end,
            held => *held = Some(range),
        }
    }

    /// [`report_duplicate`](Self::report_duplicate) for a segment that lies before RCV.NXT.
    pub(crate) fn report_old(&mut self, seq: SeqNum, payload_len: usize) {
        let start = self.space.offset_near(seq, self.rcv_nxt);
        let len = u64::try_from(payload_len).unwrap_or(0);
        if let Some(start) = start
            && len > 0
        {
            self.report_duplicate(start..start + len);
        }
    }

    pub(crate) fn duplicate(&self) -> Option<SackBlock> {
        let Range { start, end } = self.duplicate.as_ref()?;
        Some((self.space.seq_at(*start), self.space.seq_at(*end)))
    }

    /// Puts the block of the newest segment first, before those reported last (RFC 2018 §4).
    fn report(&mut self, start: StreamOffset) {
        let block = self.assembler.containing(start);
        self.recent.retain(|point| !block.as_ref().is_some_and(|block| block.contains(point)));
        self.recent.truncate(self.recent.capacity() - 1);
        self.recent.insert(0, start);
    }

    /// Fills `out` with the blocks to report, at most `max`; a duplicate is reported once.
    // spec: TCP-2018-2
    pub(crate) fn sack_blocks<const N: usize>(
        &mut self,
        out: &mut ArrayVec<SackBlock, N>,
        max: usize,
    ) {
        if let Some(duplicate) = self.duplicate.take() {
            out.push((self.space.seq_at(duplicate.start), self.space.seq_at(duplicate.end)));
        }
        let Self { recent, assembler, space, .. } = self;
        recent.retain(|point| assembler.containing(*point).is_some());
        let mut told: ArrayVec<StreamOffset, 4> = ArrayVec::new();
        for block in recent.iter().filter_map(|point| assembler.containing(*point)) {
            if out.len() >= max {
                break;
            }
            if !told.contains(&block.start) {
                told.push(block.start);
                out.push((space.seq_at(block.start), space.seq_at(block.end)));
            }
        }
    }
}

/// The smallest shift that can express `window_bytes` (RFC 7323 §2.2).
pub(crate) fn shift_for(window_bytes: u32) -> u8 {
    (0..SHIFT_MAX)
        .find(|&shift| window_bytes.min(WINDOW_MAX) >> shift <= u32::from(u16::MAX))
        .unwrap_or(SHIFT_MAX)
}

#[cfg(test)]
mod tests;
