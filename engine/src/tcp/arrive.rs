//! Receive path: RFC 9293 §3.10.7, in its order, with RFC 7323 and RFC 5961.

use std::ops::Range;

use tracing::debug;

use super::TRACE;
use super::ack::AckDue;
use super::connection::{Persist, Tcb, TcpEvent};
use super::counters::DropReason;
use super::header::{Flags, Header};
use super::listen::reset_for;
use super::recv::{Acceptability, ArrivedPayload};
use super::send::Ack;
use super::seq::SeqNum;
use super::state::{State, Trigger};
use super::timer::Timer;
use crate::limits::FRAME_PAYLOAD_MAX;
use crate::time::Instant;
use crate::types::StreamOffset;

/// Result of processing one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The part of its payload that the layer above may commit.
    pub payload: Option<ArrivedPayload>,
    /// Reason for which the segment was dropped or its payload is not offered.
    pub drop: Option<DropReason>,
    segments: usize,
    payload_len: usize,
    /// First part of the payload that was received before, if other parts are new.
    repeated: Option<Range<StreamOffset>>,
    committed_before: u64,
    /// It does not continue the stream, or there was a gap already.
    disordered: bool,
    push: bool,
}

/// Most segments that a super-frame combines: each has at least one byte.
const SEGMENTS_MAX: usize = FRAME_PAYLOAD_MAX;

impl Arrival {
    pub(super) fn in_order(
        range: Range<StreamOffset>,
        segments: usize,
        push: bool,
        committed_before: u64,
    ) -> Self {
        let payload_len = range.end.index_from(range.start);
        let payload = Some(ArrivedPayload { skip: 0, range });
        let (drop, disordered, repeated) = (None, false, None);
        Self { payload, drop, segments, payload_len, repeated, committed_before, disordered, push }
    }
}

enum Stop {
    Drop(DropReason),
    Done,
}

impl Tcb {
    /// Processes a segment except its data, which the returned [`Arrival`] offers. `segments` is
    /// the number of wire segments that a coalesced super-frame combines, at least 1. The caller
    /// has verified the checksum and the ports. If a payload is offered, the caller commits what it
    /// keeps of it and calls [`finish_arrival`](Self::finish_arrival) before the next segment. A
    /// closed connection drops everything; the port then decides on the answer
    /// (`listen::reset_for`).
    pub fn handle_segment(
        &mut self,
        now: Instant,
        header: &Header,
        payload_len: usize,
        segments: usize,
    ) -> Arrival {
        let segments = segments.clamp(1, SEGMENTS_MAX);
        self.counters.segments_received += segments as u64;
        let mut arrival = Arrival {
            payload: None,
            drop: None,
            segments,
            payload_len,
            repeated: None,
            committed_before: self.rcv.committed_bytes(),
            disordered: self.rcv.has_gap(),
            push: header.flags.contains(Flags::PSH),
        };
        let result = match self.state {
            State::Closed => Err(Stop::Drop(DropReason::Closed)),
            State::SynSent => self.in_syn_sent(now, header, payload_len),
            _ => self.in_other_states(now, header, &mut arrival),
        };
        if let Err(Stop::Drop(reason)) = result {
            arrival.drop = Some(reason);
        }
        if let Some(reason) = arrival.drop {
            self.count_drop(reason);
        }
        arrival
    }

    /// Counts a dropped segment, and traces it if the count is a power of two.
    #[cold]
    fn count_drop(&mut self, reason: DropReason) {
        let dropped = &mut self.counters.dropped[reason as usize];
        *dropped += 1;
        if dropped.is_power_of_two() {
            let (local_port, remote_port) = (self.local_port, self.remote_port);
            debug!(target: TRACE, local_port, remote_port, ?reason, dropped, "segment dropped");
        }
    }

    /// Ends an arrival after the commits; `refused` if not all bytes were kept. Decides when to
    /// acknowledge, and takes a FIN that is next.
    pub fn finish_arrival(&mut self, now: Instant, arrival: &Arrival, refused: bool) {
        let Some(payload) = &arrival.payload else { return };
        let gained = self.rcv.committed_bytes().wrapping_sub(arrival.committed_before);
        let segments = arrival.segments as u64;
        // A segment that starts beyond RCV.NXT has not moved it.
        if payload.range.start > self.rcv.rcv_nxt() {
            self.counters.out_of_order += segments;
        }
        if refused {
            self.counters.refused += segments;
        } else if gained == 0 {
            self.counters.duplicates += segments;
            self.rcv.report_duplicate(payload.range.clone());
        } else if let Some(repeated) = arrival.repeated.clone() {
            // RFC 2883 §4.2: partial duplicates are reported, too.
            self.rcv.report_duplicate(repeated);
        }
        // The layer above had kept bytes behind a gap, which this segment fills.
        let joins = gained > payload.range.end.bytes_since(payload.range.start);
        // RFC 5681 §4.2: segments out of order or that fill a gap SHOULD be acknowledged
        // immediately. A duplicate means that an acknowledgment was lost.
        if refused || gained == 0 || joins || arrival.disordered || arrival.repeated.is_some() {
            self.acks.owe_separate(!self.snd.has_sack());
        } else {
            let Arrival { segments, payload_len, push, .. } = *arrival;
            self.acknowledge_data(now, segments, payload_len, push);
        }
        self.take_fin(now);
    }

    #[inline]
    pub(super) fn acknowledge_data(
        &mut self,
        now: Instant,
        segments: usize,
        payload_len: usize,
        push: bool,
    ) {
        let mss = usize::from(self.config.mss_receive);
        let hold = self.config.ack_hold;
        match self.acks.on_data(segments, payload_len, mss, push, !hold.is_zero()) {
            AckDue::Now => {}
            AckDue::Held => self.timers.set_at_most(Timer::DelayedAck, now + hold),
            AckDue::Delayed => {
                self.timers.set_at_most(Timer::DelayedAck, now + self.config.delayed_ack);
            }
        }
    }

    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    fn in_syn_sent(&mut self, now: Instant, header: &Header, payload: usize) -> Result<(), Stop> {
        let flags = header.flags;
        let acks_ours = header.ack == self.snd.space.isn().plus(1);
        if flags.contains(Flags::ACK) && !acks_ours {
            self.reset = reset_for(header, payload).map(Box::new);
            return Err(Stop::Drop(DropReason::AckOutOfRange));
        }
        if flags.contains(Flags::RST) {
            if !flags.contains(Flags::ACK) {
                return Err(Stop::Drop(DropReason::BlindReset));
            }
            self.enter(Trigger::Abandoned);
            self.finish(TcpEvent::Refused);
            return Err(Stop::Done);
        }
        if !flags.contains(Flags::SYN) {
            return Err(Stop::Drop(DropReason::AckMissing));
        }
        self.take_syn(now, header);
        self.keepalive.received_at = now;
        if flags.contains(Flags::ACK) {
            self.establish(now);
            self.acks.owe();
        } else {
            // Simultaneous open (RFC 9293 MUST-10).
            // spec: TCP-9293-5
            self.enter(Trigger::PeerSyn);
            self.handshake.syn_due = true;
        }
        Ok(())
    }

    /// Processes a segment in all states but CLOSED and SYN-SENT (RFC 9293 §3.10.7.4).
    fn in_other_states(
        &mut self,
        now: Instant,
        header: &Header,
        arrival: &mut Arrival,
    ) -> Result<(), Stop> {
        let (flags, len) = (header.flags, arrival.payload_len);
        self.check_timestamp(now, header, len)?;
        if self.state == State::SynReceived && flags.contains(Flags::SYN) {
            return self.syn_in_syn_received(now, header);
        }
        let control = u8::from(flags.contains(Flags::SYN)) + u8::from(flags.contains(Flags::FIN));
        let acceptability = self.rcv.acceptability(header.seq, len, control);
        if flags.contains(Flags::RST) {
            return self.on_reset(now, header.seq, &acceptability);
        }
        if flags.contains(Flags::SYN) {
            // RFC 5961 §4.2: "If the SYN bit is set, irrespective of the sequence number, TCP
            // endpoints MUST send a challenge ACK to the remote peer".
            // spec: TCP-5961-2
            self.challenge(now);
            return Err(Stop::Drop(DropReason::UnexpectedSyn));
        }
        let (payload, starts_at_next) = match acceptability {
            Acceptability::Old => return Err(self.on_old(now, header, len)),
            Acceptability::Beyond => {
                self.answer_stray(now, len);
                return Err(Stop::Drop(DropReason::BeyondWindow));
            }
            Acceptability::Inside { payload, starts_at_next } => (payload, starts_at_next),
        };
        if !flags.contains(Flags::ACK) {
            return Err(Stop::Drop(DropReason::AckMissing));
        }
        self.on_ack(now, header, len)?;
        // After the check of the acknowledgment number (RFC 5961 §5.2): a forged timestamp from the
        // future would make the peer's own timestamps old for days.
        if let Some(timestamps) = header.options.timestamps.filter(|_| self.timestamps.agreed) {
            self.timestamps.update(now, timestamps.value, header.seq);
        }
        // spec: TCP-A.3-2
        self.on_payload(now, header, payload, arrival);
        arrival.disordered |= !starts_at_next;
        Ok(())
    }

    /// Checks the timestamp, before the sequence number (RFC 7323 §3.2 and §5.3 R1).
    // spec: TCP-7323-3, TCP-7323-5, TCP-7323-7
    fn check_timestamp(
        &mut self,
        now: Instant,
        header: &Header,
        payload_len: usize,
    ) -> Result<(), Stop> {
        if !self.timestamps.agreed || header.flags.contains(Flags::RST) {
            return Ok(());
        }
        let Some(timestamps) = header.options.timestamps else {
            return Err(Stop::Drop(DropReason::TimestampMissing));
        };
        if self.timestamps.is_old(now, timestamps.value)
            && !self.is_reordered_ack(header, payload_len, timestamps.value)
        {
            if self.strays.allow(now) {
                self.acks.owe_separate(false);
            }
            return Err(Stop::Drop(DropReason::Paws));
        }
        Ok(())
    }

    /// Returns true if a segment with an old timestamp is an acknowledgment that later ones have
    /// overtaken. RFC 7323 §5.3 says to drop and answer it; but it places no data, moves no edge,
    /// and its SACK blocks can be new. Linux's rule: a pure acknowledgment of SND.UNA, at RCV.NXT,
    /// that does not update the window, and is late by at most one RTO.
    fn is_reordered_ack(&self, header: &Header, payload_len: usize, value: u32) -> bool {
        let una = self.snd.board.una();
        let control = Flags::SYN | Flags::FIN | Flags::RST;
        let is_pure = payload_len == 0
            && header.flags.contains(Flags::ACK)
            && !header.flags.intersects(control);
        is_pure
            && header.seq == self.rcv.ack_number()
            && header.ack == self.snd.space.seq_at(una)
            && !self.snd.updates_window(header, una)
            && self.timestamps.lateness_ns(value) <= self.snd.rtt.rto_ns()
    }

    /// A retransmission of the peer's SYN, or a simultaneous open.
    fn syn_in_syn_received(&mut self, now: Instant, header: &Header) -> Result<(), Stop> {
        let flags = header.flags;
        if header.seq != self.rcv.space().isn() || flags.contains(Flags::RST) {
            self.challenge_with_syn(now);
            return Err(Stop::Drop(DropReason::UnexpectedSyn));
        }
        if !flags.contains(Flags::ACK) {
            self.challenge_with_syn(now);
            return Err(Stop::Done);
        }
        if header.ack != self.snd.space.isn().plus(1) {
            return Err(Stop::Drop(DropReason::AckOutOfRange));
        }
        // RFC 9293 §3.5, Figure 8: the SYN-ACK of a simultaneous open establishes.
        self.snd.first_window(header);
        self.establish(now);
        self.acks.owe();
        Ok(())
    }

    /// Answers with our SYN-ACK, up to the limit of challenges.
    fn challenge_with_syn(&mut self, now: Instant) {
        if self.challenges.allow(now) {
            self.handshake.syn_due = true;
        }
    }

    /// Processes a RST (RFC 5961 §3.2).
    fn on_reset(
        &mut self,
        now: Instant,
        seq: SeqNum,
        acceptability: &Acceptability,
    ) -> Result<(), Stop> {
        let Acceptability::Inside { .. } = acceptability else {
            return Err(Stop::Drop(DropReason::BeyondWindow));
        };
        // spec: TCP-5961-1, SEC-T-7
        if seq != self.rcv.ack_number() {
            self.challenge(now);
            return Err(Stop::Drop(DropReason::BlindReset));
        }
        let event = match self.state {
            // spec: TCP-9293-5
            State::SynReceived if self.handshake.active => TcpEvent::Refused,
            // RFC 9293 §3.10.7.4: both closes are done; the application has its event. RFC 1337 §3
            // says to ignore the RST, so that old duplicates cannot reach the next incarnation.
            // Here timestamps and an ISN that follows the clock distinguish old duplicates, and an
            // old RST would have to be at RCV.NXT.
            State::TimeWait => {
                self.enter(Trigger::Abandoned);
                return Err(Stop::Done);
            }
            // No "connection reset": the peer may have left TIME-WAIT while our FIN was lost.
            State::Closing | State::LastAck => TcpEvent::Closed,
            _ => TcpEvent::Reset,
        };
        self.enter(Trigger::Abandoned);
        self.finish(event);
        Err(Stop::Done)
    }

    fn challenge(&mut self, now: Instant) {
        if self.state == State::SynReceived {
            self.challenge_with_syn(now);
        } else if self.challenges.allow(now) {
            self.acks.owe_separate(false);
        }
    }

    /// A duplicate, or a probe. RFC 9293 §3.10.7.4: "an acknowledgment should be sent in reply".
    fn on_old(&mut self, now: Instant, header: &Header, payload_len: usize) -> Stop {
        if payload_len > 0 {
            self.counters.duplicates += 1;
            self.rcv.report_old(header.seq, payload_len);
        }
        self.keepalive.received_at = now;
        self.keepalive.unanswered = 0;
        self.answer_stray(now, payload_len);
        if self.state == State::TimeWait && header.flags.contains(Flags::FIN) {
            // RFC 9293 §3.10.7.4: "Acknowledge it, and restart the 2 MSL timeout."
            self.timers.set(Timer::TimeWait, now + self.config.time_wait);
        }
        Stop::Drop(DropReason::Old)
    }

    fn answer_stray(&mut self, now: Instant, payload_len: usize) {
        if payload_len > 0 || self.strays.allow(now) {
            self.acks.owe_separate(payload_len > 0 && !self.snd.has_sack());
        }
    }

    /// Processes the acknowledgment: RFC 9293 §3.10.7.4, "Fifth, check the ACK field".
    fn on_ack(&mut self, now: Instant, header: &Header, payload_len: usize) -> Result<(), Stop> {
        let una = self.snd.board.una();
        if self.state == State::SynReceived {
            if header.ack != self.snd.space.seq_at(una) {
                self.reset = reset_for(header, payload_len).map(Box::new);
                return Err(Stop::Drop(DropReason::AckOutOfRange));
            }
            self.establish(now);
            self.snd.first_window(header);
        }
        // RFC 5961 §5.2: "(SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT".
        // spec: TCP-5961-3
        let distance = i64::from(header.ack.distance_from(self.snd.space.seq_at(una)));
        let too_old = distance < 0 && distance.unsigned_abs() > self.snd.window_max();
        let too_new = u64::try_from(distance).is_ok_and(|ahead| ahead > self.snd.board.flight());
        if too_old || too_new {
            self.challenge(now);
            return Err(Stop::Drop(DropReason::AckOutOfRange));
        }
        self.keepalive.received_at = now;
        self.keepalive.unanswered = 0;
        let Some(ack) = una.0.checked_add_signed(distance) else { return Ok(()) };
        let ack = StreamOffset(ack);
        let marked = self.ecn.agreed && header.flags.contains(Flags::ECE);
        if distance == 0 && payload_len > 0 && !marked && self.awaits_nothing(header) {
            // Data from a peer to which nothing is being sent: its ACK can only change the window.
            self.snd.update_window(now, header, ack);
            return Ok(());
        }
        let pure = payload_len == 0 && !header.flags.contains(Flags::FIN);
        let stamps = header.options.timestamps.filter(|_| self.timestamps.agreed);
        let echo = stamps.and_then(|stamps| self.timestamps.echo(now, stamps.echo));
        let outcome = self.snd.on_ack(now, &Ack { header, ack, pure, echo, marked });
        self.ecn.cwr_due |= outcome.reduced;
        if outcome.recovery_began {
            self.counters.fast_retransmits += 1;
            self.tell("losses found, recovery begins");
        }
        if outcome.undone {
            self.counters.recoveries_undone += 1;
            self.tell("recovery was needless and is undone");
        }
        if self.snd.next_loss_at().is_some() || self.timers.is_set(Timer::Reordering) {
            self.arm_reordering();
        }
        if outcome.advanced {
            if self.snd.board.flight() == 0 {
                // RFC 6298 §5.2.
                self.timers.clear(Timer::Retransmit);
                self.timers.clear(Timer::LossProbe);
            } else {
                // RFC 6298 §5.3.
                self.arm_retransmit(now);
                self.arm_loss_probe();
            }
        }
        if self.timers.is_set(Timer::Persist)
            && self.snd.window_room() >= u64::from(self.snd.emss())
        {
            self.timers.clear(Timer::Persist);
            self.persist = Persist::default();
        }
        if self.fin_sent && outcome.advanced && self.snd.board.flight() == 0 {
            self.on_fin_acknowledged(now);
        }
        Ok(())
    }

    #[inline]
    fn awaits_nothing(&self, header: &Header) -> bool {
        header.options.sack.is_empty()
            && self.snd.is_at_rest()
            && !self.timers.is_set(Timer::Persist)
            && !self.timers.is_set(Timer::Reordering)
    }

    fn on_fin_acknowledged(&mut self, now: Instant) {
        self.enter(Trigger::FinAcknowledged);
        match self.state {
            State::TimeWait => self.begin_time_wait(now),
            State::Closed => self.finish(TcpEvent::Closed),
            _ => {}
        }
    }

    /// RFC 9293 §3.10.7.4, "Seventh, process the segment text" and "Eighth, check the FIN bit". The
    /// urgent pointer is ignored: urgent bytes are in the stream (MUST-30 to MUST-33 require
    /// nothing else of MPA).
    // spec: TCP-9293-14
    fn on_payload(
        &mut self,
        now: Instant,
        header: &Header,
        payload: Option<ArrivedPayload>,
        arrival: &mut Arrival,
    ) {
        let len = arrival.payload_len;
        if len > 0 {
            if self.rcv.fin_taken() || !self.state.can_receive() {
                arrival.drop = Some(DropReason::AfterFin);
            } else if payload.is_none() {
                // A window probe with data, or data beyond the peer's own FIN.
                arrival.drop = Some(DropReason::WindowClosed);
                self.acks.owe_separate(false);
            } else {
                if self.ecn.agreed {
                    let waiting = self.acks.has_unacknowledged();
                    self.ecn.on_data(header, waiting.then(|| self.rcv.ack_number()));
                }
                arrival.repeated = payload.as_ref().and_then(|part| self.rcv.repeated(part));
                arrival.payload = payload;
            }
        }
        if header.flags.contains(Flags::FIN) && !self.rcv.fin_taken() {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            self.rcv.note_fin(header.seq.plus(len));
            if arrival.payload.is_none() {
                self.take_fin(now);
                // Out of order or in order: a FIN is answered at once.
                self.acks.owe_separate(false);
            }
        }
    }

    // spec: TCP-9293-9
    fn take_fin(&mut self, now: Instant) {
        if !self.state.can_receive() || !self.rcv.take_fin() {
            return;
        }
        self.acks.owe();
        self.raise(TcpEvent::PeerFin);
        self.enter(Trigger::PeerFin);
        if self.state == State::TimeWait {
            self.begin_time_wait(now);
        }
    }
}
