//! Positions of markers and their effect on lengths: pure arithmetic on stream positions.
//!
//! ```text
//!  stream  |M|len| ULPDU ........ |M| ULPDU ...... |pad|CRC|len| ULPDU ... |M| ...
//!          ^  ^                    ^                        ^               ^
//!          |  header               marker, FPDUPTR = its distance from the header
//!          start (leading marker: FPDUPTR 0, part of this FPDU)  start (none leads it)
//! ```
//!
//! *FPDU bytes* leave the markers out, *wire bytes* count them; [`FpduLayout`] converts. Everything
//! is 4-aligned relative to the first marker, so a marker never splits the length field or the CRC.

mod equal;

use crate::limits::{MARKER_LEN, MARKER_SPACING, MULPDU_MIN, ULPDU_LEN_MAX};
pub(crate) use crate::mpa::marker::equal::EqualFpdus;
use crate::types::StreamOffset;
pub(crate) use crate::wire::mpa::fpdu_len;
pub use crate::wire::mpa::{CRC_LEN, FPDU_HEADER_LEN as LENGTH_LEN, pad_len};

pub(crate) const SPACING: usize = 512;
/// FPDU bytes between two markers.
pub(crate) const RUN_LEN: usize = SPACING - MARKER_LEN;
const FPDU_LEN_MIN: usize = fpdu_len(1);

const _: () = assert!(SPACING as u64 == MARKER_SPACING && SPACING.is_power_of_two());
const _: () = assert!(fpdu_len(ULPDU_LEN_MAX) < u16::MAX as usize);

/// The largest ULPDU, 128 to 64768 bytes, whose FPDU fits an EMSS wherever the markers fall. With a
/// smaller EMSS, FPDUs span segments.
// spec: MPA-4.5-1, MPA-4.5-2, MPA-4.5-4
#[must_use]
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    // RFC 5044 §4.5: "MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)" with markers,
    // "MULPDU = EMSS - (6 + EMSS mod 4)" without.
    let marker_bytes = if markers { MARKER_LEN * emss.div_ceil(SPACING) } else { 0 };
    let overhead = LENGTH_LEN + CRC_LEN + marker_bytes + emss % 4;
    clamp_mulpdu(emss.saturating_sub(overhead))
}

/// "in the range 128 to 64768", both included (RFC 5044 §3).
// spec: MPA-3-2, MPA-4.5-3
const fn clamp_mulpdu(len: usize) -> usize {
    if len < MULPDU_MIN {
        MULPDU_MIN
    } else if len > ULPDU_LEN_MAX {
        ULPDU_LEN_MAX
    } else {
        len
    }
}

/// Marker positions of one direction of a stream. RFC 5044 §4.3: a marker is at every sequence
/// number whose distance from the first byte of full operation is a multiple of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerGrid {
    origin: StreamOffset,
    enabled: bool,
}

impl MarkerGrid {
    /// The grid of a direction whose first full-operation byte is at `origin`.
    #[must_use]
    pub const fn new(origin: StreamOffset, enabled: bool) -> Self {
        Self { origin, enabled }
    }

    /// Returns true if this direction carries markers.
    #[must_use]
    #[inline]
    pub const fn is_enabled(self) -> bool {
        self.enabled
    }

    /// Length limit of the runs into which markers cut `len` bytes.
    #[inline]
    pub(crate) fn run_len(self, len: usize) -> usize {
        if self.enabled { len.min(RUN_LEN) } else { len }
    }

    /// Upper bound of the markers in FPDUs of `len` bytes on the stream.
    #[inline]
    pub(crate) const fn markers_max(self, len: usize) -> usize {
        if self.enabled { len.div_ceil(SPACING) } else { 0 }
    }

    /// Bytes from the last marker position at or before `at`, 0 to 511.
    // spec: MPA-4.3-2
    #[inline]
    const fn phase(self, at: StreamOffset) -> usize {
        // 512 divides 2⁶⁴, so the phase survives wrapping.
        (at.0.wrapping_sub(self.origin.0) & (MARKER_SPACING - 1)) as usize
    }

    // spec: MPA-4.3-4
    #[must_use]
    #[inline]
    pub(crate) const fn is_marker(self, at: StreamOffset) -> bool {
        self.enabled && self.phase(at) == 0
    }

    /// The first marker at or after `at`; `None` when there are no markers.
    #[must_use]
    pub(crate) const fn next_marker(self, at: StreamOffset) -> Option<StreamOffset> {
        if !self.enabled {
            return None;
        }
        let distance = (SPACING - self.phase(at)) % SPACING;
        match at.0.checked_add(distance as u64) {
            Some(position) => Some(StreamOffset(position)),
            None => None,
        }
    }

    pub(crate) fn markers_from(self, at: StreamOffset) -> impl Iterator<Item = StreamOffset> {
        std::iter::successors(self.next_marker(at), |marker| {
            marker.0.checked_add(MARKER_SPACING).map(StreamOffset)
        })
    }

    /// Bytes of marker that lead an FPDU starting at `start`: 4 or 0.
    // spec: MPA-4.3-12
    #[must_use]
    #[inline]
    pub(crate) const fn leading_len(self, start: StreamOffset) -> usize {
        if self.is_marker(start) { MARKER_LEN } else { 0 }
    }

    /// Start of the FPDU that a received marker points at, its leading marker included; `None` if
    /// no FPDU can start there. The two low bits of `fpduptr` are masked here.
    // spec: MPA-4.3-9
    #[must_use]
    pub(crate) const fn fpdu_start(
        self,
        marker: StreamOffset,
        fpduptr: u16,
    ) -> Option<StreamOffset> {
        // RFC 5044 §4.2 (erratum 1427): the two low bits are zero by definition, whatever arrives.
        let distance = (fpduptr & !3) as u64;
        if distance == 0 {
            return Some(marker);
        }
        let Some(header) = marker.0.checked_sub(distance) else { return None };
        if header < self.origin.0 || self.is_marker(StreamOffset(header)) {
            return None;
        }
        // RFC 5044 §4.3: a marker directly before the header belongs to that FPDU.
        let before = StreamOffset(header.wrapping_sub(MARKER_LEN as u64));
        Some(if self.is_marker(before) { before } else { StreamOffset(header) })
    }

    /// The layout of an FPDU at `start` (its leading marker, if any). Panics beyond
    /// [`ULPDU_LEN_MAX`].
    #[must_use]
    #[inline]
    pub const fn layout(self, start: StreamOffset, ulpdu_len: usize) -> FpduLayout {
        assert!(ulpdu_len <= ULPDU_LEN_MAX, "ULPDU longer than MPA allows");
        let (lead, fpdu_bytes) = (self.lead(start), fpdu_len(ulpdu_len));
        let markers = if fpdu_bytes <= lead { 0 } else { (fpdu_bytes - lead).div_ceil(RUN_LEN) };
        FpduLayout { lead, fpdu_bytes, ulpdu_len, markers }
    }

    /// FPDU bytes from `start` to the first marker; `usize::MAX` without markers.
    #[inline]
    const fn lead(self, start: StreamOffset) -> usize {
        if self.enabled { (SPACING - self.phase(start)) % SPACING } else { usize::MAX }
    }

    /// The dynamic MULPDU (RFC 5044 §4.5), for packing an FPDU into the rest of a segment: `None`
    /// when not even one byte fits. The MULPDU *reported* to DDP is never below 128; this one may
    /// be.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "no more than the room")]
    pub(crate) const fn mulpdu_for_room(self, start: StreamOffset, room: usize) -> Option<usize> {
        let fpdu_bytes = bytes_in(self.lead(start) as u64, room as u64) as usize & !3;
        if fpdu_bytes < FPDU_LEN_MIN {
            return None;
        }
        let len = fpdu_bytes - LENGTH_LEN - CRC_LEN;
        Some(if len > ULPDU_LEN_MAX { ULPDU_LEN_MAX } else { len })
    }
}

/// FPDU bytes among the first `wire_len` wire bytes, when `lead` of them precede the first marker.
#[inline]
const fn bytes_in(lead: u64, wire_len: u64) -> u64 {
    if wire_len <= lead {
        return wire_len;
    }
    let beyond = wire_len - lead;
    let after_last = (beyond % MARKER_SPACING).saturating_sub(MARKER_LEN as u64);
    lead + beyond / MARKER_SPACING * RUN_LEN as u64 + after_last
}

/// One FPDU's layout: how its bytes and its markers interleave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FpduLayout {
    /// FPDU bytes before the first marker; 0 when a marker leads.
    lead: usize,
    fpdu_bytes: usize,
    ulpdu_len: usize,
    markers: usize,
}

impl FpduLayout {
    /// Bytes of the ULPDU.
    #[must_use]
    #[inline]
    pub const fn ulpdu_len(&self) -> usize {
        self.ulpdu_len
    }

    /// Bytes on the wire: the FPDU bytes and the markers.
    #[must_use]
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.fpdu_bytes + MARKER_LEN * self.marker_count()
    }

    /// Wire offset of the CRC field.
    #[must_use]
    #[inline]
    pub const fn crc_at(&self) -> usize {
        // The last four FPDU bytes; no marker splits them, none follows them.
        self.wire_len() - CRC_LEN
    }

    /// Markers in the FPDU, a leading one included.
    #[must_use]
    #[inline]
    pub const fn marker_count(&self) -> usize {
        self.markers
    }

    /// Wire offset of marker `index` (zero-based, below [`marker_count`](Self::marker_count)).
    #[must_use]
    #[inline]
    pub const fn marker_at(&self, index: usize) -> usize {
        self.lead + index * SPACING
    }

    /// Index of the FPDU byte directly after marker `index`.
    #[must_use]
    #[inline]
    pub(crate) const fn marker_octet(&self, index: usize) -> usize {
        self.lead + index * RUN_LEN
    }

    /// Bytes of stream from the FPDU's header to the marker, 0 for a leading marker.
    // spec: MPA-4.3-5, MPA-4.3-6, MPA-4.3-8
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most 65280 for a ULPDU up to 64768")]
    pub(crate) const fn fpduptr(&self, index: usize) -> u16 {
        // RFC 5044 §4.3: "FPDUPTR … the number of bytes in the TCP stream from the beginning of
        // the ULPDU_Length field to the first byte of the entire Marker"; "zero" when it lies
        // between FPDUs.
        let header_at = if self.lead == 0 { MARKER_LEN } else { 0 };
        self.marker_at(index).saturating_sub(header_at) as u16
    }

    /// Wire offset of FPDU byte `octet` (counted without markers).
    #[must_use]
    #[inline]
    pub const fn wire_of(&self, octet: usize) -> usize {
        if octet < self.lead {
            return octet;
        }
        octet + MARKER_LEN * ((octet - self.lead) / RUN_LEN + 1)
    }

    /// Wire offset of the ULPDU, which is not empty, if no marker splits it.
    #[must_use]
    #[inline]
    pub(crate) const fn unsplit_ulpdu_at(&self) -> Option<usize> {
        // At most two markers lie outside the ULPDU: a leading one, and one before the CRC.
        if self.markers > 2 {
            return None;
        }
        let first = self.wire_of(LENGTH_LEN);
        let last = self.wire_of(LENGTH_LEN + self.ulpdu_len - 1);
        if last < first + self.ulpdu_len { Some(first) } else { None }
    }

    /// FPDU bytes from `octet` to the next marker, at least 1, as if the FPDU had no end.
    #[must_use]
    #[inline]
    pub(crate) const fn run_len_from(&self, octet: usize) -> usize {
        if octet < self.lead {
            return self.lead - octet;
        }
        RUN_LEN - (octet - self.lead) % RUN_LEN
    }
}

#[cfg(test)]
mod tests;
