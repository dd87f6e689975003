//! A stream on the TCP of this crate (RFC 5044 Appendix A). TCP decides which bytes to send and to
//! retransmit; the stream supplies their content. Segments hold whole FPDUs, unless alignment is
//! off. Received bytes pass up at once, and TCP acknowledges exactly what the stream accepted.

mod run;

use std::mem::offset_of;
use std::num::NonZeroU16;
use std::ops::Range;

use urnic_netdev::{Digest, SharedSlice};

use crate::limits::{FRAGMENTS_MAX, FRAME_PAYLOAD_MAX};
use crate::mem::TableLease;
use crate::mpa::pieces::PieceStore;
use crate::stream::carrier::payload::Payload;
use crate::stream::life::Probes;
use crate::stream::{Cut, Digests, Fragments, FrameBuilder, Room, Scratch, Stream};
use crate::tcp::{self, KeepAliveTimes};
use crate::time::Instant;
use crate::types::StreamOffset;

pub(crate) trait SegmentSink {
    /// Sends a segment, or under one header a run of segments of `segment_size` bytes (the last may
    /// be shorter): in one frame if the device cuts segments, else in a frame each. The device
    /// computes `digests`, each inside one segment.
    fn emit(
        &mut self,
        header: &tcp::Header,
        payload: &[SharedSlice<'_>],
        digests: &[Digest],
        segment_size: Option<NonZeroU16>,
    );
}

/// Limits of the lower layer and the device for one turn of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxLimits {
    /// Largest payload of a super-frame; 0 without segmentation offload.
    pub(crate) super_frame_len_max: usize,
    pub(crate) frames_max: usize,
    /// Bytes after which the turn ends.
    pub(crate) bytes_max: usize,
    pub(crate) fragments_max: usize,
}

/// Counts of a connection's segments by their contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignmentCounters {
    /// Data segments sent for the first time.
    pub segments: u64,
    /// Data segments among `segments` that start with an FPDU and hold whole FPDUs only.
    pub segments_aligned: u64,
    /// Frames handed to the device for these segments.
    pub frames: u64,
    /// Super-frames among `frames`: frames of more than one segment.
    pub super_frames: u64,
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct OwnTcp {
    pub(crate) stream: Stream,
    alignment: AlignmentCounters,
    offered: Option<usize>,
    /// TCP segments are cut at FPDUs. `false`: TCP is used like any byte stream.
    aligned: bool,
    probes: Probes,
    pub(crate) tcp: tcp::Tcb,
}

impl OwnTcp {
    pub(crate) const HOT: [Range<usize>; 2] = {
        let tcp = offset_of!(Self, tcp);
        [0..tcp + tcp::Tcb::HOT_HEAD, tcp + tcp::Tcb::HOT.start..tcp + tcp::Tcb::HOT.end]
    };

    pub(crate) const DUE: [Range<usize>; 2] = {
        let (tcp, of_tcp) = (offset_of!(Self, tcp), tcp::Tcb::DUE);
        [Stream::DUE, tcp + of_tcp.start..tcp + of_tcp.end]
    };

    pub(crate) fn new(tcp: tcp::Tcb, stream: Stream, aligned: bool) -> Self {
        let alignment = AlignmentCounters::default();
        let (offered, probes) = (None, Probes::Off);
        let mut new = Self { tcp, stream, aligned, alignment, offered, probes };
        new.follow_room();
        new
    }

    /// In streaming mode the stream keeps bytes until the application reads them. In full operation
    /// TCP's own policy sets the window, except while messages wait for receives: it then closes as
    /// their number grows.
    fn follow_room(&mut self) {
        let room = self.stream.receive_room();
        if room == self.offered {
            return;
        }
        self.offered = room;
        self.tcp.limit_receive_window(room);
    }

    pub(crate) const fn is_aligned(&self) -> bool {
        self.aligned
    }

    pub(crate) const fn alignment(&self) -> AlignmentCounters {
        self.alignment
    }

    /// Takes a segment, or several merged ones. Returns false, with no effect, if TCP is closed.
    #[must_use]
    pub(crate) fn handle_segment(
        &mut self,
        now: Instant,
        header: &tcp::Header,
        payload: &mut impl Payload,
        segments: usize,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> bool {
        if let Some(next) = self.tcp.take_next(now, header, payload.len(), segments) {
            let (at, all) = (next.range.start, 0..payload.len());
            let kept = payload.pass_up(&mut self.stream, now, at, all, store, lease);
            self.tcp.finish_next(now, next, kept);
            self.watch(now);
            return true;
        }
        self.handle_any_segment(now, header, payload, segments, store, lease)
    }

    #[inline(never)]
    fn handle_any_segment(
        &mut self,
        now: Instant,
        header: &tcp::Header,
        payload: &mut impl Payload,
        segments: usize,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> bool {
        if self.tcp.state() == tcp::State::Closed {
            return false;
        }
        let una = self.tcp.snd_una();
        let arrival = self.tcp.handle_segment(now, header, payload.len(), segments);
        if self.tcp.snd_una() != una {
            self.stream.acknowledged(self.tcp.snd_una());
        }
        if let Some(arrived) = &arrival.payload {
            let (range, skip) = (arrived.range.clone(), arrived.skip);
            let refused = self.pass_up(now, range, skip, payload, store, lease);
            self.tcp.finish_arrival(now, &arrival, refused);
        }
        self.after_input();
        self.watch(now);
        true
    }

    #[inline]
    fn watch(&mut self, now: Instant) {
        let is_settled = match self.probes {
            Probes::Off => !self.stream.awaits_response(),
            Probes::FirstFpdu => false,
            Probes::Response => true,
        };
        if !is_settled || !self.stream.is_undisturbed() {
            self.watch_stage(now);
        }
    }

    #[inline(never)]
    fn watch_stage(&mut self, now: Instant) {
        self.stream.watch(now);
        self.set_probes(now, self.stream.probes(self.probes));
        if self.stream.wants_reset() {
            self.tcp.abort();
        }
    }

    fn set_probes(&mut self, now: Instant, probes: Probes) {
        if probes == self.probes {
            return;
        }
        self.probes = probes;
        let times = match probes {
            Probes::Off => None,
            Probes::FirstFpdu => Some(KeepAliveTimes::after(self.stream.times().probe)),
            Probes::Response => Some(KeepAliveTimes::giving_up_after(self.tcp.user_timeout())),
        };
        self.tcp.probe_idle_peer(now, times);
    }

    /// Passes up the bytes of `range` that were never passed before, as soon as they are received
    /// (RFC 5044 Appendix A.3). `range` begins `skip` bytes into the payload. Returns true if some
    /// bytes were refused; TCP commits to what MPA keeps.
    // spec: TCP-A.3-1, TCP-A.3-4
    fn pass_up(
        &mut self,
        now: Instant,
        range: Range<StreamOffset>,
        skip: usize,
        payload: &mut impl Payload,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> bool {
        let mut from = range.start;
        // spec: DDP-3-11
        while let Some(missing) = self.tcp.next_missing(from..range.end) {
            if !self.tcp.can_commit(&missing) {
                return true;
            }
            let start = skip + missing.start.index_from(range.start);
            let end = skip + missing.end.index_from(range.start);
            let Self { stream, .. } = self;
            let kept = payload.pass_up(stream, now, missing.start, start..end, store, lease);
            if kept > missing.start {
                let committed = self.tcp.commit(missing.start..kept);
                committed.expect("room was asked for by where the range starts");
            }
            // spec: TCP-A.3-8
            if kept < missing.end {
                return true;
            }
            from = missing.end;
        }
        false
    }

    /// Gives up bytes far beyond a gap, to leave the memory to other streams. The peer retransmits
    /// them.
    pub(crate) fn give_up_far(&mut self, store: &mut PieceStore) {
        let Self { tcp, stream, .. } = self;
        stream.give_up_far(store, |range| tcp.forget(&range));
    }

    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        limits: &TxLimits,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) -> bool {
        self.stream.deliver_held();
        self.follow_room();
        if let Some(outgoing) = self.tcp.poll_transmit(now) {
            self.emit_any(&outgoing.header, outgoing.data, None, scratch, sink);
            return true;
        }
        if self.send_new(now, limits, scratch, sink) {
            return true;
        }
        self.watch(now);
        if self.stream.wants_close() {
            let end = self.stream.framed_end();
            if self.tcp.snd_nxt() >= end {
                self.tcp.close(end);
                self.stream.sending_closed();
                self.watch(now);
                if let Some(outgoing) = self.tcp.poll_transmit(now) {
                    self.emit_any(&outgoing.header, outgoing.data, None, scratch, sink);
                    return true;
                }
            }
        }
        if let Some(header) = self.tcp.poll_ack(now) {
            sink.emit(&header, &[], &[], None);
            return true;
        }
        false
    }

    /// Sends new data: one segment, or a run of equal ones as a super-frame.
    fn send_new(
        &mut self,
        now: Instant,
        limits: &TxLimits,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) -> bool {
        let start = self.tcp.snd_nxt();
        let framed = self.stream.framed_end();
        if framed <= start && !self.stream.has_work() {
            return false;
        }
        let budget = self.tcp.send_budget(now);
        // spec: MPA-4.5-6, MPA-5.1-1
        let emss = self.tcp.emss();
        if budget.bytes == 0 {
            return false;
        }
        if !self.aligned {
            return self.send_as_stream(now, &budget, limits, scratch, sink);
        }
        if framed > start {
            // Bytes of the startup, or the rest of an FPDU that did not fit in one segment.
            // spec: DDP-3-2
            let whole = framed.index_from(start).min(emss);
            // RFC 9293 §3.8.6.2.1: the peer's window would cut the segment short; it will grow.
            if budget.bytes < whole && !budget.forced {
                return false;
            }
            let len = whole.min(budget.bytes);
            self.alignment.segments += u64::from(self.stream.has_fpdus_at(start));
            return self.send_range(now, start, len, len, scratch, sink);
        }
        let fragments = limits.fragments_max.min(FRAGMENTS_MAX);
        // spec: TCP-A.1-8
        let mut room = Room { segment_len: emss, fragments, cut: Cut::Always };
        if budget.bytes < emss && !budget.forced {
            // RFC 9293 §3.8.6.2.1: the peer's window ends inside the segment. Whole FPDUs that fit
            // are sent.
            room.segment_len = budget.bytes;
            room.cut = Cut::Never;
        }
        // spec: MPA-5.1-2
        let segment_len = self.stream.frame_segment(&mut room).index_from(start);
        if segment_len == 0 {
            return false;
        }
        if segment_len > budget.bytes || segment_len > emss {
            // Not even the smallest FPDU fits in a segment: it spans segments.
            // spec: TCP-A.1-5
            let len = emss.min(budget.bytes);
            self.alignment.segments += 1;
            return self.send_range(now, start, len, len, scratch, sink);
        }
        let total = self.extend_run(start, segment_len, budget.bytes, limits, &mut room);
        let segments = total.div_ceil(segment_len) as u64;
        self.alignment.segments += segments;
        // spec: TCP-A.1-1
        self.alignment.segments_aligned += segments;
        // `emit_whole` fits: all bytes were framed just now, with nothing behind them.
        let data = start..start + total as u64;
        // If the device does not cut a run, each segment goes in its own frame.
        let frames = if limits.super_frame_len_max == 0 { segments } else { 1 };
        let segment_size = self.segment_size(total, segment_len, frames);
        let push = !self.stream.is_amid_message();
        let header = self.tcp.record_sent(now, total, segment_len, push);
        self.emit_whole(&header, data, segment_size, scratch, sink);
        true
    }

    fn send_as_stream(
        &mut self,
        now: Instant,
        budget: &tcp::Budget,
        limits: &TxLimits,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) -> bool {
        let start = self.tcp.snd_nxt();
        let at_fpdu = self.stream.framed_end() == start;
        let emss = self.tcp.emss();
        // Length of as many full segments as one frame carries.
        let run_max = limits.super_frame_len_max.min(FRAME_PAYLOAD_MAX).min(budget.bytes);
        let len_max = (run_max - run_max % emss).max(emss.min(budget.bytes));
        // Half of the fragments for this call's frames, half for what the previous call left over.
        let fragments = limits.fragments_max.min(FRAGMENTS_MAX) / 2;
        let mut room = Room { segment_len: emss, fragments, cut: Cut::Always };
        let len = self.fill_unaligned(start, len_max, &mut room);
        let end = start + len as u64;
        // RFC 9293 §3.8.6.2.1: a segment is not cut short for a window that will grow.
        let cut_short = end < self.stream.framed_end() && len_max < emss;
        if len == 0 || (cut_short && !budget.forced) {
            return false;
        }
        if self.stream.has_fpdus_at(start) {
            let whole = at_fpdu && len <= emss && end == self.stream.framed_end();
            self.alignment.segments += len.div_ceil(emss) as u64;
            self.alignment.segments_aligned += u64::from(whole);
        }
        self.send_range(now, start, len, len.min(emss), scratch, sink)
    }

    fn send_range(
        &mut self,
        now: Instant,
        start: StreamOffset,
        len: usize,
        segment_len: usize,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) -> bool {
        let data = start..start + len as u64;
        // Neither the segments nor the frames of the startup are counted.
        let frames = u64::from(self.stream.has_fpdus_at(start));
        let segment_size = self.segment_size(len, segment_len, frames);
        let header = self.tcp.record_sent(now, len, segment_len, self.pushes(data.end));
        self.emit_any(&header, data, segment_size, scratch, sink);
        true
    }

    /// Counts `frames` frames. Returns the size of each segment if there are several.
    #[inline]
    fn segment_size(&mut self, len: usize, segment_len: usize, frames: u64) -> Option<NonZeroU16> {
        self.alignment.frames += frames;
        if len <= segment_len {
            return None;
        }
        let segment_size = u16::try_from(segment_len).ok().and_then(NonZeroU16::new);
        self.alignment.super_frames += u64::from(segment_size.is_some() && frames == 1);
        segment_size
    }

    /// PSH belongs on the last segment of the data handed over (RFC 9293 §3.9.1.2, SHLD-28). Inside
    /// a message it would keep the receiver's kernel from merging the next segments (GRO).
    #[inline]
    fn pushes(&self, end: StreamOffset) -> bool {
        end == self.stream.framed_end() && !self.stream.is_amid_message()
    }

    fn emit_any(
        &mut self,
        header: &tcp::Header,
        data: Range<StreamOffset>,
        segment_size: Option<NonZeroU16>,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) {
        self.stream.keep_cut(&data);
        self.emit_whole(header, data, segment_size, scratch, sink);
    }

    /// Resets the connection if the stream no longer has the bytes.
    fn emit_whole(
        &mut self,
        header: &tcp::Header,
        data: Range<StreamOffset>,
        segment_size: Option<NonZeroU16>,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) {
        // spec: TCP-A.1-4
        if self.stream.is_gone(&data) {
            // The stream has failed and no longer has bytes that the peer needs.
            self.tcp.abort();
            return self.after_input();
        }
        self.emit(header, data, segment_size, scratch, sink);
    }

    fn emit(
        &mut self,
        header: &tcp::Header,
        data: Range<StreamOffset>,
        segment_size: Option<NonZeroU16>,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) {
        if data.is_empty() {
            sink.emit(header, &[], &[], None);
            return;
        }
        let (mut fragments, mut digests) = (Fragments::new(), Digests::new());
        let mut frame = FrameBuilder::with_digests(scratch, &mut fragments, &mut digests);
        self.stream.gather(data.clone(), &mut frame);
        let finished = frame.finish();
        assert!(
            finished.len == data.end.index_from(data.start),
            "framing keeps below the limits of a frame"
        );
        sink.emit(header, &fragments, &digests, segment_size);
        drop(fragments);
        if finished.staged > 0 {
            self.stream.count_staged(finished.staged);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [self.tcp.poll_timeout(), self.stream.poll_timeout()];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        let unasked = self.probes == Probes::Response && !self.stream.awaits_response();
        if unasked && self.tcp.is_probe_due(now) {
            self.set_probes(now, Probes::Off);
        }
        self.tcp.handle_timeout(now);
        self.stream.handle_timeout(now);
        // The startup timed out before TCP's own handshake was done: no peer waits for a close.
        match self.tcp.state() {
            tcp::State::SynReceived if self.stream.is_over() => self.tcp.abort(),
            tcp::State::SynSent if self.stream.is_over() => self.tcp.close(StreamOffset::ZERO),
            _ => {}
        }
        self.after_input();
        self.watch(now);
    }

    /// About a peer that was not reached yet. Returns true if that ended the connection.
    pub(crate) fn give_up_opening(&mut self, event: tcp::TcpEvent) -> bool {
        let has_ended = self.tcp.give_up_opening(event);
        self.after_input();
        has_ended
    }

    /// Ends an unopened connection that is closed, or has waited as long as for an answer to its
    /// SYN.
    pub(crate) fn while_unreachable(&mut self, now: Instant) {
        if self.stream.wants_close() && self.tcp.state() == tcp::State::SynSent {
            self.tcp.close(StreamOffset::ZERO);
        }
        self.tcp.expire_handshake(now);
        self.after_input();
    }

    pub(crate) fn time_wait(&mut self) -> Option<(tcp::TimeWait, Instant)> {
        self.follow_room();
        self.tcp.time_wait()
    }

    fn after_input(&mut self) {
        while let Some(event) = self.tcp.poll_event() {
            match event {
                tcp::TcpEvent::Established => self.stream.connected(),
                // spec: TCP-9293-6
                tcp::TcpEvent::PeerFin => self.stream.peer_closed(),
                tcp::TcpEvent::Closed => self.stream.connection_closed(),
                tcp::TcpEvent::Refused => self.stream.connection_refused(),
                tcp::TcpEvent::Unreachable => self.stream.connection_unreachable(),
                tcp::TcpEvent::Reset | tcp::TcpEvent::TimedOut => self.stream.connection_lost(),
            }
        }
    }
}
