//! Writes described FPDUs into a frame, or into the memory for kept bytes, with their CRCs.

use std::ops::Range;

use crate::limits::FRAME_PAYLOAD_MAX;
use crate::mem::{SharedSlice, copy_and_digest, crc32c_append_shared};
use crate::mpa::marker::MarkerGrid;
use crate::mpa::tx::RunSink;
use crate::stream::tx::TxState;
use crate::stream::tx::fpdus::{FpduRun, QueuedFpdu};
use crate::stream::tx::frame::{FrameBuilder, Mark};
use crate::stream::tx::kept::Kept;
use crate::stream::tx::message::Source;
use crate::stream::tx::turn::Messages;
use crate::types::StreamOffset;
use crate::wire::crc32c::{self, Crc32c};
use crate::wire::mpa::CRC_LEN;

impl TxState {
    /// Copies an FPDU that `range` contains only in part, so that all its transmissions have the
    /// same bytes. Call before gathering the range, unless it is known to hold whole FPDUs.
    // spec: TCP-A.1-6
    pub(crate) fn keep_cut(&mut self, range: &Range<StreamOffset>) {
        self.keep_across(range.start);
        self.keep_across(range.end);
    }

    pub(super) fn keep_across(&mut self, at: StreamOffset) {
        if let Some(fpdu) = self.fpdus.across(at)
            && !self.kept.holds(at)
            && !self.is_gone(&(at..at + 1))
        {
            let payload = Payload { messages: &self.messages, fpdu, contiguous: None };
            keep(&mut self.kept, payload, self.grid, self.crc);
            self.counters.bytes_kept += u64::from(fpdu.len());
        }
    }

    /// Keeps the framed, unacknowledged bytes of requests that are about to be flushed, because
    /// their memory belongs to the application again. Keeps at most `bytes_max` bytes.
    ///
    /// If there are more, the bytes in the middle are given up: they are never retransmitted. The
    /// oldest are kept because the peer needs them next. The newest are kept because they may be
    /// unsent, and the Terminate follows them (RFC 5040 §7.1).
    pub(crate) fn keep_requests(&mut self, bytes_max: usize) {
        let len_of = |fpdu: QueuedFpdu<'_>| fpdu.end().index_from(fpdu.start());
        let open = self.fpdus.iter().filter(|fpdu| is_open(&self.kept, *fpdu));
        let all: usize = open.map(len_of).sum();
        let mut excess = all.saturating_sub(bytes_max);
        let mut oldest_left = bytes_max.saturating_sub(FRAME_PAYLOAD_MAX);
        for fpdu in self.fpdus.iter() {
            if !is_open(&self.kept, fpdu) {
                continue;
            }
            let wire_len = len_of(fpdu);
            if excess > 0 && wire_len > oldest_left {
                let start = if self.gone.is_empty() { fpdu.start() } else { self.gone.start };
                self.gone = start..fpdu.end();
                excess = excess.saturating_sub(wire_len);
                oldest_left = 0;
                continue;
            }
            oldest_left = oldest_left.saturating_sub(wire_len);
            let payload = Payload { messages: &self.messages, fpdu, contiguous: None };
            keep(&mut self.kept, payload, self.grid, self.crc);
            self.counters.bytes_kept += u64::from(fpdu.len());
        }
    }

    /// Adds the bytes in `range` to `frame`.
    #[inline]
    pub(crate) fn gather<'a>(
        &'a self,
        range: Range<StreamOffset>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        // Common case: the bytes to send were framed last, and the stream keeps no bytes.
        if self.kept.is_empty()
            && let Some(run) = self.fpdus.back().filter(|run| run.start <= range.start)
        {
            return self.gather_run(run, &range, frame);
        }
        self.gather_any(range, frame);
    }

    #[inline(never)]
    fn gather_any<'a>(&'a self, range: Range<StreamOffset>, frame: &mut FrameBuilder<'a, '_>) {
        self.kept.gather(range, frame, |rest, frame| {
            for run in self.fpdus.runs_from(rest.start) {
                if run.start >= rest.end {
                    break;
                }
                self.gather_run(run, &rest, frame);
            }
        });
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
        debug_assert!(run.is_whole(&numbers, range), "cut, so kept");
        let first = run.offset_of(numbers.start);
        let len = run.offset_of(numbers.end) - first;
        let payload = messages.contiguous(run.source, first, len);
        if let Some(payload) = payload
            && run.gather_tagged(self.grid, numbers.clone(), payload, self.crc, frame)
        {
            return;
        }
        self.gather_each(run, numbers, payload, frame);
    }

    /// Adds the FPDUs with these numbers to `frame`. `payload` is their payload if it is in one run
    /// of memory.
    pub(super) fn gather_each<'a>(
        &'a self,
        run: &'a FpduRun,
        numbers: Range<u32>,
        payload: Option<SharedSlice<'a>>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let messages = &self.messages;
        let first = run.offset_of(numbers.start);
        let crc = self.crc.then(Crc32c::new);
        let len = run.lengths.payload_len(numbers.start) as usize;
        let run_len = self.grid.run_len(len);
        let stages = frame.stages_run(len, run_len, self.crc);
        let leaves_digest = self.crc && len > 0 && !stages;
        for fpdu in numbers.map(|number| run.fpdu(number)) {
            let front = fpdu.front();
            // `payload` is in one run of memory for most messages. It was looked up once for all
            // FPDUs.
            let at = (fpdu.offset() - first) as usize;
            let payload = payload.map(|all| all.part(at, fpdu.len() as usize));
            let payload = Payload { messages, fpdu, contiguous: payload };
            let framed = fpdu.framed(&front, self.grid);
            if leaves_digest && frame.leaves_digests() {
                // Tells the device if the payload is scattered: a digest that resumes after each
                // marker or scatter element takes longer.
                let is_scattered = run_len < len || payload.contiguous.is_none();
                framed.emit(&mut Digested { fpdu: frame.position(), frame, payload, is_scattered });
            } else if stages {
                framed.emit(&mut Stager { fpdu: frame.mark(), frame, payload, crc: self.crc });
            } else {
                framed.emit(&mut Runs { frame, payload, crc });
            }
        }
    }
}

/// Returns true if the FPDU is gathered from the memory of a request, and none of it is kept.
fn is_open(kept: &Kept, fpdu: QueuedFpdu<'_>) -> bool {
    // An FPDU is kept up to its end, so its last byte is kept if any of it is.
    matches!(fpdu.source(), Source::Work(_))
        && fpdu.len() > 0
        && !kept.holds(StreamOffset(fpdu.end().0 - 1))
}

/// Keeps the bytes of an FPDU as its memory is now.
pub(super) fn keep(kept: &mut Kept, payload: Payload<'_>, grid: MarkerGrid, crc: bool) {
    let fpdu = payload.fpdu;
    kept.begin(fpdu.start());
    let crc = crc.then(Crc32c::new);
    let front = fpdu.front();
    let framed = fpdu.framed(&front, grid);
    let len = framed.wire_len();
    let Some(room) = kept.room_for(len) else {
        return framed.emit(&mut Keeper { kept, payload, crc });
    };
    framed.emit(&mut Writer { room, payload, crc });
    kept.appended(len);
}

/// Location of an FPDU's payload.
#[derive(Clone, Copy)]
pub(super) struct Payload<'a> {
    pub(super) messages: &'a Messages,
    pub(super) fpdu: QueuedFpdu<'a>,
    /// The whole payload, if it is known to be in one run of memory.
    pub(super) contiguous: Option<SharedSlice<'a>>,
}

impl<'a> Payload<'a> {
    /// Calls `each` with the runs of memory that hold `len` bytes of the payload from `offset` on.
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

/// Writes an FPDU's runs into a frame and computes its CRC at the same time.
struct Runs<'a, 'r, 'f> {
    frame: &'r mut FrameBuilder<'a, 'f>,
    payload: Payload<'a>,
    crc: Option<Crc32c>,
}

impl<'a> Runs<'a, '_, '_> {
    #[inline]
    fn add(&mut self, run: SharedSlice<'a>) {
        if let Some(crc) = &mut self.crc {
            digest(run, crc);
        }
        self.frame.push_memory(run.fragment());
    }
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
        // Common case: most messages are in one run of memory.
        if let Some(all) = self.payload.contiguous {
            return self.add(all.part(offset, len));
        }
        let payload = self.payload;
        payload.part(offset, len, |run| self.add(run));
    }

    #[inline]
    fn crc(&mut self) {
        self.frame.push_inline(&crc_field(self.crc));
    }
}

/// Writes an FPDU's runs into a frame whose CRC the device computes.
struct Digested<'a, 'r, 'f> {
    frame: &'r mut FrameBuilder<'a, 'f>,
    /// Position of the FPDU in the frame.
    fpdu: u32,
    payload: Payload<'a>,
    is_scattered: bool,
}

impl RunSink for Digested<'_, '_, '_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        self.frame.push_inline(octets);
    }

    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        self.payload.part(offset, len, |run| self.frame.push_memory(run.fragment()));
    }

    #[inline]
    fn crc(&mut self) {
        self.frame.push_digest(self.fpdu, Crc32c::new(), self.is_scattered);
    }
}

/// Copies an FPDU's runs into a frame. Its bytes are then contiguous, markers included, and their
/// CRC is computed at once.
struct Stager<'a, 'r, 'f> {
    frame: &'r mut FrameBuilder<'a, 'f>,
    /// Position of the FPDU in the scratch.
    fpdu: Mark,
    payload: Payload<'a>,
    crc: bool,
}

impl RunSink for Stager<'_, '_, '_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        self.frame.push_inline(octets);
    }

    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        self.payload.part(offset, len, |run| self.frame.stage(run));
    }

    #[inline]
    fn crc(&mut self) {
        let crc = self.crc.then(|| self.frame.digest_from(self.fpdu));
        self.frame.push_inline(&crc_field(crc));
    }
}

/// Writes an FPDU's bytes into a buffer of exactly their length, and computes its CRC at the same
/// time.
struct Writer<'k, 'a> {
    /// The rest of the buffer.
    room: &'k mut [u8],
    payload: Payload<'a>,
    crc: Option<Crc32c>,
}

impl<'k> Writer<'k, '_> {
    /// The next `len` bytes of the buffer.
    #[inline]
    fn take(&mut self, len: usize) -> &'k mut [u8] {
        let taken = std::mem::take(&mut self.room).split_at_mut(len);
        self.room = taken.1;
        taken.0
    }
}

impl RunSink for Writer<'_, '_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(octets);
        }
        self.take(octets.len()).copy_from_slice(octets);
    }

    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        let payload = self.payload;
        payload.part(offset, len, |run| {
            let room = self.take(run.len());
            match &mut self.crc {
                Some(crc) => *crc = Crc32c::from_state(copy_and_digest(crc.state(), run, room)),
                None => run.copy_out(0, room),
            }
        });
    }

    #[inline]
    fn crc(&mut self) {
        let field = crc_field(self.crc);
        self.take(field.len()).copy_from_slice(&field);
    }
}

/// Keeps an FPDU's bytes across the ends of blocks, and computes its CRC at the same time.
struct Keeper<'k, 'a> {
    kept: &'k mut Kept,
    payload: Payload<'a>,
    crc: Option<Crc32c>,
}

impl RunSink for Keeper<'_, '_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(octets);
        }
        self.kept.append(octets);
    }

    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        let Self { kept, payload, crc } = self;
        payload.part(offset, len, |run| kept.append_shared(run, crc.as_mut()));
    }

    #[inline]
    fn crc(&mut self) {
        self.kept.append(&crc_field(self.crc));
    }
}

/// Returns the CRC field. With CRCs off, the field is present nevertheless; its content does not
/// matter (RFC 5044 §4.1).
// spec: MPA-4.1-4
#[inline]
pub(super) fn crc_field(crc: Option<Crc32c>) -> [u8; CRC_LEN] {
    crc32c::to_wire(crc.map_or(0, Crc32c::finish))
}

#[inline]
pub(super) fn digest(run: SharedSlice<'_>, crc: &mut Crc32c) {
    *crc = Crc32c::from_state(crc32c_append_shared(crc.state(), run));
}
