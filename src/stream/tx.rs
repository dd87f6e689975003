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
use crate::stream::fpdus::{Fpdu, FpduQueue, FpduRun, NextFpdu};
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
            fpdus: FpduQueue::with_capacity(RUNS_RESERVED),
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
        let wire_len = u32::try_from(wire_len).expect("an FPDU is at most 65288 octets");
        let start = self.framed_end;
        self.framed_end = start + u64::from(wire_len);
        let fpdu = NextFpdu { start, wire_len, source, offset, len: payload_len, last };
        self.fpdus.push(&fpdu, || message.head(self.version));
        self.fpdus_framed += 1;
        self.messages.framed(source, 1, last.then_some(self.framed_end));
        if last {
            self.current = None;
        }
    }

    /// Goes on in the message with FPDUs like the last, if each of those was a whole segment: at
    /// most `segments` more of `segment_len` octets. Takes from `room` what they need.
    pub(crate) fn frame_alike(&mut self, segment_len: usize, segments: usize, room: &mut Room) {
        let (Some(message), Some(run)) = (&mut self.current, self.fpdus.back_mut()) else { return };
        // With markers the lengths of payload differ.
        let fits = !self.grid.is_enabled()
            && run.source == message.source
            && run.wire_len as usize == segment_len
            && run.len > 0;
        if !fits {
            return;
        }
        // The last FPDU of the message is another affair, even if it is as long.
        let in_message = (message.len - message.framed_len).saturating_sub(1) / run.len;
        let in_room = room.fragments / FRAGMENTS_PER_FPDU;
        let count = in_message.min(u32::try_from(segments.min(in_room)).unwrap_or(u32::MAX));
        run.count += count;
        message.framed_len += run.len * count;
        room.fragments -= count as usize * FRAGMENTS_PER_FPDU;
        self.framed_end = self.framed_end + u64::from(run.wire_len) * u64::from(count);
        self.fpdus_framed += u64::from(count);
        self.messages.framed(run.source, count, None);
    }

    /// TCP has acknowledged everything before `snd_una`. Returns `false` when a completion was
    /// lost.
    #[must_use]
    pub(crate) fn acknowledged(&mut self, qp: &QpShared, snd_una: StreamOffset) -> bool {
        self.snd_una = snd_una;
        let messages = &mut self.messages;
        self.fpdus.release(snd_una, |source, count| messages.acknowledged(source, count));
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
        for run in self.fpdus.runs_from(range.start) {
            if run.start >= range.end {
                break;
            }
            self.gather_run(run, &range, frame);
        }
    }

    #[inline]
    fn gather_run<'a>(
        &'a self,
        run: &'a FpduRun,
        range: &Range<StreamOffset>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let messages = &self.messages;
        let numbers = run.numbers_in(range);
        let first = run.offset + numbers.start * run.len;
        let len = (numbers.end - numbers.start) * run.len;
        let payload = messages.contiguous(run.source, first, len);
        let crc = self.crc.then(Crc32c::new);
        for fpdu in numbers.map(|number| run.fpdu(number)) {
            if range.start <= fpdu.start() && fpdu.end() <= range.end {
                let front = fpdu.front();
                // Found once for all: most messages are in one place.
                let at = (fpdu.offset() - first) as usize;
                let payload = payload.map(|all| all.part(at, run.len as usize));
                let source = Payload { messages, fpdu, contiguous: payload };
                let mut runs = Runs { frame, payload: source, crc, known_crc: 0 };
                fpdu.framed(&front, self.grid).emit(&mut runs);
            } else {
                self.gather_part(fpdu, range, frame);
            }
        }
    }

    /// Adds the part of an FPDU that is in `range`: a re-cut retransmission, or a window that ends
    /// inside.
    #[cold]
    fn gather_part<'a>(
        &'a self,
        fpdu: Fpdu<'a>,
        range: &Range<StreamOffset>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let front = fpdu.front();
        let framed = fpdu.framed(&front, self.grid);
        let payload = Payload { messages: &self.messages, fpdu, contiguous: None };
        // The CRC is over all of it, whatever is sent of it.
        let mut whole = DigestOnly { payload, crc: Crc32c::new() };
        if self.crc {
            framed.emit(&mut whole);
        }
        let known_crc = if self.crc { whole.crc.finish() } else { 0 };
        let from = range.start.max(fpdu.start()).index_from(fpdu.start());
        let to = range.end.min(fpdu.end()).index_from(fpdu.start());
        framed.emit_part(from..to, &mut Runs { frame, payload, crc: None, known_crc });
    }
}

/// Runs for which there is room from the start.
const RUNS_RESERVED: usize = 1024;

/// Where an FPDU's payload is.
#[derive(Clone, Copy)]
struct Payload<'a> {
    messages: &'a Messages,
    fpdu: Fpdu<'a>,
    /// All of it, when that is known and in one place.
    contiguous: Option<SharedSlice<'a>>,
}

impl<'a> Payload<'a> {
    /// Calls `each` with the runs of memory that hold a part of it.
    #[inline]
    fn part(&self, offset: usize, len: usize, mut each: impl FnMut(SharedSlice<'a>)) {
        if let Some(all) = self.contiguous {
            return each(all.part(offset, len));
        }
        let narrow = |octets| u32::try_from(octets).expect("an FPDU has at most 64 KiB");
        let (offset, len) = (self.fpdu.offset() + narrow(offset), narrow(len));
        self.messages.payload(self.fpdu.source(), offset, len, each);
    }
}

/// Writes an FPDU's runs into a frame and computes its CRC on the way.
struct Runs<'a, 'r, 'f> {
    frame: &'r mut FrameBuilder<'a, 'f>,
    payload: Payload<'a>,
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
        let Self { frame, payload, crc, known_crc: _ } = self;
        payload.part(offset, len, |run| {
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
    payload: Payload<'a>,
    crc: Crc32c,
}

impl RunSink for DigestOnly<'_> {
    fn inline(&mut self, octets: &[u8]) {
        self.crc.update(octets);
    }

    fn payload(&mut self, offset: usize, len: usize) {
        let Self { payload, crc } = self;
        payload.part(offset, len, |run| digest(run, crc));
    }

    fn crc(&mut self, _part: Range<usize>) {}
}

#[inline]
fn digest(run: SharedSlice<'_>, crc: &mut Crc32c) {
    *crc = Crc32c::from_state(crate::mem::crc32c_append_shared(crc.state(), run));
}
