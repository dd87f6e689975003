//! Cuts messages at the MULPDU and describes FPDUs. Copies only the payload of Read Responses: the
//! application may change that memory before a retransmission.

use crate::ddp;
use crate::limits::{MARKER_LEN, MULPDU_MIN, ULPDU_LEN_MAX};
use crate::mem::{Access, Refusal, SharedSlice, TableLease};
use crate::mpa::marker::fpdu_len;
use crate::stream::error::StreamError;
use crate::stream::tx::TxState;
use crate::stream::tx::fpdus::NextFpdu;
use crate::stream::tx::gather::{Payload, keep};
use crate::stream::tx::kept;
use crate::stream::tx::message::{Message, Source};
use crate::types::{Msn, TaggedOffset};
use crate::verbs::{QpShared, RnicShared};
use crate::wire::ddp::TaggedHeader;
use crate::wire::rdmap::ReadRequest;

/// Besides two per marker: head, scatter elements, tail.
const FRAGMENTS_PER_FPDU: usize = 2 + crate::limits::SGE_MAX;

/// Reason why nothing was framed, and never will be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameError {
    /// A local error.
    Local(StreamError),
    /// A Read Request's memory may no longer be read. `request` describes the unanswered part.
    Source { refusal: Refusal, request: ReadRequest, msn: Msn },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) segment_len: usize,
    pub(crate) fragments: usize,
    /// For the first FPDU of the segment; later ones are cut only if that is worthwhile.
    pub(crate) cut: Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Always,
    /// Only if the part that fits is worth an FPDU of its own.
    IfWorthwhile,
    /// No: the segment is short only because of the peer's window, which will grow.
    Never,
}

/// The shortest FPDU: a tagged DDP header without payload, and no marker.
const FPDU_LEN_MIN: usize = fpdu_len(TaggedHeader::LEN);

impl TxState {
    /// Frames whole FPDUs for one segment that starts at [`framed_end`](Self::framed_end), and
    /// subtracts their fragments from `room`. If not even the smallest FPDU fits (EMSS below 128),
    /// one is framed nevertheless and spans segments (RFC 5044 §4.5). On an error nothing was
    /// framed.
    #[inline]
    pub(crate) fn frame_segment(
        &mut self,
        qp: &QpShared,
        rnic: &RnicShared,
        room: &mut Room,
    ) -> Result<(), FrameError> {
        if self.frame_like_last(room) {
            return Ok(());
        }
        self.frame_any(qp, rnic, room)
    }

    /// Fast path inside a message: frames one more FPDU like the last, if
    /// [`frame_any`](Self::frame_any) would fill the segment with exactly that FPDU. Requires a
    /// request that continues. All else falls back to `frame_any`. `tx/tests.rs` compares both.
    #[inline(always)]
    pub(super) fn frame_like_last(&mut self, room: &mut Room) -> bool {
        let is_request =
            self.current.as_ref().is_some_and(|message| matches!(message.source, Source::Work(_)));
        if !is_request || room.cut == Cut::Never {
            return false;
        }
        let (1, len) = self.alike(room.segment_len & !3, 1) else { return false };
        let wire_len = self.repeat_last(1, len);
        // The first FPDU of a segment is framed whatever number of fragments it takes.
        let fragments = FRAGMENTS_PER_FPDU + 2 * self.grid.markers_max(wire_len);
        room.fragments = room.fragments.saturating_sub(fragments);
        true
    }

    /// Counts the FPDUs like the last before the message's last one, which has its own header (L):
    /// at most `most`, if each fills a segment of `segment_len` bytes exactly as
    /// [`frame_any`](Self::frame_any) would. Returns their number and their payload bytes.
    #[inline(always)]
    fn alike(&self, segment_len: usize, most: u32) -> (u32, u32) {
        let (Some(message), Some(run)) = (&self.current, self.fpdus.back()) else { return (0, 0) };
        let ulpdu_len = message.ulpdu_len(run.lengths.first_len());
        // Between the bounds of a ULPDU the last FPDU was cut to fill its room, so it has no pad,
        // and none of its length has more payload. With one marker less or more, an FPDU has four
        // bytes of payload more or less.
        let fits = run.source == message.source
            && run.wire_len() as usize == segment_len
            && (MULPDU_MIN + MARKER_LEN..=ULPDU_LEN_MAX - MARKER_LEN).contains(&ulpdu_len);
        if !fits {
            return (0, 0);
        }
        let left = (message.len - message.framed_len).saturating_sub(1);
        run.lengths.as_many(run.count, left, most)
    }

    /// Frames `count` more FPDUs like the last. Returns the stream bytes of each.
    #[inline(always)]
    fn repeat_last(&mut self, count: u32, len: u32) -> usize {
        let (Some(message), Some(run)) = (&mut self.current, self.fpdus.back_mut()) else {
            return 0;
        };
        debug_assert_eq!(message.framed_len, run.offset_of(run.count));
        run.count += count;
        message.framed_len += len;
        let wire_len = run.wire_len();
        self.framed_end = self.framed_end + u64::from(wire_len) * u64::from(count);
        self.fpdus_framed += u64::from(count);
        self.messages.framed(message.source, count, None);
        wire_len as usize
    }

    #[inline(never)]
    pub(super) fn frame_any(
        &mut self,
        qp: &QpShared,
        rnic: &RnicShared,
        room: &mut Room,
    ) -> Result<(), FrameError> {
        // Open while memory is read for a peer: a revocation returns only after the last read.
        let mut lease = TableLease::new(&rnic.table);
        let mut left = room.segment_len;
        let mut first = true;
        // spec: MPA-5.1-3, TCP-A.1-2
        loop {
            // Even if the segment is full: PSH depends on whether a message follows.
            if self.current.is_none() {
                match self.begin_message(qp, &mut lease) {
                    Ok(()) => {}
                    // FPDUs framed before the error go first; the next call finds the error again.
                    Err(_) if !first => return Ok(()),
                    Err(error) => return Err(FrameError::Local(error)),
                }
            }
            let Some(message) = &self.current else { return Ok(()) };
            if left < FPDU_LEN_MIN && !first {
                return Ok(());
            }
            let cut = if first { room.cut } else { Cut::IfWorthwhile };
            let Some(payload_len) = self.next_payload_len(message, left, cut) else {
                return Ok(());
            };
            let layout = self.grid.layout(self.framed_end, message.ulpdu_len(payload_len));
            let wire_len = layout.wire_len();
            let fragments = fragments_of(message, wire_len, layout.marker_count());
            if fragments > room.fragments && !first {
                return Ok(());
            }
            if is_read_response(message) && payload_len > 0 {
                if self.kept.room() < wire_len {
                    return Ok(());
                }
                match self.snapshot(qp, &mut lease, payload_len, wire_len) {
                    Ok(()) => {}
                    Err(_) if !first => return Ok(()),
                    Err(error) => return Err(error),
                }
            } else {
                self.frame_fpdu(payload_len, wire_len);
            }
            room.fragments = room.fragments.saturating_sub(fragments);
            left = left.saturating_sub(wire_len);
            first = false;
        }
    }

    /// Not inlined: most segments continue the current message.
    #[inline(never)]
    fn begin_message(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
    ) -> Result<(), StreamError> {
        self.current = self.messages.next(qp, lease)?;
        Ok(())
    }

    #[inline(never)]
    fn snapshot(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
        payload_len: u32,
        wire_len: usize,
    ) -> Result<(), FrameError> {
        let memory = self.readable(qp, lease, payload_len)?;
        self.frame_fpdu(payload_len, wire_len);
        let fpdu = self.fpdus.last().expect("one was framed");
        let contiguous = Some(memory);
        let payload = Payload { messages: &self.messages, fpdu, contiguous };
        keep(&mut self.kept, payload, self.grid, self.crc);
        self.counters.bytes_snapshot += u64::from(payload_len);
        Ok(())
    }

    /// Returns the next `len` bytes that the Read Request asks for. RFC 5042 §6.3.3: access ends
    /// when it is revoked, even in the middle of a Response. RFC 5040 §4.8: the Terminate then says
    /// how far it has come.
    fn readable<'g>(
        &self,
        qp: &QpShared,
        lease: &'g mut TableLease<'_>,
        len: u32,
    ) -> Result<SharedSlice<'g>, FrameError> {
        let message = self.current.as_ref().expect("a message is being framed");
        let request = self.messages.read_request(message.source);
        let (request, msn) = request.expect("a Read Response answers a Read Request");
        let done = u64::from(message.framed_len);
        let from = TaggedOffset(request.source_to.0.wrapping_add(done));
        let (stag, need) = (request.source_stag, Access::REMOTE_READ);
        let grant = lease.open().check(stag, from, len as usize, need, qp.pd, qp.number);
        grant.map(|grant| grant.slice()).map_err(|refusal| {
            // spec: RDMAP-4.8-6
            let request = ReadRequest {
                sink_to: TaggedOffset(request.sink_to.0.wrapping_add(done)),
                source_to: from,
                size: request.size - message.framed_len,
                ..*request
            };
            FrameError::Source { refusal, request, msn }
        })
    }

    /// Payload bytes of the next FPDU if `left` bytes of the segment are free; `None` for no FPDU.
    fn next_payload_len(&self, message: &Message, left: usize, cut: Cut) -> Option<u32> {
        let remaining = message.len - message.framed_len;
        // spec: DDP-3-1
        let fits = self.grid.mulpdu_for_room(self.framed_end, left).unwrap_or(0);
        // spec: DDP-5.2-6
        if message.ulpdu_len(remaining) <= fits {
            return Some(remaining);
        }
        let mulpdu = match cut {
            Cut::Never => return None,
            // RFC 5044 §4.5: MULPDU is never reported below 128, even if that breaks alignment.
            // spec: MPA-3-2, MPA-4.5-7
            Cut::Always => fits.max(MULPDU_MIN),
            // RFC 5044 §4.5 lets MULPDU shrink to the room left in the segment, not below 128.
            // spec: MPA-4.5-5
            Cut::IfWorthwhile if message.inline.is_empty() && fits >= MULPDU_MIN => fits,
            Cut::IfWorthwhile => return None,
        };
        Some(ddp::tx::payload_len(&message.target, remaining, mulpdu))
    }

    #[inline(always)]
    fn frame_fpdu(&mut self, payload_len: u32, wire_len: usize) {
        let message = self.current.as_mut().expect("a message is being framed");
        // spec: DDP-5.3-2
        let offset = message.framed_len;
        message.framed_len += payload_len;
        // spec: DDP-4.1-2, DDP-4.1-3
        let last = message.framed_len == message.len;
        let source = message.source;
        let wire_len = u32::try_from(wire_len).expect("an FPDU is at most 65288 bytes");
        let start = self.framed_end;
        self.framed_end = start + u64::from(wire_len);
        let fpdu = NextFpdu { start, wire_len, source, offset, len: payload_len, last };
        self.fpdus.push(self.grid, &fpdu, || message.head(self.version));
        self.fpdus_framed += 1;
        self.messages.framed(source, 1, last.then_some(self.framed_end));
        if last {
            self.current = None;
        }
    }

    /// Fast path: describes a run of at most `segments` FPDUs like the last, each filling a segment
    /// of `segment_len` bytes, in one step. If the message, the FPDUs' lengths or `room` do not
    /// allow more, [`frame_segment`](Self::frame_segment) goes on. `tx/tests.rs` compares both.
    pub(crate) fn frame_alike(
        &mut self,
        qp: &QpShared,
        rnic: &RnicShared,
        segment_len: usize,
        segments: usize,
        room: &mut Room,
    ) {
        let (Some(message), Some(run)) = (&self.current, self.fpdus.back()) else { return };
        let first = run.count;
        let is_answer = is_read_response(message);
        let fragments = fragments_of(message, segment_len, self.grid.markers_max(segment_len));
        let mut most = segments.min(room.fragments / fragments);
        if is_answer {
            most = most.min(self.kept.room() / segment_len);
        }
        let (count, len) = self.alike(segment_len, u32::try_from(most).unwrap_or(u32::MAX));
        if count == 0 {
            return;
        }
        let mut lease = TableLease::new(&rnic.table);
        let memory = if is_answer {
            // The next FPDU's framing finds the refusal again.
            let Ok(memory) = self.readable(qp, &mut lease, len) else { return };
            Some(memory)
        } else {
            None
        };
        self.repeat_last(count, len);
        room.fragments -= count as usize * fragments;
        if let (Some(memory), Some(run)) = (memory, self.fpdus.back()) {
            let start = run.offset_of(first);
            for number in first..first + count {
                let fpdu = run.fpdu(number);
                let at = (fpdu.offset() - start) as usize;
                let contiguous = Some(memory.part(at, fpdu.len() as usize));
                let payload = Payload { messages: &self.messages, fpdu, contiguous };
                keep(&mut self.kept, payload, self.grid, self.crc);
            }
            self.counters.bytes_snapshot += u64::from(len);
        }
    }
}

const fn is_read_response(message: &Message) -> bool {
    matches!(message.source, Source::Response(_)) && message.inline.is_empty()
}

fn fragments_of(message: &Message, wire_len: usize, markers: usize) -> usize {
    if is_read_response(message) {
        kept::fragments(wire_len)
    } else {
        FRAGMENTS_PER_FPDU + 2 * markers
    }
}
