//! Framing: emits one ULPDU as one FPDU, as a sequence of runs and without touching the payload. In
//! one pass a [`RunSink`] writes the inline bytes, records the payload, and computes the CRC.

use crate::limits::{MARKER_LEN, ULPDU_LEN_MAX};
use crate::mpa::marker::{FpduLayout, LENGTH_LEN, MarkerGrid, pad_len};
use crate::types::StreamOffset;
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::Marker;

/// Longest inline front: DDP untagged header (18), RDMAP Atomic Request (52), rounded up.
pub const INLINE_LEN_MAX: usize = 72;

/// Receiver of the runs of an FPDU in stream order. RFC 5044 §4.4: the CRC covers everything before
/// it in stream order, markers included: feed every run to a CRC32c as it is emitted.
pub trait RunSink {
    /// Bytes made by the layers: leading marker, length and header; markers; pad. Never empty.
    fn inline(&mut self, octets: &[u8]);
    /// Takes `len` bytes (never 0) of the ULPDU's payload, `offset` bytes into that payload.
    fn payload(&mut self, offset: usize, len: usize);
    /// Marks the place of the CRC field, least significant byte first (RFC 5044 §4.4).
    fn crc(&mut self);
}

/// Description of an FPDU to send, without payload bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fpdu<'a> {
    layout: FpduLayout,
    header: &'a [u8],
}

impl<'a> Fpdu<'a> {
    /// The FPDU at stream position `start` whose ULPDU is `header` (DDP and RDMAP) and
    /// `payload_len` bytes. Panics if `header` exceeds [`INLINE_LEN_MAX`], or the ULPDU is empty or
    /// exceeds [`ULPDU_LEN_MAX`] (RFC 5044 §3: "DDP MUST NOT post more than 64768 octets").
    #[must_use]
    #[inline]
    pub fn new(
        grid: MarkerGrid,
        start: StreamOffset,
        header: &'a [u8],
        payload_len: usize,
    ) -> Self {
        assert!(header.len() <= INLINE_LEN_MAX, "ULPDU header too long to be inline");
        // spec: MPA-3-4
        assert!(payload_len <= ULPDU_LEN_MAX, "ULPDU longer than MPA allows");
        let ulpdu_len = header.len() + payload_len;
        assert!(ulpdu_len > 0, "empty ULPDU");
        // spec: MPA-3-1
        Self { layout: grid.layout(start, ulpdu_len), header }
    }

    /// Bytes of stream this FPDU takes, a leading marker included.
    #[must_use]
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.layout.wire_len()
    }

    /// Bytes of the ULPDU.
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

    // spec: MPA-4.1-1
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
            // spec: MPA-4.1-3
            sink.inline(&[0; 3][..pad]);
        }
        sink.crc();
    }

    // spec: MPA-4.4-9, MPA-4.4-10, MPA-4.4-11
    fn emit_marked<S: RunSink>(&self, sink: &mut S) {
        let mut markers = Markers::new(self.layout);
        let mut head = [0; LENGTH_LEN + INLINE_LEN_MAX + MARKER_LEN];
        let mut head_len = self.write_head(&mut head);
        let mut octet = head_len;
        // The head is far shorter than the distance between markers, so it contains at most one.
        let before = markers.next_octet;
        if before < head_len {
            head.copy_within(before..head_len, before + MARKER_LEN);
            head[before..before + MARKER_LEN].copy_from_slice(&markers.take());
            head_len += MARKER_LEN;
        }
        sink.inline(&head[..head_len]);

        let payload_at = octet;
        let payload_end = octet + self.payload_len();
        while octet < payload_end {
            if markers.next_octet == octet {
                sink.inline(&markers.take());
            }
            let run_end = markers.next_octet.min(payload_end);
            sink.payload(octet - payload_at, run_end - octet);
            octet = run_end;
        }

        // The pad ends 4-aligned, so a marker can fall before the CRC but not inside the pad.
        // spec: MPA-4.3-11
        let pad = pad_len(self.ulpdu_len());
        let mut tail = [0; 3 + MARKER_LEN];
        let mut tail_len = pad;
        if markers.next_octet == octet + pad {
            tail[pad..pad + MARKER_LEN].copy_from_slice(&markers.take());
            tail_len += MARKER_LEN;
        }
        if tail_len > 0 {
            sink.inline(&tail[..tail_len]);
        }
        sink.crc();
    }

    // spec: DDP-3-4
    #[inline]
    fn write_head(&self, head: &mut [u8]) -> usize {
        // RFC 5044 §4.1: ULPDU_Length counts the contained ULPDU only.
        // spec: MPA-4.1-2
        let ulpdu_len = u16::try_from(self.ulpdu_len()).expect("checked against ULPDU_LEN_MAX");
        head[..LENGTH_LEN].copy_from_slice(&ulpdu_len.to_be_bytes());
        let head_len = LENGTH_LEN + self.header.len();
        let room = &mut head[LENGTH_LEN..head_len];
        // A copy of known length, as of almost every FPDU, compiles to moves instead of a call.
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

struct Markers {
    layout: FpduLayout,
    index: usize,
    count: usize,
    /// `usize::MAX` if no marker is left.
    next_octet: usize,
}

impl Markers {
    #[inline]
    const fn new(layout: FpduLayout) -> Self {
        let count = layout.marker_count();
        let next_octet = if count > 0 { layout.marker_octet(0) } else { usize::MAX };
        Self { layout, index: 0, count, next_octet }
    }

    #[inline]
    fn take(&mut self) -> [u8; MARKER_LEN] {
        let marker = Marker { fpduptr: self.layout.fpduptr(self.index) };
        self.index += 1;
        let is_left = self.index < self.count;
        self.next_octet = if is_left { self.layout.marker_octet(self.index) } else { usize::MAX };
        marker.to_bytes()
    }
}

#[cfg(test)]
mod tests;
