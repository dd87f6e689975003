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
    /// Copies an FPDU that `range` contains only in part: all its transmissions then have the same
    /// bytes. Call before gathering the range, unless it is known to hold whole FPDUs.
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

    /// Keeps at most `bytes_max` framed, unacknowledged bytes of requests that are about to be
    /// flushed. Of more, those in the middle are given up, and never retransmitted: the peer needs
    /// the oldest next, and the newest may be unsent, and the Terminate follows them (RFC 5040
    /// §7.1).
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

    /// `payload` is that of all these FPDUs if it is in one run of memory.
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
            // In one run of memory for most messages: looked up once for all FPDUs.
            let at = (fpdu.offset() - first) as usize;
            let payload = payload.map(|all| all.part(at, fpdu.len() as usize));
            let payload = Payload { messages, fpdu, contiguous: payload };
            let framed = fpdu.framed(&front, self.grid);
            let (checksum, crc) = if leaves_digest && frame.leaves_digests() {
                // A digest that resumes after each marker or scatter element takes longer.
                let is_scattered = run_len < len || payload.contiguous.is_none();
                (Checksum::ByDevice { from: frame.position(), is_scattered }, None)
            } else if stages && self.crc {
                (Checksum::OverCopy(frame.mark()), None)
            } else {
                (Checksum::Running, crc)
            };
            framed.emit(&mut FpduWriter { to: InFrame { frame, stages, checksum }, payload, crc });
        }
    }
}

fn is_open(kept: &Kept, fpdu: QueuedFpdu<'_>) -> bool {
    // An FPDU is kept up to its end, so its last byte is kept if any of it is.
    matches!(fpdu.source(), Source::Work(_))
        && fpdu.len() > 0
        && !kept.holds(StreamOffset(fpdu.end().0 - 1))
}

pub(super) fn keep(kept: &mut Kept, payload: Payload<'_>, grid: MarkerGrid, crc: bool) {
    let fpdu = payload.fpdu;
    kept.begin(fpdu.start());
    let crc = crc.then(Crc32c::new);
    let front = fpdu.front();
    let framed = fpdu.framed(&front, grid);
    let len = framed.wire_len();
    let Some(room) = kept.room_for(len) else {
        return framed.emit(&mut FpduWriter { to: Blocks(kept), payload, crc });
    };
    framed.emit(&mut FpduWriter { to: Buffer(room), payload, crc });
    kept.appended(len);
}

#[derive(Clone, Copy)]
pub(super) struct Payload<'a> {
    pub(super) messages: &'a Messages,
    pub(super) fpdu: QueuedFpdu<'a>,
    /// The whole payload, if it is known to be in one run of memory.
    pub(super) contiguous: Option<SharedSlice<'a>>,
}

impl<'a> Payload<'a> {
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

struct FpduWriter<'a, D> {
    to: D,
    payload: Payload<'a>,
    /// CRC of the bytes written so far; `None` if there is no CRC or the destination computes it.
    crc: Option<Crc32c>,
}

trait Destination<'a> {
    fn inline(&mut self, octets: &[u8]);

    fn memory(&mut self, run: SharedSlice<'a>, crc: Option<&mut Crc32c>);

    #[inline]
    fn crc(&mut self, crc: Option<Crc32c>) {
        self.inline(&crc_field(crc));
    }
}

impl<'a, D: Destination<'a>> RunSink for FpduWriter<'a, D> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        if let Some(crc) = &mut self.crc {
            crc.update(octets);
        }
        self.to.inline(octets);
    }

    #[inline]
    fn payload(&mut self, offset: usize, len: usize) {
        let Self { to, payload, crc } = self;
        payload.part(offset, len, |run| to.memory(run, crc.as_mut()));
    }

    #[inline]
    fn crc(&mut self) {
        self.to.crc(self.crc);
    }
}

struct InFrame<'a, 'r, 'f> {
    frame: &'r mut FrameBuilder<'a, 'f>,
    stages: bool,
    checksum: Checksum,
}

#[derive(Clone, Copy)]
enum Checksum {
    /// The writer computes it run by run, unless the stream has no CRCs.
    Running,
    /// The device computes it over the bytes from `from` on.
    ByDevice { from: u32, is_scattered: bool },
    /// It is computed over the copy, which is contiguous, markers included.
    OverCopy(Mark),
}

impl<'a> Destination<'a> for InFrame<'a, '_, '_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        self.frame.push_inline(octets);
    }

    #[inline]
    fn memory(&mut self, run: SharedSlice<'a>, crc: Option<&mut Crc32c>) {
        if self.stages {
            return self.frame.stage(run);
        }
        if let Some(crc) = crc {
            digest(run, crc);
        }
        self.frame.push_memory(run);
    }

    #[inline]
    fn crc(&mut self, crc: Option<Crc32c>) {
        match self.checksum {
            Checksum::Running => self.frame.push_inline(&crc_field(crc)),
            Checksum::ByDevice { from, is_scattered } => {
                self.frame.push_digest(from, Crc32c::new(), is_scattered);
            }
            Checksum::OverCopy(mark) => {
                let crc = self.frame.digest_from(mark);
                self.frame.push_inline(&crc_field(Some(crc)));
            }
        }
    }
}

struct Buffer<'k>(&'k mut [u8]);

impl<'k> Buffer<'k> {
    #[inline]
    fn take(&mut self, len: usize) -> &'k mut [u8] {
        let taken = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = taken.1;
        taken.0
    }
}

impl Destination<'_> for Buffer<'_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        self.take(octets.len()).copy_from_slice(octets);
    }

    #[inline]
    fn memory(&mut self, run: SharedSlice<'_>, crc: Option<&mut Crc32c>) {
        let room = self.take(run.len());
        match crc {
            Some(crc) => *crc = Crc32c::from_state(copy_and_digest(crc.state(), run, room)),
            None => run.copy_out(0, room),
        }
    }
}

/// Blocks of kept bytes, across whose ends the FPDU goes.
struct Blocks<'k>(&'k mut Kept);

impl Destination<'_> for Blocks<'_> {
    #[inline]
    fn inline(&mut self, octets: &[u8]) {
        self.0.append(octets);
    }

    #[inline]
    fn memory(&mut self, run: SharedSlice<'_>, crc: Option<&mut Crc32c>) {
        self.0.append_shared(run, crc);
    }
}

/// With CRCs off, the field is present nevertheless (RFC 5044 §4.1).
// spec: MPA-4.1-4
#[inline]
pub(super) fn crc_field(crc: Option<Crc32c>) -> [u8; CRC_LEN] {
    crc32c::to_wire(crc.map_or(0, Crc32c::finish))
}

#[inline]
pub(super) fn digest(run: SharedSlice<'_>, crc: &mut Crc32c) {
    *crc = Crc32c::from_state(crc32c_append_shared(crc.state(), run));
}
