//! One passive endpoint: follows what one side of a connection sends.
//!
//! ```text
//! segment → ranges of new bytes → startup frame | tcp::ReceiveHalf + mpa::rx::FpduReceiver → Observer
//! ```
//!
//! Bytes that the receive code refuses wait here, as at their sender. They are offered again when
//! all earlier bytes were accepted.

mod finish;
mod full;
mod live;
mod shared;

use std::collections::BTreeMap;

use urnic_engine::mpa::rx::{FpduReceiver, RxConfig};
use urnic_engine::tcp::{self, Flags, ReceiveHalf, SeqNum, SeqSpace};
use urnic_engine::types::StreamOffset;
use urnic_engine::wire::ProtocolVersion;
use urnic_engine::wire::mpa::RtrKinds;

use super::alignment::Alignment;
use super::arrivals::Arrivals;
use super::pending_requests::PendingRequests;
use super::startup::{Frame, Search};
use super::tally::Tally;
use crate::judge::behaviour::{Behaviour, Sent};
use crate::judge::findings::{Findings, Kind};
use crate::limits::Holding;
use crate::read::packet::{Checksum, Segment};
use crate::read::ranges::RangeSet;
use crate::read::scan::{Resumed, SidePlan};
use crate::trace::{Class, SideTrace};
use full::Full;
pub(crate) use shared::Shared;

pub(crate) struct Around<'a> {
    pub(crate) shared: &'a mut Shared,
    pub(crate) findings: &'a mut Findings,
    pub(crate) requested: &'a mut PendingRequests,
    pub(crate) answered: &'a mut PendingRequests,
    pub(crate) from: &'static str,
    pub(crate) now_ns: u64,
    pub(crate) out_of_order: bool,
}

#[derive(Debug)]
pub(crate) struct Direction {
    space: SeqSpace,
    high: u64,
    tcp: ReceiveHalf,
    phase: Phase,
    seen: RangeSet,
    arrivals: Arrivals,
    /// New bytes that were not accepted yet, with their frame, by position.
    waiting: BTreeMap<u64, (Vec<u8>, u64)>,
    waiting_bytes: u64,
    /// Bytes dropped because there was no room to keep them.
    lost_bytes: u64,
    held: Holding,
    /// Set if there will be no full operation: payload is only counted.
    is_discarding: bool,
    alignment: Alignment,
    segments: u64,
    bytes_sent: u64,
    segments_out_of_order: u64,
    segments_retransmitted: u64,
    pub(crate) is_finished: bool,
    pub(crate) handshake_seen: bool,
    pub(crate) last_frame: u64,
    pub(crate) trace: Option<Box<SideTrace>>,
    pub(crate) behaviour: Behaviour,
    /// Set if checksums of its segments are left to the device.
    is_at_sender: bool,
}

#[derive(Debug)]
enum Phase {
    Startup(Search),
    Settled(Frame),
    Full(Origin, Box<Full>),
    Lost,
}

#[derive(Debug)]
struct Origin {
    /// Stream position of its first byte, or of the first FPDU found in the capture.
    at: u64,
    /// The frame that completed the startup; 0 if the capture lacks it.
    frame: u64,
    startup: Option<Frame>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) markers: bool,
    pub(crate) crc: bool,
    pub(crate) version: ProtocolVersion,
    /// Kinds of the first FPDU that are allowed in the peer-to-peer model.
    pub(crate) rtr: Option<RtrKinds>,
}

impl Terms {
    fn rx_config(self, out_of_order: bool) -> RxConfig {
        // The observer judges short ULPDUs.
        let Self { markers, crc, .. } = self;
        RxConfig { markers, crc, out_of_order, ulpdu_len_min: 1, ..RxConfig::default() }
    }
}

impl Direction {
    pub(crate) fn new(plan: SidePlan) -> Self {
        Self {
            space: SeqSpace::new(plan.isn),
            high: 0,
            tcp: ReceiveHalf::passive(plan.isn),
            phase: Phase::Startup(Search::default()),
            seen: RangeSet::default(),
            arrivals: Arrivals::default(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            lost_bytes: 0,
            held: Holding::of_notes(),
            is_discarding: false,
            alignment: Alignment::default(),
            segments: 0,
            bytes_sent: 0,
            segments_out_of_order: 0,
            segments_retransmitted: 0,
            is_finished: false,
            handshake_seen: plan.handshake_seen,
            last_frame: 0,
            trace: None,
            behaviour: Behaviour::default(),
            is_at_sender: false,
        }
    }

    pub(crate) const fn startup(&self) -> Option<&Frame> {
        match &self.phase {
            Phase::Settled(frame) => Some(frame),
            Phase::Full(origin, _) => origin.startup.as_ref(),
            Phase::Startup(_) | Phase::Lost => None,
        }
    }

    /// Returns true if bytes at or beyond the start of full operation were seen.
    pub(crate) fn is_beyond_startup(&self) -> bool {
        self.startup().is_some_and(|frame| self.high > frame.end)
    }

    pub(crate) fn is_acknowledged_beyond(&self, ack: SeqNum, position: u64) -> bool {
        let near = StreamOffset(self.high);
        self.space.offset_near(ack, near).is_some_and(|offset| offset.0 > position)
    }

    pub(crate) fn handle(&mut self, segment: &Segment<'_>, frame: u64, around: &mut Around<'_>) {
        self.note_time(around);
        let flags = segment.header.flags;
        self.is_finished |= flags.contains(Flags::FIN);
        if flags.contains(Flags::ACK) {
            self.behaviour.acks.answered(around.now_ns);
        }
        if segment.payload.is_empty() || flags.contains(Flags::RST) {
            return;
        }
        self.last_frame = frame;
        let seq = segment.header.seq.plus(u32::from(flags.contains(Flags::SYN)));
        let near = self.space.seq_at(StreamOffset(self.high));
        let start = i128::from(self.high) + i128::from(seq.distance_from(near));
        let end = start + segment.payload.len() as i128;
        // Bytes before the stream's first byte do not belong to it: a keep-alive probe.
        let first = u64::try_from(start).unwrap_or(0);
        let last = u64::try_from(end).unwrap_or(0);
        self.segments += 1;
        self.bytes_sent += segment.payload.len() as u64;
        if matches!(&self.phase, Phase::Full(origin, _) if origin.startup.is_none() && last <= origin.at)
        {
            // Bytes before the first FPDU found cannot be judged.
            return;
        }
        let is_out_of_order = u128::from(first) > self.seen.end_of_run(0);
        self.segments_out_of_order += u64::from(is_out_of_order);
        self.is_at_sender |= segment.checksum == Checksum::Offloaded;
        let captured = (frame, segment.place);
        self.alignment.note((first, last), captured, &mut self.held, &mut around.shared.notes);
        self.high = self.high.max(last);
        let new = self.seen.missing(u128::from(first)..u128::from(last));
        self.segments_retransmitted += u64::from(new.is_empty());
        self.behaviour.segment(Sent {
            octets: (first, last),
            is_repetition: new.is_empty(),
            frame,
            at_ns: around.now_ns,
            echo: segment.header.options.timestamps.map(|stamps| stamps.echo),
        });
        let class = match () {
            () if new.is_empty() => Class::Retransmitted,
            () if is_out_of_order => Class::OutOfOrder,
            () => Class::InOrder,
        };
        if let Some(trace) = &mut self.trace {
            trace.segment(class, (first, last), frame);
        }
        for part in new {
            let notes = &mut around.shared.notes;
            if !self.seen.insert_within(part.clone(), &mut self.held, notes) {
                self.lost_bytes += u64::try_from(part.end - part.start).unwrap_or(u64::MAX);
                continue;
            }
            let position = |at| u64::try_from(at).expect("stream positions have 64 bits");
            let (from, to) = (position(part.start), position(part.end));
            self.arrivals.note((from, to), (frame, around.now_ns), &mut self.held, notes);
            let index = |at: u64| usize::try_from(i128::from(at) - start).unwrap_or(usize::MAX);
            let bytes = segment.payload.get(index(from)..index(to)).unwrap_or_default();
            let taken = self.offer(from, bytes, frame, around);
            self.wait(from + taken as u64, &bytes[taken..], frame, around);
        }
        self.pump(around);
        if let (Some(comments), Some(_)) = (&around.findings.comments, self.startup()) {
            comments.segment(frame, around.from, class);
        }
        self.decide_alignment(around);
        self.note_held();
    }

    pub(crate) fn enter_full_operation(&mut self, terms: Terms, around: &mut Around<'_>) {
        self.note_time(around);
        let Phase::Settled(frame) = &self.phase else { return };
        let origin = StreamOffset(frame.end);
        let mut tally = Tally::new(origin, terms.markers, terms.crc, terms.version);
        (tally.rtr, tally.emss) = (terms.rtr, self.behaviour.emss());
        let full =
            Full { mpa: FpduReceiver::new(terms.rx_config(around.out_of_order), origin), tally };
        let startup = Some(frame.clone());
        let origin = Origin { at: frame.end, frame: frame.frame, startup };
        self.phase = Phase::Full(origin, Box::new(full));
        let starts: Vec<u64> = self.waiting.keys().copied().collect();
        for start in starts {
            self.offer_waiting(start, around);
        }
        self.pump(around);
    }

    pub(crate) fn resume(&mut self, resumed: Resumed, out_of_order: bool) {
        let Resumed { start, markers, crc } = resumed;
        let terms = Terms { markers, crc, version: ProtocolVersion::IETF, rtr: None };
        let (zero, first) = (StreamOffset::ZERO, StreamOffset(start));
        let mpa = FpduReceiver::resuming(terms.rx_config(out_of_order), zero, first);
        let mut tally = Tally::new(zero, markers, crc, terms.version);
        tally.delivered_end = first;
        tally.forget_order();
        let origin = Origin { at: start, frame: 0, startup: None };
        self.phase = Phase::Full(origin, Box::new(Full { mpa, tally }));
        if start > 0 {
            self.seen.insert(0..u128::from(start));
            self.commit(0, usize::try_from(start).expect("less than what is between markers"));
        }
    }

    pub(crate) fn discard(&mut self, shared: &mut Shared) {
        self.is_discarding = true;
        self.waiting_bytes = 0;
        for (bytes, _) in std::mem::take(&mut self.waiting).into_values() {
            shared.waiting_room.give(bytes.len());
            self.held.give(1, &mut shared.notes);
        }
    }

    pub(crate) fn release(&mut self, shared: &mut Shared) {
        self.discard(shared);
        self.held.give_all(&mut shared.notes);
        if let Phase::Full(_, full) = &mut self.phase {
            full.mpa.stop(&mut shared.store);
            full.tally.release(&mut shared.starts, &mut shared.images);
        }
    }

    fn pump(&mut self, around: &mut Around<'_>) {
        while let Some((&start, _)) = self.waiting.first_key_value() {
            if start > self.tcp.rcv_nxt().0 || !self.offer_waiting(start, around) {
                break;
            }
        }
        let delivered = match &self.phase {
            Phase::Full(_, full) => full.tally.delivered_end(),
            _ => self.tcp.rcv_nxt(),
        };
        self.arrivals.forget_before(delivered, &mut self.held, &mut around.shared.notes);
    }

    fn offer_waiting(&mut self, start: u64, around: &mut Around<'_>) -> bool {
        let Some((bytes, frame)) = self.waiting.remove(&start) else { return false };
        around.shared.waiting_room.give(bytes.len());
        self.waiting_bytes -= bytes.len() as u64;
        self.held.give(1, &mut around.shared.notes);
        let taken = self.offer(start, &bytes, frame, around);
        self.wait(start + taken as u64, &bytes[taken..], frame, around);
        taken > 0
    }

    const fn note_time(&mut self, around: &Around<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.now_ns = around.now_ns;
        }
    }

    /// Records the bytes that wait for earlier bytes or for the rest of their FPDU.
    fn note_held(&mut self) {
        if let (Some(trace), Phase::Full(_, full)) = (&mut self.trace, &self.phase) {
            trace.holds(full.mpa.bytes_held() + self.waiting_bytes);
        }
    }

    pub(crate) fn acknowledged(&mut self, segment: &Segment<'_>, frame: u64) {
        let tcp::Header { flags, ack, window, ref options, .. } = segment.header;
        if !flags.contains(Flags::ACK) || flags.intersects(Flags::RST) {
            return;
        }
        let near = StreamOffset(self.high);
        let Some(offset) = self.space.offset_near(ack, near) else { return };
        self.behaviour.window(window, flags.contains(Flags::SYN), frame);
        let stamp = options.timestamps.map(|stamps| stamps.value);
        self.behaviour.acks.note(offset.0, segment.at_ns, frame, stamp);
        let Some(trace) = &mut self.trace else { return };
        trace.now_ns = segment.at_ns;
        // RFC 7323 §2.2: the window of a SYN is not scaled.
        let scale = if flags.contains(Flags::SYN) { 0 } else { trace.window_scale };
        trace.acknowledged(offset.0, u64::from(window) << scale, frame);
        for (start, end) in &options.sack {
            let octets = (self.space.offset_near(*start, near), self.space.offset_near(*end, near));
            if let (Some(start), Some(end)) = octets
                && start < end
            {
                trace.mark(Class::Sack, (start.0, end.0), frame);
            }
        }
    }

    fn wait(&mut self, start: u64, bytes: &[u8], frame: u64, around: &mut Around<'_>) {
        if bytes.is_empty() {
            return;
        }
        let Shared { waiting_room, notes, .. } = &mut *around.shared;
        if !self.held.has_room(notes) || !waiting_room.take(bytes.len()) {
            self.lost_bytes += bytes.len() as u64;
            return;
        }
        self.held.take(notes);
        self.waiting_bytes += bytes.len() as u64;
        self.waiting.insert(start, (bytes.to_vec(), frame));
    }

    /// Returns the number of accepted bytes.
    fn offer(&mut self, start: u64, bytes: &[u8], frame: u64, around: &mut Around<'_>) -> usize {
        if self.is_discarding {
            return bytes.len();
        }
        match &mut self.phase {
            Phase::Startup(search) => {
                if start != self.tcp.rcv_nxt().0 {
                    return 0;
                }
                let (taken, result) = search.read(bytes, frame);
                self.commit(start, taken);
                match result {
                    Ok(None) => {}
                    Ok(Some(found)) => {
                        if let Some(comments) = &around.findings.comments {
                            comments.line(frame, &found.told());
                        }
                        self.phase = Phase::Settled(found);
                    }
                    Err(reason) => {
                        self.phase = Phase::Lost;
                        self.discard(around.shared);
                        if let Some(error) = reason {
                            let from = around.from;
                            around
                                .findings
                                .add(Kind::StartupFrame, from, frame, || error.to_string());
                        }
                    }
                }
                taken
            }
            Phase::Settled(_) => 0,
            Phase::Full(_, full) => {
                // FPDUs ahead of others are remembered until the others have arrived.
                let is_ahead = start != self.tcp.rcv_nxt().0;
                if is_ahead && !self.held.has_room(&around.shared.notes) {
                    return 0;
                }
                let notes = (frame, &self.arrivals, self.trace.as_deref_mut());
                let taken = full.offer(&self.tcp, start, bytes, notes, &mut self.held, around);
                self.commit(start, taken);
                taken
            }
            Phase::Lost => bytes.len(),
        }
    }

    fn commit(&mut self, start: u64, len: usize) {
        let start = StreamOffset(start);
        let committed = self.tcp.commit(start..start + len as u64);
        committed.expect("in order, or room was requested at the start of the bytes");
    }

    fn decide_alignment(&mut self, around: &mut Around<'_>) {
        let Phase::Full(origin, full) = &self.phase else { return };
        let mut trace = self.trace.as_deref_mut();
        let comments = around.findings.comments.as_ref();
        let decided = |fit, octets, count, frame| {
            if let Some(trace) = &mut trace {
                trace.fit(fit, octets, count, frame);
            }
            if let Some(comments) = comments {
                comments.fit(frame, fit);
            }
        };
        let notes = &mut around.shared.notes;
        self.alignment.decide(origin.at, &full.tally, &mut self.held, notes, decided);
    }

    pub(crate) const fn tally(&self) -> Option<&Tally> {
        match &self.phase {
            Phase::Full(_, full) => Some(&full.tally),
            _ => None,
        }
    }

    pub(crate) const fn has_data(&self) -> bool {
        self.segments > 0
    }
}
