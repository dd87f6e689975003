//! The optimized lower layer: MPA over the TCP of this crate (RFC 5044 Appendix A).
//!
//! TCP says which octets may go and which have to go again; the stream says what they are. A
//! segment holds whole FPDUs. Received octets pass up at once, wherever they belong in the stream,
//! and TCP acknowledges exactly what the stream took.

use std::num::NonZeroU16;
use std::ops::Range;

use urnic_netdev::Fragment;

use crate::limits::{FRAGMENTS_MAX, FRAME_PAYLOAD_MAX, LINGER_NS};
use crate::mem::TableLease;
use crate::mpa::pieces::PieceStore;
use crate::stream::{Cut, Fragments, FrameBuilder, Room, Scratch, Stream};
use crate::tcp;
use crate::time::Instant;
use crate::types::StreamOffset;

/// Where finished segments go: something that puts IP and link headers around them.
pub(crate) trait SegmentSink {
    /// Sends a segment, or a run of segments of `segment_size` octets each (the last may be
    /// shorter) under one header.
    fn emit(
        &mut self,
        header: &tcp::Header,
        payload: &[Fragment<'_>],
        segment_size: Option<NonZeroU16>,
    );
}

/// How the transmit side uses the lower layer and the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxLimits {
    /// Largest payload of a super-frame; 0 without segmentation offload.
    pub(crate) super_frame_len_max: usize,
    /// Fragments the device takes in one frame.
    pub(crate) fragments_max: usize,
}

/// Segments of a connection, seen by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignmentCounters {
    /// Data segments sent for the first time.
    pub segments: u64,
    /// Of those, segments that start with an FPDU and hold whole FPDUs only.
    pub segments_aligned: u64,
    /// Frames handed to the device for them.
    pub frames: u64,
    /// Of those, super-frames: of more than one segment.
    pub super_frames: u64,
}

/// A stream on a TCP connection of its own.
#[derive(Debug)]
pub(crate) struct Optimized {
    pub(crate) tcp: tcp::Connection,
    pub(crate) stream: Stream,
    /// Whether TCP segments are cut at FPDUs. Off, TCP is used as any byte stream would be.
    aligned: bool,
    alignment: AlignmentCounters,
    /// When a peer that does not close its half is given up.
    linger_until: Option<Instant>,
}

impl Optimized {
    pub(crate) fn new(tcp: tcp::Connection, stream: Stream, aligned: bool) -> Self {
        Self { tcp, stream, aligned, alignment: AlignmentCounters::default(), linger_until: None }
    }

    /// Whether segments are cut at FPDUs.
    pub(crate) const fn is_aligned(&self) -> bool {
        self.aligned
    }

    pub(crate) const fn alignment(&self) -> AlignmentCounters {
        self.alignment
    }

    // ---- receive ----

    /// Processes a segment, or several that the device merged into one.
    pub(crate) fn handle_segment(
        &mut self,
        now: Instant,
        header: &tcp::Header,
        payload: &[u8],
        segments: usize,
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) {
        let una = self.tcp.snd_una();
        let arrival = self.tcp.handle_segment(now, header, payload.len(), segments);
        if self.tcp.snd_una() != una {
            self.stream.acknowledged(self.tcp.snd_una());
        }
        if let Some(arrived) = &arrival.payload {
            let octets = &payload[arrived.skip..];
            store.set_time(now);
            let refused = self.pass_up(arrived.range.clone(), octets, store, lease);
            self.tcp.finish_arrival(now, &arrival, refused);
        }
        self.after_input();
        if self.is_half_closed() && self.linger_until.is_none() {
            self.linger_until = Some(now.plus_nanos(LINGER_NS));
        }
    }

    /// Passes up what of `range` was never passed before. Returns whether some of it was refused.
    ///
    /// RFC 5044 Appendix A.3: segments go to MPA as soon as they are received and validated, each
    /// octet once, and TCP commits to those that MPA keeps.
    fn pass_up(
        &mut self,
        range: Range<StreamOffset>,
        octets: &[u8],
        store: &mut PieceStore,
        lease: &mut TableLease<'_>,
    ) -> bool {
        let mut from = range.start;
        while let Some(missing) = self.tcp.next_missing(from..range.end) {
            if !self.tcp.can_commit(&missing) {
                return true;
            }
            let start = missing.start.index_from(range.start);
            let end = missing.end.index_from(range.start);
            let kept = self.stream.handle_bytes(missing.start, &octets[start..end], store, lease);
            if kept > missing.start {
                let committed = self.tcp.commit(missing.start..kept);
                assert!(committed.is_ok(), "a part of a range fits where the range does");
            }
            if kept < missing.end {
                return true;
            }
            from = missing.end;
        }
        false
    }

    // ---- transmit ----

    /// Sends one frame, if there is something to send. Returns whether there was.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        limits: &TxLimits,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) -> bool {
        if let Some(outgoing) = self.tcp.poll_transmit(now) {
            self.emit(&outgoing.header, outgoing.data, None, scratch, sink);
            return true;
        }
        if self.send_new(now, limits, scratch, sink) {
            return true;
        }
        self.stream.limit_close(now);
        if self.stream.wants_close() {
            let end = self.stream.framed_end();
            if self.tcp.snd_nxt() >= end {
                self.tcp.close(end);
                if let Some(outgoing) = self.tcp.poll_transmit(now) {
                    self.emit(&outgoing.header, outgoing.data, None, scratch, sink);
                    return true;
                }
            }
        }
        if let Some(header) = self.tcp.poll_ack(now) {
            sink.emit(&header, &[], None);
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
        let emss = self.tcp.emss();
        if budget.octets == 0 {
            return false;
        }
        if !self.aligned {
            return self.send_as_stream(now, &budget, limits, scratch, sink);
        }
        if framed > start {
            // Octets of the startup, or the rest of an FPDU that did not fit one segment.
            let len = framed.index_from(start).min(emss).min(budget.octets);
            self.alignment.segments += u64::from(self.stream.has_fpdus_at(start));
            return self.send_range(now, start, len, len, scratch, sink);
        }
        let fragments = limits.fragments_max.min(FRAGMENTS_MAX);
        let mut room = Room { segment_len: emss, fragments, cut: Cut::Always };
        if budget.octets < emss && !budget.forced {
            // RFC 9293 §3.8.6.2.1: the peer's window ends inside the segment. What fits whole may
            // go; the rest waits for the window to grow.
            room.segment_len = budget.octets;
            room.cut = Cut::Never;
        }
        self.stream.frame_segment(&mut room);
        let segment_len = self.stream.framed_end().index_from(start);
        if segment_len == 0 {
            return false;
        }
        if segment_len > budget.octets || segment_len > emss {
            // Not even the smallest FPDU fits: it spans segments.
            let len = emss.min(budget.octets);
            self.alignment.segments += 1;
            return self.send_range(now, start, len, len, scratch, sink);
        }
        let len_max = limits.super_frame_len_max.min(FRAME_PAYLOAD_MAX).min(budget.octets);
        let total = self.extend_run(start, segment_len, len_max, &mut room);
        let segments = total.div_ceil(segment_len) as u64;
        self.alignment.segments += segments;
        self.alignment.segments_aligned += segments;
        self.send_range(now, start, total, segment_len, scratch, sink)
    }

    /// Sends new data as a byte stream would: segments are filled, FPDUs fall where they fall.
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
        // As many full segments as one frame carries.
        let run_max = limits.super_frame_len_max.min(FRAME_PAYLOAD_MAX).min(budget.octets);
        let len_max = (run_max - run_max % emss).max(emss.min(budget.octets));
        // Half for what this call frames, half for what the one before left over.
        let fragments = limits.fragments_max.min(FRAGMENTS_MAX) / 2;
        let mut room = Room { segment_len: emss, fragments, cut: Cut::Always };
        let len = self.fill_unaligned(start, len_max, &mut room);
        let end = start + len as u64;
        // RFC 9293 §3.8.6.2.1: a segment is not cut short by a window that will grow.
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

    /// Adds segments of exactly `segment_len` octets to the run that starts at `start`, the last
    /// possibly shorter. Returns the octets of the whole run.
    fn extend_run(
        &mut self,
        start: StreamOffset,
        segment_len: usize,
        len_max: usize,
        room: &mut Room,
    ) -> usize {
        // A single FPDU with a whole segment to itself has others like it behind.
        self.stream.frame_alike(segment_len, (len_max / segment_len).saturating_sub(1), room);
        let mut total = self.stream.framed_end().index_from(start);
        while total + segment_len <= len_max && room.fragments > 0 {
            room.segment_len = segment_len;
            let before = room.fragments;
            self.stream.frame_segment(room);
            let grown = self.stream.framed_end().index_from(start);
            let added = grown - total;
            total = grown;
            if added != segment_len {
                break;
            }
            // Stop while a segment like the last still has its fragments.
            if room.fragments < before - room.fragments {
                break;
            }
        }
        total
    }

    /// Frames until `len_max` octets are there or nothing is left; returns how many to send.
    fn fill_unaligned(&mut self, start: StreamOffset, len_max: usize, room: &mut Room) -> usize {
        loop {
            let framed = self.stream.framed_end().index_from(start);
            if framed >= len_max || room.fragments == 0 {
                return framed.min(len_max);
            }
            // As a byte stream would be used: FPDUs of full size, cut wherever a segment ends.
            room.segment_len = self.tcp.emss();
            self.stream.frame_segment(room);
            if self.stream.framed_end().index_from(start) == framed {
                return framed;
            }
        }
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
        self.alignment.frames += 1;
        let end = start + len as u64;
        // RFC 9293 §3.9.1.2 (SHLD-28): PSH is for the last segment of what was handed over. One amid
        // a message would keep the receiver's kernel from merging what follows (GRO).
        let push = end == self.stream.framed_end() && !self.stream.is_amid_message();
        let header = self.tcp.record_sent(now, len, segment_len, push);
        let segment_size = if len > segment_len {
            u16::try_from(segment_len).ok().and_then(NonZeroU16::new)
        } else {
            None
        };
        self.alignment.super_frames += u64::from(segment_size.is_some());
        self.emit(&header, start..end, segment_size, scratch, sink);
        true
    }

    fn emit(
        &self,
        header: &tcp::Header,
        data: Range<StreamOffset>,
        segment_size: Option<NonZeroU16>,
        scratch: &mut Scratch,
        sink: &mut impl SegmentSink,
    ) {
        if data.is_empty() {
            sink.emit(header, &[], None);
            return;
        }
        let mut fragments = Fragments::new();
        let mut frame = FrameBuilder::new(scratch, &mut fragments);
        self.stream.gather(data.clone(), &mut frame);
        let len = frame.finish();
        assert!(
            len == data.end.index_from(data.start),
            "framing keeps below the limits of a frame"
        );
        sink.emit(header, &fragments, segment_size);
    }

    // ---- time and events ----

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [self.tcp.poll_timeout(), self.stream.poll_timeout(), self.linger_until];
        deadlines.into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.tcp.handle_timeout(now);
        self.stream.handle_timeout(now);
        // A startup that timed out before TCP's own handshake was done: there is nobody who waits
        // for a close.
        match self.tcp.state() {
            tcp::State::SynReceived if self.stream.is_over() => self.tcp.abort(),
            tcp::State::SynSent if self.stream.is_over() => self.tcp.close(StreamOffset::ZERO),
            _ => {}
        }
        self.after_input();
        if self.linger_until.is_some_and(|until| until <= now) {
            self.linger_until = None;
            if self.is_half_closed() {
                self.tcp.abort();
            }
        }
    }

    /// The network says that the peer cannot be reached; returns whether that ended the connection.
    pub(crate) fn refuse(&mut self) -> bool {
        let refused = self.tcp.refuse();
        self.after_input();
        refused
    }

    /// The peer's link address is not known: nothing can be sent. A connection that nobody wants
    /// any more, or that has waited as long as for an answer to its SYN, ends here.
    pub(crate) fn while_unreachable(&mut self, now: Instant) {
        if self.stream.wants_close() && self.tcp.state() == tcp::State::SynSent {
            self.tcp.close(StreamOffset::ZERO);
        }
        self.tcp.expire_handshake(now);
        self.after_input();
    }

    /// Whether all that is left to wait for is the peer's FIN, after a stream that failed.
    fn is_half_closed(&self) -> bool {
        self.stream.is_over() && self.tcp.state() == tcp::State::FinWait2
    }

    /// Lets the stream know what became of the connection.
    fn after_input(&mut self) {
        while let Some(event) = self.tcp.poll_event() {
            match event {
                tcp::TcpEvent::Established => self.stream.connected(),
                tcp::TcpEvent::PeerFin => self.stream.peer_closed(),
                tcp::TcpEvent::Closed => self.stream.connection_closed(),
                tcp::TcpEvent::Reset | tcp::TcpEvent::TimedOut | tcp::TcpEvent::Refused => {
                    self.stream.connection_lost()
                }
            }
        }
    }
}
