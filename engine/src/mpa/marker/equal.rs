//! Consecutive FPDUs that take equally many bytes of the stream. An FPDU that contains one more
//! marker than another has 4 bytes less payload.

use crate::limits::{MARKER_LEN, MARKER_SPACING};
use crate::mpa::marker::{MarkerGrid, bytes_in};
use crate::types::StreamOffset;

const NO_MARKERS: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub(crate) struct EqualFpdus {
    /// Bytes from the start of the first one to the first marker.
    lead: u64,
    /// Bytes of each on the stream: markers, length, ULPDU, pad and CRC.
    wire_len: u32,
    len: u32,
}

impl EqualFpdus {
    /// FPDUs of `wire_len` bytes each. The first begins at `start` and has `len` bytes of payload.
    #[inline]
    pub(crate) const fn new(
        grid: MarkerGrid,
        start: StreamOffset,
        wire_len: u32,
        len: u32,
    ) -> Self {
        let lead = if grid.enabled { grid.lead(start) as u64 } else { NO_MARKERS };
        Self { lead, wire_len, len }
    }

    #[inline]
    pub(crate) const fn wire_len(&self) -> u32 {
        self.wire_len
    }

    /// Bytes from the start of the first FPDU to the first marker; `usize::MAX` without markers.
    #[inline]
    pub(crate) fn first_marker_at(&self) -> usize {
        usize::try_from(self.lead).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(crate) const fn first_len(&self) -> u32 {
        self.len
    }

    /// Payload bytes of each FPDU if the stream has no markers; `None` if it has markers.
    #[inline]
    pub(crate) const fn unmarked_len(&self) -> Option<u32> {
        if self.lead == NO_MARKERS { Some(self.len) } else { None }
    }

    /// All of the first `count` FPDUs must be [possible](Self::is_possible).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a message has less than 2³² bytes")]
    pub(crate) const fn payload_before(&self, count: u32) -> u32 {
        if self.lead == NO_MARKERS {
            return count * self.len;
        }
        // Length, headers, pad and CRC of each.
        let framing = bytes_in(self.lead, self.wire_len as u64) - self.len as u64;
        let wire_len = self.wire_len as u64 * count as u64;
        // Wraps for an FPDU too short to hold one more marker, which `is_possible` refuses.
        bytes_in(self.lead, wire_len).wrapping_sub(framing * count as u64) as u32
    }

    #[inline]
    pub(crate) const fn payload_len(&self, number: u32) -> u32 {
        self.without_first(number).len
    }

    /// Counts FPDUs after the first `before`: at most `most`, with at most `left` bytes of payload.
    #[inline]
    pub(crate) fn as_many(&self, before: u32, left: u32, most: u32) -> (u32, u32) {
        if self.lead == NO_MARKERS {
            let count = most.min(left.checked_div(self.len).unwrap_or(0));
            return (count, count * self.len);
        }
        let (mut next, mut count, mut len) = (self.without_first(before), 0, 0);
        while count < most && next.is_possible(0) && next.len <= left - len {
            (count, len) = (count + 1, len + next.len);
            next = next.without_first(1);
        }
        (count, len)
    }

    /// Returns false if the last four bytes of FPDU `number` would be a marker: that leads the next
    /// FPDU (RFC 5044 §4.3).
    #[inline]
    pub(crate) const fn is_possible(&self, number: u32) -> bool {
        let end = self.wire_len as u64 * (number as u64 + 1);
        end <= self.lead || {
            let behind_marker = (end - self.lead) % MARKER_SPACING;
            behind_marker == 0 || behind_marker > MARKER_LEN as u64
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than an FPDU is long")]
    pub(crate) const fn without_first(&self, count: u32) -> Self {
        if self.lead == NO_MARKERS {
            return *self;
        }
        let wire_len = self.wire_len as u64;
        let lead = self.lead.wrapping_sub(wire_len * count as u64) % MARKER_SPACING;
        // Each marker byte less is a payload byte more, unless there is no room for the markers.
        let more = bytes_in(lead, wire_len).wrapping_sub(bytes_in(self.lead, wire_len));
        Self { lead, len: self.len.saturating_add_signed(more as i32), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpa::marker::{CRC_LEN, LENGTH_LEN};

    const HEADER_LEN: usize = 14;

    /// Payload that an FPDU in so many bytes at `start` has, and how many of them it takes.
    fn packed(grid: MarkerGrid, start: StreamOffset, room: usize) -> (u32, usize) {
        let ulpdu_len = grid.mulpdu_for_room(start, room).unwrap();
        let len = u32::try_from(ulpdu_len - HEADER_LEN).unwrap();
        (len, grid.layout(start, ulpdu_len).wire_len())
    }

    #[test]
    fn equal_fpdus_have_the_payload_that_fits_each() {
        let mut compared = 0;
        for (markers, wire_len) in
            [(true, 1448), (true, 512), (true, 36), (true, 9000), (false, 1448)]
        {
            for origin in (0..512).step_by(4) {
                let grid = MarkerGrid::new(StreamOffset(origin), markers);
                let mut start = StreamOffset(origin + 40);
                let (len, taken) = packed(grid, start, wire_len);
                if taken != wire_len {
                    continue;
                }
                let wire = u32::try_from(wire_len).unwrap();
                let mut equal = EqualFpdus::new(grid, start, wire, len);
                assert_eq!(equal.unmarked_len().is_some(), !markers);
                let (mut before, mut skipped) = (0, 0);
                for number in 0..300 {
                    let (len, taken) = packed(grid, start, wire_len);
                    assert_eq!(equal.is_possible(number - skipped), taken == wire_len);
                    if taken != wire_len {
                        break;
                    }
                    assert_eq!(equal.payload_len(number - skipped), len, "{number}");
                    assert_eq!(equal.payload_before(number - skipped), before, "{number}");
                    let layout = grid.layout(start, HEADER_LEN + len as usize);
                    let framing = LENGTH_LEN + HEADER_LEN + CRC_LEN;
                    let markers = 4 * layout.marker_count();
                    assert_eq!(framing + len as usize + markers, wire_len);
                    before += len;
                    compared += 1;
                    start = start + wire_len as u64;
                    // What was acknowledged is left out.
                    if number % 7 == 6 {
                        equal = equal.without_first(number + 1 - skipped);
                        (skipped, before) = (number + 1, 0);
                    }
                }
            }
        }
        assert!(compared > 10_000, "{compared}");
    }

    #[test]
    fn four_gigabytes_in_equal_fpdus_are_counted() {
        let grid = MarkerGrid::new(StreamOffset(0), true);
        let (len, _) = packed(grid, StreamOffset(0), 1448);
        let equal = EqualFpdus::new(grid, StreamOffset(0), 1448, len);
        let count = u32::MAX / 1448 + 1000;
        let wire_len = u64::from(count) * 1448;
        let expected = wire_len - 20 * u64::from(count) - 4 * wire_len.div_ceil(512);
        assert_eq!(u64::from(equal.payload_before(count)), expected);
    }
}
