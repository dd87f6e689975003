//! Transmit: from a message to FPDUs (descriptors), from descriptors to the octets of a segment.
//!
//! ```text
//! messages::next ─→ ddp::tx (cut at MULPDU) ─→ mpa::tx (FPDU) ─→ queue of descriptors
//!                                        queue ─→ gather ─→ inline octets + runs of memory
//! ```
//!
//! A message is cut when it is about to be sent, so each FPDU has the size that fits now. Writing a
//! segment again (a retransmission) reads the same descriptors.

use std::ops::Range;

use crate::ddp;
use crate::limits::MULPDU_MIN;
use crate::mem::SharedSlice;
use crate::mpa::marker::{MarkerGrid, fpdu_len};
use crate::mpa::tx::RunSink;
use crate::stream::fpdus::{Fpdu, FpduQueue};
use crate::stream::frame::FrameBuilder;
use crate::stream::messages::{Message, Messages};
use crate::types::StreamOffset;
use crate::verbs::{QpShared, RnicShared};
use crate::wire::ProtocolVersion;
use crate::wire::crc32c::{self, Crc32c};
use crate::wire::ddp::TaggedHeader;

/// Fragments that one FPDU can need at most, beyond two per marker: head, scatter elements, tail.
const FRAGMENTS_PER_FPDU: usize = 2 + crate::limits::SGE_MAX;

/// The transmit side of an RDMAP stream in full operation.
#[derive(Debug)]
pub(crate) struct TxState {
    pub(crate) messages: Messages,
    fpdus: FpduQueue,
    current: Option<Message>,
    /// End of what is framed.
    framed_end: StreamOffset,
    grid: MarkerGrid,
    crc: bool,
    version: ProtocolVersion,
    fpdus_framed: u64,
    /// What TCP has acknowledged.
    snd_una: StreamOffset,
}

/// What a frame may still take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Octets of the segment.
    pub(crate) segment_len: usize,
    /// Fragments of the frame.
    pub(crate) fragments: usize,
    /// Whether a message that does not fit may be cut at the beginning of the segment.
    pub(crate) cut: Cut,
}

/// Whether a message may be cut to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Yes.
    Always,
    /// Only if what fits is worth an FPDU of its own.
    IfWorthwhile,
    /// No: the segment is short because the peer's window is, and will grow.
    Never,
}

/// The shortest FPDU: a tagged DDP header without payload, and no marker.
const FPDU_LEN_MIN: usize = fpdu_len(TaggedHeader::LEN);

impl TxState {
    pub(crate) fn new(
        messages: Messages,
        origin: StreamOffset,
        markers: bool,
        crc: bool,
        version: ProtocolVersion,
    ) -> Self {
        Self {
            messages,
            fpdus: FpduQueue::with_capacity(FPDUS_RESERVED),
            current: None,
            framed_end: origin,
            grid: MarkerGrid::new(origin, markers),
            crc,
            version,
            fpdus_framed: 0,
            snd_una: StreamOffset::ZERO,
        }
    }

    /// End of what is framed; what TCP has sent ends here or earlier.
    pub(crate) const fn framed_end(&self) -> StreamOffset {
        self.framed_end
    }

    pub(crate) const fn fpdus_framed(&self) -> u64 {
        self.fpdus_framed
    }

    /// Whether there may be something to frame.
    pub(crate) fn has_work(&self, qp: &QpShared) -> bool {
        self.current.is_some() || self.messages.has_work(qp)
    }

    /// Whether a message is framed in part.
    pub(crate) const fn is_amid_message(&self) -> bool {
        self.current.is_some()
    }

    /// Leaves a message unfinished: an error ends the stream.
    pub(crate) fn abandon_message(&mut self) {
        self.current = None;
    }

    /// Whether nothing is left to frame or to be answered.
    pub(crate) fn is_idle(&self, qp: &QpShared) -> bool {
        self.current.is_none() && self.messages.is_idle(qp)
    }

    /// Frames whole FPDUs for one segment that starts at [`framed_end`](Self::framed_end), and
    /// takes from `room` what they need.
    ///
    /// Normally they fit the segment. Only when not even the smallest FPDU does (EMSS below 128)
    /// is one framed all the same, and then spans segments (RFC 5044 §4.5).
    pub(crate) fn frame_segment(&mut self, qp: &QpShared, rnic: &RnicShared, room: &mut Room) {
        let mut left = room.segment_len;
        let mut first = true;
        while first || left >= FPDU_LEN_MIN {
            if self.current.is_none() {
                self.current = self.messages.next(qp, rnic);
            }
            let Some(message) = &self.current else { return };
            let cut = if first { room.cut } else { Cut::IfWorthwhile };
            let Some(payload_len) = self.next_payload_len(message, left, cut) else { return };
            let layout = self.grid.layout(self.framed_end, message.ulpdu_len(payload_len));
            let fragments = FRAGMENTS_PER_FPDU + 2 * layout.marker_count();
            if fragments > room.fragments && !first {
                return;
            }
            room.fragments = room.fragments.saturating_sub(fragments);
            let wire_len = layout.wire_len();
            self.frame_fpdu(payload_len, wire_len);
            left = left.saturating_sub(wire_len);
            first = false;
        }
    }

    /// Payload octets of the FPDU that comes next, when `left` octets of the segment are free;
    /// `None` when it is better to end the segment here.
    fn next_payload_len(&self, message: &Message, left: usize, cut: Cut) -> Option<u32> {
        let remaining = message.len - message.framed_len;
        let fits = self.grid.mulpdu_for_room(self.framed_end, left).unwrap_or(0);
        if message.ulpdu_len(remaining) <= fits {
            return Some(remaining);
        }
        let mulpdu = match cut {
            Cut::Never => return None,
            // RFC 5044 §4.5: MULPDU is never reported below 128, even if that breaks alignment.
            Cut::Always => fits.max(MULPDU_MIN),
            // RFC 5044 §4.5 lets MULPDU shrink to the room left in the segment, not below 128.
            Cut::IfWorthwhile if message.inline.is_empty() && fits >= MULPDU_MIN => fits,
            Cut::IfWorthwhile => return None,
        };
        Some(ddp::tx::payload_len(&message.target, remaining, mulpdu))
    }

    fn frame_fpdu(&mut self, payload_len: u32, wire_len: usize) {
        let message = self.current.as_mut().expect("a message is being framed");
        let offset = message.framed_len;
        message.framed_len += payload_len;
        let last = message.framed_len == message.len;
        let source = message.source;
        let front = message.front(self.version, offset, last);
        let wire_len = u32::try_from(wire_len).expect("an FPDU is at most 65288 octets");
        let start = self.framed_end;
        self.framed_end = start + u64::from(wire_len);
        self.fpdus.push(Fpdu { start, wire_len, front, source, offset, len: payload_len });
        self.fpdus_framed += 1;
        self.messages.framed(source, last.then_some(self.framed_end));
        if last {
            self.current = None;
        }
    }

    /// TCP has acknowledged everything before `snd_una`. Returns `false` when a completion was
    /// lost.
    #[must_use]
    pub(crate) fn acknowledged(&mut self, qp: &QpShared, snd_una: StreamOffset) -> bool {
        self.snd_una = snd_una;
        let messages = &mut self.messages;
        self.fpdus.release(snd_una, |source| messages.acknowledged(source));
        self.messages.send_queue.complete(qp, snd_una)
    }

    /// Completes requests whose Response was delivered, or that send no message. Returns `false` when a completion was lost.
    #[must_use]
    pub(crate) fn complete_answered(&mut self, qp: &QpShared) -> bool {
        !self.messages.take_answered() || self.messages.send_queue.complete(qp, self.snd_una)
    }

    /// Whether TCP has acknowledged all that is framed.
    pub(crate) fn all_acknowledged(&self) -> bool {
        self.snd_una >= self.framed_end
    }

    /// Adds the octets in `range` to `frame`.
    #[inline]
    pub(crate) fn gather<'a>(
        &'a self,
        range: Range<StreamOffset>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let mut index = self.fpdus.index_after(range.start);
        while let Some(fpdu) = self.fpdus.get(index) {
            if fpdu.start >= range.end {
                break;
            }
            index += 1;
            if range.start <= fpdu.start && fpdu.end() <= range.end {
                let crc = self.crc.then(Crc32c::new);
                let messages = &self.messages;
                fpdu.framed(self.grid).emit(&mut Runs { frame, messages, fpdu, crc, known_crc: 0 });
            } else {
                self.gather_part(fpdu, &range, frame);
            }
        }
    }

    /// Adds the part of an FPDU that is in `range`: a re-cut retransmission, or a window that ends
    /// inside.
    #[cold]
    fn gather_part<'a>(
        &'a self,
        fpdu: &'a Fpdu,
        range: &Range<StreamOffset>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let framed = fpdu.framed(self.grid);
        let messages = &self.messages;
        // The CRC is over all of it, whatever is sent of it.
        let mut whole = DigestOnly { messages, fpdu, crc: Crc32c::new() };
        if self.crc {
            framed.emit(&mut whole);
        }
        let known_crc = if self.crc { whole.crc.finish() } else { 0 };
        let from = range.start.max(fpdu.start).index_from(fpdu.start);
        let to = range.end.min(fpdu.end()).index_from(fpdu.start);
        framed.emit_part(from..to, &mut Runs { frame, messages, fpdu, crc: None, known_crc });
    }
}

/// Descriptors for which there is room from the start.
const FPDUS_RESERVED: usize = 4096;

/// Writes an FPDU's runs into a frame and computes its CRC on the way.
struct Runs<'a, 'r, 'f> {
    frame: &'r mut FrameBuilder<'a, 'f>,
    messages: &'a Messages,
    fpdu: &'a Fpdu,
    crc: Option<Crc32c>,
    known_crc: u32,
}

impl RunSink for Runs<'_, '_, '_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(octets);
        }
        self.frame.push_inline(octets);
    }

    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        let (offset, len) = in_source(self.fpdu, offset, len);
        let Self { frame, messages, fpdu, crc, known_crc: _ } = self;
        messages.payload(fpdu.source, offset, len, |run| {
            if let Some(crc) = crc {
                digest(run, crc);
            }
            frame.push_memory(run.fragment());
        });
    }

    #[inline]
    fn crc(&mut self, part: Range<usize>) {
        // RFC 5044 §4.1: with CRCs off the field is there all the same, content arbitrary.
        let value = self.crc.map_or(self.known_crc, Crc32c::finish);
        self.frame.push_inline(&crc32c::to_wire(value)[part]);
    }
}

/// Computes an FPDU's CRC and nothing else.
struct DigestOnly<'a> {
    messages: &'a Messages,
    fpdu: &'a Fpdu,
    crc: Crc32c,
}

impl RunSink for DigestOnly<'_> {
    fn inline(&mut self, octets: &[u8]) {
        self.crc.update(octets);
    }

    fn payload(&mut self, offset: usize, len: usize) {
        let (offset, len) = in_source(self.fpdu, offset, len);
        let crc = &mut self.crc;
        self.messages.payload(self.fpdu.source, offset, len, |run| digest(run, crc));
    }

    fn crc(&mut self, _part: Range<usize>) {}
}

#[inline]
fn digest(run: SharedSlice<'_>, crc: &mut Crc32c) {
    *crc = Crc32c::from_state(crate::mem::crc32c_append_shared(crc.state(), run));
}

/// A run of an FPDU's payload as a run of its source.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a run is inside an FPDU of at most 64 KiB")]
const fn in_source(fpdu: &Fpdu, offset: usize, len: usize) -> (u32, u32) {
    (fpdu.offset + offset as u32, len as u32)
}
