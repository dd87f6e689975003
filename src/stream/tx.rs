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

use arrayvec::ArrayVec;
use urnic_netdev::Fragment;

use crate::ddp;
use crate::limits::{FRAGMENTS_MAX, MULPDU_MIN};
use crate::mem::SharedSlice;
use crate::mpa::marker::MarkerGrid;
use crate::mpa::tx::RunSink;
use crate::stream::fpdus::{Fpdu, FpduQueue, Source};
use crate::stream::messages::{Message, Messages};
use crate::types::StreamOffset;
use crate::verbs::{QpShared, RnicShared};
use crate::wire::ProtocolVersion;
use crate::wire::crc32c::{self, Crc32c};

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
}

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
        let segment_start = self.framed_end;
        loop {
            if self.current.is_none() {
                self.current = self.messages.next(qp, rnic);
            }
            let Some(message) = &self.current else { return };
            let used = self.framed_end.index_from(segment_start);
            let left = room.segment_len.saturating_sub(used);
            let Some(payload_len) = self.next_payload_len(message, left, used == 0) else { return };
            let fragments = self.fragments_of(message, payload_len);
            if fragments > room.fragments && used > 0 {
                return;
            }
            room.fragments = room.fragments.saturating_sub(fragments);
            self.frame_fpdu(payload_len);
        }
    }

    /// Payload octets of the FPDU that comes next, when `left` octets of the segment are free;
    /// `None` when it is better to end the segment here.
    fn next_payload_len(&self, message: &Message, left: usize, first: bool) -> Option<u32> {
        let remaining = message.len - message.framed_len;
        let front_len = message.target.header_len() + message.inline.len();
        let whole = front_len + remaining as usize;
        let fits = self.grid.mulpdu_for_room(self.framed_end, left).unwrap_or(0);
        if whole <= fits {
            return Some(remaining);
        }
        if first {
            // RFC 5044 §4.5: MULPDU is never reported below 128, even if that breaks alignment.
            return Some(ddp::tx::payload_len(&message.target, remaining, fits.max(MULPDU_MIN)));
        }
        // RFC 5044 §4.5 lets MULPDU shrink to the room left in the segment. A message that fills
        // segments by itself is better left to start with the next one.
        (message.inline.is_empty() && fits >= MULPDU_MIN)
            .then(|| ddp::tx::payload_len(&message.target, remaining, fits))
    }

    fn fragments_of(&self, message: &Message, payload_len: u32) -> usize {
        let ulpdu_len = message.target.header_len() + message.inline.len() + payload_len as usize;
        let markers = self.grid.layout(self.framed_end, ulpdu_len).marker_count();
        FRAGMENTS_PER_FPDU + 2 * markers
    }

    fn frame_fpdu(&mut self, payload_len: u32) {
        let message = self.current.as_mut().expect("a message is being framed");
        let start = self.framed_end;
        let offset = message.framed_len;
        message.framed_len += payload_len;
        let last = message.framed_len == message.len;
        let control = message.control(self.version);
        let header = message.target.segment_header(control, self.version, offset, last);
        let mut octets = [0; crate::wire::ddp::DdpHeader::LEN_MAX];
        let header_len = header.emit(&mut octets);
        let mut front = ArrayVec::new();
        front.extend(octets[..header_len].iter().copied());
        front.extend(message.inline.iter().copied());
        let source = message.source;
        let framed =
            crate::mpa::tx::Fpdu::new(self.grid, start, &front, payload_len as usize).wire_len();
        let wire_len = u32::try_from(framed).expect("an FPDU is at most 65288 octets");
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

    /// Completes requests whose Response was delivered. Returns `false` when a completion was lost.
    #[must_use]
    pub(crate) fn complete_answered(&mut self, qp: &QpShared) -> bool {
        !self.messages.take_answered() || self.messages.send_queue.complete(qp, self.snd_una)
    }

    /// Adds the octets in `range` to `gather`.
    pub(crate) fn gather(&self, range: Range<StreamOffset>, gather: &mut Gather) {
        for fpdu in self.fpdus.overlapping(range.clone()) {
            let framed =
                crate::mpa::tx::Fpdu::new(self.grid, fpdu.start, &fpdu.front, fpdu.len as usize);
            let mut runs = Runs {
                gather,
                messages: &self.messages,
                fpdu,
                crc: self.crc.then(Crc32c::new),
                known_crc: None,
            };
            if range.start <= fpdu.start && fpdu.end() <= range.end {
                framed.emit(&mut runs);
                continue;
            }
            // A part of an FPDU: the CRC is over all of it.
            let mut whole = DigestOnly { messages: &self.messages, fpdu, crc: Crc32c::new() };
            framed.emit(&mut whole);
            runs.crc = None;
            runs.known_crc = Some(whole.crc.finish());
            let from = range.start.max(fpdu.start).index_from(fpdu.start);
            let to = range.end.min(fpdu.end()).index_from(fpdu.start);
            framed.emit_part(from..to, &mut runs);
        }
    }
}

/// Descriptors for which there is room from the start.
const FPDUS_RESERVED: usize = 4096;

/// The content of one frame: inline octets, and where the rest is gathered from.
///
/// Kept and reused from frame to frame, so that filling it allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    inline: Vec<u8>,
    runs: Vec<Run>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    /// Inline octets.
    Inline { start: u32, len: u32 },
    /// Octets of a source's payload.
    Payload { source: Source, offset: u32, len: u32 },
}

impl Gather {
    pub(crate) fn clear(&mut self) {
        self.inline.clear();
        self.runs.clear();
        self.len = 0;
    }

    /// Octets described.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push_inline(&mut self, octets: &[u8]) {
        let at = u32::try_from(self.inline.len()).expect("a frame is below 4 GiB");
        let added = u32::try_from(octets.len()).expect("a frame is below 4 GiB");
        self.inline.extend_from_slice(octets);
        self.len += octets.len();
        if let Some(Run::Inline { start: _, len }) = self.runs.last_mut() {
            *len += added;
        } else {
            self.runs.push(Run::Inline { start: at, len: added });
        }
    }

    fn push_payload(&mut self, source: Source, offset: u32, len: u32) {
        self.len += len as usize;
        self.runs.push(Run::Payload { source, offset, len });
    }

    /// Appends the fragments that make up the frame to `fragments`, as many as it has room for;
    /// framing for TCP keeps below [`FRAGMENTS_MAX`].
    pub(crate) fn fragments<'a>(&'a self, tx: Option<&'a TxState>, fragments: &mut Fragments<'a>) {
        for run in &self.runs {
            match *run {
                Run::Inline { start, len } => {
                    let octets = &self.inline[start as usize..(start + len) as usize];
                    if fragments.try_push(Fragment::from_slice(octets)).is_err() {
                        return;
                    }
                }
                Run::Payload { source, offset, len } => {
                    let tx = tx.expect("payload is only gathered in full operation");
                    let mut full = false;
                    tx.messages.payload(source, offset, len, |run| {
                        full |= fragments.try_push(run.fragment()).is_err();
                    });
                    if full {
                        return;
                    }
                }
            }
        }
    }
}

/// The fragments of one frame, on the stack. Filled in place: it is too large to be returned.
pub type Fragments<'a> = ArrayVec<Fragment<'a>, FRAGMENTS_MAX>;

/// Writes an FPDU's runs into a [`Gather`] and computes its CRC on the way.
struct Runs<'a> {
    gather: &'a mut Gather,
    messages: &'a Messages,
    fpdu: &'a Fpdu,
    crc: Option<Crc32c>,
    known_crc: Option<u32>,
}

impl RunSink for Runs<'_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(octets);
        }
        self.gather.push_inline(octets);
    }

    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        let (offset, len) = in_source(self.fpdu, offset, len);
        if let Some(crc) = &mut self.crc {
            self.messages.payload(self.fpdu.source, offset, len, |run| digest(run, crc));
        }
        self.gather.push_payload(self.fpdu.source, offset, len);
    }

    #[inline]
    fn crc(&mut self, part: Range<usize>) {
        // RFC 5044 §4.1: with CRCs off the field is there all the same, content arbitrary.
        let value = match self.crc {
            Some(crc) => crc.finish(),
            None => self.known_crc.unwrap_or(0),
        };
        self.gather.push_inline(&crc32c::to_wire(value)[part]);
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
