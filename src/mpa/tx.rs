//! Framing: one ULPDU becomes one FPDU, as a sequence of runs and without touching the payload.
//!
//! The caller implements [`RunSink`]. One pass in stream order lets it write the inline octets into a
//! scratch buffer, note where payload is to be gathered from, and feed all of it to the CRC. The
//! same pass through a [`Clip`] yields any part of an FPDU, for segments that no longer match.

use std::ops::Range;

use crate::limits::{MARKER_LEN, ULPDU_LEN_MAX};
use crate::mpa::marker::{CRC_LEN, FpduLayout, LENGTH_LEN, MarkerGrid, pad_len};
use crate::types::StreamOffset;
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::Marker;

/// Most leading octets of a ULPDU given inline: DDP untagged header (18), RDMAP Atomic Request (52),
/// rounded up.
pub const INLINE_LEN_MAX: usize = 72;

/// Takes the runs of an FPDU in stream order.
///
/// RFC 5044 §4.4: the CRC covers everything of the FPDU before it, markers too, in stream order; so
/// feeding every run to a CRC32c as it comes, before [`crc`](Self::crc), gives the right value.
pub trait RunSink {
    /// Octets made by the layers: leading marker, length, ULPDU header; markers; pad. Never empty.
    fn inline(&mut self, octets: &[u8]);
    /// `len` octets (never 0) of the ULPDU's payload, `offset` octets into that payload.
    fn payload(&mut self, offset: usize, len: usize);
    /// Octets `part` (within 0..4, never empty) of the CRC field. The value goes on the wire least
    /// significant octet first (RFC 5044 §4.4). Only a [`Clip`] gives less than the whole field; its
    /// user must know the CRC from a pass over the whole FPDU.
    fn crc(&mut self, part: Range<usize>);
}

/// An FPDU to be sent: a description, no octets of payload.
#[derive(Clone, Copy, Debug)]
pub struct Fpdu<'a> {
    layout: FpduLayout,
    header: &'a [u8],
}

impl<'a> Fpdu<'a> {
    /// The FPDU at stream position `start` whose ULPDU is `header` (DDP and RDMAP header octets)
    /// followed by `payload_len` octets of payload.
    ///
    /// # Panics
    /// When `header` exceeds [`INLINE_LEN_MAX`], or the ULPDU is empty or exceeds [`ULPDU_LEN_MAX`]:
    /// a caller's bug (RFC 5044 §3: "DDP MUST NOT post more than 64768 octets").
    #[must_use]
    #[inline]
    pub fn new(
        grid: MarkerGrid,
        start: StreamOffset,
        header: &'a [u8],
        payload_len: usize,
    ) -> Self {
        assert!(header.len() <= INLINE_LEN_MAX, "ULPDU header too long to be inline");
        assert!(payload_len <= ULPDU_LEN_MAX, "ULPDU longer than MPA allows");
        let ulpdu_len = header.len() + payload_len;
        assert!(ulpdu_len > 0, "empty ULPDU");
        Self { layout: grid.layout(start, ulpdu_len), header }
    }

    /// Octets of stream this FPDU takes, a leading marker included.
    #[must_use]
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.layout.wire_len()
    }

    /// Octets of the ULPDU.
    #[must_use]
    #[inline]
    pub const fn ulpdu_len(&self) -> usize {
        self.layout.ulpdu_len()
    }

    /// Gives every run of the FPDU to `sink`, in stream order.
    #[inline]
    pub fn emit<S: RunSink>(&self, sink: &mut S) {
        if self.layout.marker_count() == 0 {
            self.emit_unmarked(sink)
        } else {
            self.emit_marked(sink)
        }
    }

    /// Gives the runs of wire octets `part` (relative to the FPDU's start) to `sink`.
    ///
    /// What lies beyond the FPDU's end is ignored.
    pub fn emit_part<S: RunSink>(&self, part: Range<usize>, sink: &mut S) {
        self.emit(&mut Clip::new(part, sink));
    }

    #[inline]
    fn emit_unmarked<S: RunSink>(&self, sink: &mut S) {
        let mut head = [0; LENGTH_LEN + INLINE_LEN_MAX];
        let head_len = self.write_head(&mut head);
        sink.inline(&head[..head_len]);
        let payload_len = self.payload_len();
        if payload_len > 0 {
            sink.payload(0, payload_len);
        }
        let pad = pad_len(self.ulpdu_len());
        if pad > 0 {
            sink.inline(&[0; 3][..pad]);
        }
        sink.crc(0..CRC_LEN);
    }

    fn emit_marked<S: RunSink>(&self, sink: &mut S) {
        let mut markers = Markers { layout: self.layout, index: 0 };
        let mut head = [0; LENGTH_LEN + INLINE_LEN_MAX + MARKER_LEN];
        let mut head_len = self.write_head(&mut head);
        let mut octet = head_len;
        // The head is far shorter than the distance of two markers: at most one is due in it.
        if let Some(before) = markers.next_octet().filter(|before| *before < head_len) {
            head.copy_within(before..head_len, before + MARKER_LEN);
            head[before..before + MARKER_LEN].copy_from_slice(&markers.take());
            head_len += MARKER_LEN;
        }
        sink.inline(&head[..head_len]);

        let payload_at = octet;
        let payload_end = octet + self.payload_len();
        while octet < payload_end {
            if markers.next_octet() == Some(octet) {
                sink.inline(&markers.take());
            }
            let run_end = markers.next_octet().unwrap_or(payload_end).min(payload_end);
            sink.payload(octet - payload_at, run_end - octet);
            octet = run_end;
        }

        // Pad ends 4-aligned, so a marker can be due before the CRC but not inside the pad.
        let pad = pad_len(self.ulpdu_len());
        let mut tail = [0; 3 + MARKER_LEN];
        let mut tail_len = pad;
        if markers.next_octet() == Some(octet + pad) {
            tail[pad..pad + MARKER_LEN].copy_from_slice(&markers.take());
            tail_len += MARKER_LEN;
        }
        if tail_len > 0 {
            sink.inline(&tail[..tail_len]);
        }
        sink.crc(0..CRC_LEN);
    }

    /// Writes ULPDU_Length and the inline part of the ULPDU; returns their length.
    #[inline]
    fn write_head(&self, head: &mut [u8]) -> usize {
        // RFC 5044 §4.1: ULPDU_Length counts the contained ULPDU only.
        let ulpdu_len = u16::try_from(self.ulpdu_len()).expect("checked against ULPDU_LEN_MAX");
        head[..LENGTH_LEN].copy_from_slice(&ulpdu_len.to_be_bytes());
        let head_len = LENGTH_LEN + self.header.len();
        let room = &mut head[LENGTH_LEN..head_len];
        // A copy of known length is no call. This one is made for almost every FPDU.
        match <&[u8; TaggedHeader::LEN]>::try_from(self.header) {
            Ok(header) => room.copy_from_slice(header),
            Err(_) => room.copy_from_slice(self.header),
        }
        head_len
    }

    #[inline]
    const fn payload_len(&self) -> usize {
        self.layout.ulpdu_len() - self.header.len()
    }
}

/// The markers of one FPDU that are still to be emitted.
struct Markers {
    layout: FpduLayout,
    index: usize,
}

impl Markers {
    /// The FPDU octet that the next marker stands before.
    fn next_octet(&self) -> Option<usize> {
        (self.index < self.layout.marker_count()).then(|| self.layout.marker_octet(self.index))
    }

    /// The next marker's octets.
    fn take(&mut self) -> [u8; MARKER_LEN] {
        let marker = Marker { fpduptr: self.layout.fpduptr(self.index) };
        self.index += 1;
        marker.to_bytes()
    }
}

/// Passes on only the runs inside a window of wire octets.
#[derive(Debug)]
pub struct Clip<'s, S> {
    sink: &'s mut S,
    /// Wire octets still to be left out.
    skip: usize,
    /// Wire octets then still to be passed on.
    take: usize,
}

impl<'s, S: RunSink> Clip<'s, S> {
    /// Passes wire octets `window`, counted over everything emitted through this value, to `sink`.
    #[must_use]
    pub fn new(window: Range<usize>, sink: &'s mut S) -> Self {
        Self { sink, skip: window.start, take: window.end.saturating_sub(window.start) }
    }

    /// The part of the next run of `len` octets that is inside the window; `None` when none is.
    fn advance(&mut self, len: usize) -> Option<Range<usize>> {
        let from = self.skip.min(len);
        self.skip -= from;
        let taken = self.take.min(len - from);
        self.take -= taken;
        (taken > 0).then_some(from..from + taken)
    }
}

impl<S: RunSink> RunSink for Clip<'_, S> {
    fn inline(&mut self, octets: &[u8]) {
        if let Some(part) = self.advance(octets.len()) {
            self.sink.inline(&octets[part]);
        }
    }

    fn payload(&mut self, offset: usize, len: usize) {
        if let Some(part) = self.advance(len) {
            self.sink.payload(offset + part.start, part.len());
        }
    }

    fn crc(&mut self, part: Range<usize>) {
        if let Some(inside) = self.advance(part.len()) {
            self.sink.crc(part.start + inside.start..part.start + inside.end);
        }
    }
}

#[cfg(test)]
mod tests;
