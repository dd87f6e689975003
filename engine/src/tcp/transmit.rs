//! Transmit path: headers for new data, and all segments that are not new data.

use std::ops::Range;

use super::connection::{Persist, Tcb};
use super::header::Ecn;
use super::header::{Flags, Header, Options, SACK_BLOCKS_MAX};
use super::seq::SeqNum;
use super::state::{State, Trigger};
use super::timer::Timer;
use crate::time::Instant;
use crate::types::StreamOffset;

/// Amount of new data that may be sent now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Bytes that both windows permit. The limit of cwnd is rounded up to whole segments of the
    /// EMSS; the peer's window is exact.
    pub bytes: usize,
    /// The peer's window is smaller than a segment and will not grow by waiting (RFC 9293
    /// §3.8.6.2.1): send up to `bytes`, even if that splits a record.
    pub forced: bool,
}

/// A segment that is not new data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its header.
    pub header: Header,
    /// The bytes it carries; empty for a control segment.
    pub data: Range<StreamOffset>,
    /// These bytes (or the SYN or FIN) were sent before.
    pub retransmission: bool,
}

impl Tcb {
    /// Returns how much new data may be sent now. Call it only if there is something to send: a
    /// call while the peer's window is too small starts the persist timer.
    pub fn send_budget(&mut self, now: Instant) -> Budget {
        let nxt = self.snd.board.nxt();
        let closed = self.fin_sent || self.close_at.is_some_and(|end| nxt >= end);
        if !self.state.can_send() || closed {
            return Budget::default();
        }
        self.snd.restart_if_idle(now);
        let window_room = self.snd.window_room();
        // spec: TCP-5681-1
        let mut room = window_room.min(self.snd.cwnd_room());
        if room > 0 {
            match self.snd.pacing_room(now) {
                Ok(paced) => room = room.min(paced),
                Err(at) => {
                    room = 0;
                    self.timers.set(Timer::Pacing, at);
                }
            }
        }
        let idle = self.snd.board.flight() == 0;
        let mut forced = false;
        // spec: TCP-9293-17
        if idle && window_room < u64::from(self.snd.emss()) {
            let half = self.snd.fills_half_the_window(window_room);
            forced = window_room > 0 && (half || self.persist.override_due);
            if !forced && window_room > 0 {
                self.arm_override(now);
            } else if !forced && !self.timers.is_set(Timer::Persist) {
                self.begin_persist(now);
            }
        }
        if self.ecn.cwr_due {
            // CWR belongs on one segment, and a super-frame would repeat it.
            room = room.min(u64::from(self.snd.emss()));
        }
        let to_end = self.close_at.map_or(u64::MAX, |end| end.bytes_since(nxt));
        let bytes = usize::try_from(room.min(to_end)).unwrap_or(usize::MAX);
        Budget { bytes, forced }
    }

    fn begin_persist(&mut self, now: Instant) {
        self.snd.progress(now);
        self.persist.backoff = 0;
        self.tell("the peer's window is shut");
        self.arm_persist(now);
    }

    /// Registers `len` bytes of new data that start at `snd_nxt`, and returns the header to send
    /// them with, in segments of `segment_len` bytes (the last may be shorter). `push`: nothing
    /// follows at once, so the last segment carries PSH. Panics if a length is 0 or at least 2³²,
    /// or the state does not allow data ([`send_budget`](Self::send_budget) is 0 then).
    pub fn record_sent(
        &mut self,
        now: Instant,
        len: usize,
        segment_len: usize,
        push: bool,
    ) -> Header {
        assert!(self.state.can_send() && !self.fin_sent, "data sent on a closed connection");
        let len = u32::try_from(len).expect("less than 4 GiB at once");
        let segment_len = u32::try_from(segment_len).expect("less than 4 GiB at once");
        assert!(len > 0 && segment_len > 0, "an empty segment");
        let seq = self.snd.space.seq_at(self.snd.board.nxt());
        let push = self.snd.sent(now, len, segment_len, push);
        self.counters.segments_sent += u64::from(len.div_ceil(segment_len));
        self.counters.bytes_sent += u64::from(len);
        self.after_sending(now);
        let push = if push { Flags::PSH } else { Flags::empty() };
        let flags = Flags::ACK | push | self.ecn.data_flags();
        let mut header = self.header(now, seq, flags);
        header.ecn = self.ecn.data_field();
        self.rode_on_data();
        header
    }

    fn after_sending(&mut self, now: Instant) {
        // RFC 6298 §5.1: "if the timer is not running, start it", with every packet containing
        // data.
        if !self.timers.is_set(Timer::Retransmit) {
            self.arm_retransmit(now);
        }
        self.arm_loss_probe();
        if self.timers.is_set(Timer::Persist) || self.persist.override_due {
            self.timers.clear(Timer::Persist);
            self.persist = Persist::default();
        }
    }

    fn rode_on_data(&mut self) {
        if self.acks.rode_on_data() {
            self.timers.clear(Timer::DelayedAck);
        }
    }

    /// Returns the next segment that is not new data: RST, SYN, retransmission, FIN, probe, in this
    /// order. When it returns `None`, send new data, then call [`poll_ack`](Self::poll_ack).
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let control = |header| {
            let data = StreamOffset::ZERO..StreamOffset::ZERO;
            Some(Outgoing { header, data, retransmission: false })
        };
        if let Some(reset) = self.reset.take() {
            return control(*reset);
        }
        if self.handshake.syn_due {
            return Some(self.syn(now));
        }
        if !self.state.is_synchronized() {
            return None;
        }
        let is_probe = self.snd.is_loss_probe_next();
        if let Some(resend) = self.snd.resend(now) {
            // A probe asks if anything is lost; it was counted when it began.
            self.counters.retransmissions += u64::from(!is_probe);
            if resend.first {
                // RFC 6298 §5: a full RTO must pass before the next one.
                self.arm_retransmit(now);
            }
            let mut flags = Flags::ACK;
            flags.set(Flags::PSH, resend.push);
            flags.set(Flags::FIN, resend.fin);
            let seq = self.snd.space.seq_at(resend.data.start);
            let header = self.header(now, seq, flags);
            self.rode_on_data();
            return Some(Outgoing { header, data: resend.data, retransmission: true });
        }
        if self.fin_is_due(now) {
            let header = self.fin(now);
            return control(header);
        }
        if std::mem::take(&mut self.persist.probe_due) {
            // A segment without data just before SND.UNA: not acceptable, hence acknowledged. It
            // takes no byte of the next record, which stays whole.
            self.counters.probes_sent += 1;
            let una = self.snd.space.seq_at(self.snd.board.una());
            return control(self.header(now, SeqNum(una.0.wrapping_sub(1)), Flags::ACK));
        }
        None
    }

    /// Returns an owed pure acknowledgment, until `None`. Call it last: new data may carry it.
    pub fn poll_ack(&mut self, now: Instant) -> Option<Header> {
        let has_early = self.ecn.has_early();
        if !(self.acks.is_due() || has_early) || !self.state.is_synchronized() {
            return None;
        }
        if has_early {
            return self.early_ack(now);
        }
        let seq = self.snd.space.seq_at(self.snd.board.nxt());
        let mut header = self.header(now, seq, Flags::ACK);
        if self.snd.has_sack() {
            // spec: TCP-2018-1
            let max = if self.timestamps.agreed { SACK_BLOCKS_MAX - 1 } else { SACK_BLOCKS_MAX };
            // spec: TCP-A.2-5, TCP-A.3-6, TCP-2018-3
            self.rcv.sack_blocks(&mut header.options.sack, max);
        }
        self.counters.acks_sent += 1;
        if self.acks.pure_ack_sent() {
            self.timers.clear(Timer::DelayedAck);
        }
        Some(header)
    }

    /// Returns an acknowledgment of what arrived before a change of ECN marks (RFC 8257 §3.2).
    fn early_ack(&mut self, now: Instant) -> Option<Header> {
        let (number, echo) = self.ecn.take_early()?;
        let seq = self.snd.space.seq_at(self.snd.board.nxt());
        let mut header = self.header(now, seq, Flags::ACK);
        // The window keeps its right edge, which is counted from an earlier number here.
        let behind = u32::try_from(header.ack.distance_from(number)).unwrap_or(0);
        let behind = u16::try_from(behind >> self.rcv.shift()).unwrap_or(u16::MAX);
        header.window = header.window.saturating_add(behind);
        header.ack = number;
        header.flags.remove(Flags::ECE);
        header.flags |= echo;
        self.counters.acks_sent += 1;
        Some(header)
    }

    fn syn(&mut self, now: Instant) -> Outgoing {
        self.handshake.syn_due = false;
        let answer = self.state == State::SynReceived;
        let flags = if answer { Flags::SYN | Flags::ACK } else { Flags::SYN };
        let flags = flags | self.ecn.syn_flags(answer, self.handshake.syns_sent > 0);
        let mut header = self.header(now, self.snd.space.isn(), flags);
        if !answer {
            // A SYN echoes no timestamp either (RFC 7323 §3.2): TS.Recent is 0 until a SYN arrives.
            header.ack = SeqNum(0);
        }
        header.options.mss = Some(self.config.mss_receive);
        header.options.window_scale = self.handshake.window_scale;
        header.options.sack_permitted = self.handshake.sack;
        let retransmission = self.handshake.syns_sent > 0;
        self.handshake.syn_sent_at = (!retransmission).then_some(now);
        self.handshake.syns_sent = self.handshake.syns_sent.saturating_add(1);
        if !self.timers.is_set(Timer::Retransmit) {
            self.arm_retransmit(now);
        }
        Outgoing { header, data: StreamOffset::ZERO..StreamOffset::ZERO, retransmission }
    }

    fn fin_is_due(&mut self, now: Instant) -> bool {
        let all_sent = self.close_at == Some(self.snd.board.nxt());
        if self.fin_sent || !all_sent || !self.state.can_send() {
            return false;
        }
        // The FIN takes a place in the window. If that stays closed, the FIN is sent nevertheless
        // after a while: its retransmissions are probes.
        let has_room = self.snd.window_room() > 0 || self.persist.probe_due;
        if !has_room && self.snd.board.flight() == 0 && !self.timers.is_set(Timer::Persist) {
            self.begin_persist(now);
        }
        has_room
    }

    fn fin(&mut self, now: Instant) -> Header {
        let seq = self.snd.space.seq_at(self.snd.board.nxt());
        self.fin_sent = true;
        self.snd.fin_sent(now);
        self.enter(Trigger::FinSent);
        self.after_sending(now);
        let header = self.header(now, seq, Flags::FIN | Flags::ACK);
        self.rode_on_data();
        header
    }

    fn header(&mut self, now: Instant, seq: SeqNum, flags: Flags) -> Header {
        let ack = self.rcv.ack_number();
        self.timestamps.ack_sent(ack);
        let is_syn = flags.contains(Flags::SYN);
        let echo = if is_syn { Flags::empty() } else { self.ecn.echo_flags() };
        Header {
            src_port: self.local_port,
            dst_port: self.remote_port,
            seq,
            ack,
            flags: flags | echo,
            window: self.rcv.window_field(is_syn),
            options: Options { timestamps: self.timestamps.option(now), ..Options::default() },
            ecn: Ecn::NotCapable,
        }
    }
}
