//! Record of a connection in TIME-WAIT (RFC 9293 §3.6.1): only the state that its answers need.
//! [`TimeWait`] answers as the connection would have: a test drives both with the same segments.

use super::ack::{Challenges, OWED_MAX, Strays, TICK_NS, TimestampState};
use super::connection::Tcb;
use super::header::{Ecn, Flags, Header, Options, SackBlock};
use super::recv::Stand;
use super::send_window::SendWindow;
use super::seq::SeqNum;
use super::state::State;
use super::timer::Timer;
use crate::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct TimeWait {
    timestamps: TimestampState,
    /// The peer's window: a segment that updates it is not a reordered acknowledgment.
    window: SendWindow,
    challenges: Challenges,
    strays: Strays,
    /// RCV.NXT, counting the peer's FIN.
    rcv_nxt: SeqNum,
    /// SND.NXT, counting our FIN. All before it is acknowledged.
    snd_nxt: SeqNum,
    /// At most 2³² − 1: a duplicate that starts before the first byte is invalid.
    delivered: u32,
    /// A duplicate to report once (RFC 2883); empty if there is none.
    duplicate: SackBlock,
    /// Longest delay of a reordered acknowledgment, in ticks of the timestamp clock.
    lateness_max: u16,
    window_field: u16,
    owed: u8,
    sack: bool,
    /// Echoes a mark: RFC 3168 §6.1.3 repeats it until data with CWR, which never arrives.
    echoes_mark: bool,
}

const _: () = assert!(size_of::<TimeWait>() <= 96, "a record of 256 bytes has room for it");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeWaitOutcome {
    /// TIME-WAIT continues.
    Lasts,
    /// RFC 9293 §3.10.7.4: "restart the 2 MSL timeout".
    Restarts,
    /// TIME-WAIT is over: CLOSED.
    Ends,
}

impl Tcb {
    /// With its end time, if nothing else is left. Drop the connection then.
    // spec: TCP-9293-8
    pub(crate) fn time_wait(&mut self) -> Option<(TimeWait, Instant)> {
        let nothing_else = self.reset.is_none() && self.events.is_empty() && !self.ecn.has_early();
        if self.state != State::TimeWait || !nothing_else {
            return None;
        }
        let until = self.timers.deadline(Timer::TimeWait)?;
        let owed = self.acks.owed().min(OWED_MAX);
        let rest = TimeWait {
            timestamps: self.timestamps,
            window: self.snd.window(),
            challenges: self.challenges,
            strays: self.strays,
            rcv_nxt: self.rcv.ack_number(),
            snd_nxt: self.snd_end_seq(),
            delivered: u32::try_from(self.rcv.rcv_nxt().0).unwrap_or(u32::MAX),
            duplicate: self.rcv.duplicate().unwrap_or_default(),
            lateness_max: u16::try_from(self.snd.rtt.rto_ns() / TICK_NS).unwrap_or(u16::MAX),
            window_field: self.rcv.window_field(false),
            owed: u8::try_from(owed).unwrap_or(u8::MAX),
            sack: self.snd.has_sack(),
            echoes_mark: self.ecn.echo_flags().contains(Flags::ECE),
        };
        Some((rest, until))
    }

    /// Returns true if a SYN may replace this connection, which is in TIME-WAIT or closed.
    #[must_use]
    pub(crate) fn may_be_replaced_by(&self, syn: &Header) -> bool {
        let rcv_nxt = self.rcv.ack_number();
        let is_over = matches!(self.state, State::TimeWait | State::Closed);
        is_over && opens_later(syn, &self.timestamps, rcv_nxt)
    }
}

impl TimeWait {
    /// Processes a segment, whose checksum the caller verified; its text is never taken.
    pub(crate) fn handle_segment(
        &mut self,
        now: Instant,
        header: &Header,
        payload_len: usize,
    ) -> TimeWaitOutcome {
        let flags = header.flags;
        if !self.passes_timestamp_check(now, header, payload_len) {
            return TimeWaitOutcome::Lasts;
        }
        let control = u8::from(flags.contains(Flags::SYN)) + u8::from(flags.contains(Flags::FIN));
        // The peer has nothing left to send: the window is closed.
        let stand = Stand::of(header.seq, payload_len, control, self.rcv_nxt, 0);
        if flags.contains(Flags::RST) {
            return self.on_reset(now, header.seq, stand);
        }
        if flags.contains(Flags::SYN) {
            // RFC 5961 §4.2, as on an open connection.
            self.challenge(now);
            return TimeWaitOutcome::Lasts;
        }
        match stand {
            Stand::Old => return self.on_old(now, header, payload_len),
            Stand::Beyond => self.answer_stray(now, payload_len),
            Stand::Inside { .. } if flags.contains(Flags::ACK) => {
                self.on_acknowledgment(now, header);
            }
            Stand::Inside { .. } => {}
        }
        TimeWaitOutcome::Lasts
    }

    fn passes_timestamp_check(
        &mut self,
        now: Instant,
        header: &Header,
        payload_len: usize,
    ) -> bool {
        if !self.timestamps.agreed || header.flags.contains(Flags::RST) {
            return true;
        }
        let Some(stamps) = header.options.timestamps else { return false };
        let is_old = self.timestamps.is_old(now, stamps.value)
            && !self.is_reordered_ack(header, payload_len, stamps.value);
        if is_old && self.strays.allow(now) {
            self.owe(false);
        }
        !is_old
    }

    /// Later acknowledgments have overtaken this one: it needs no answer, as on an open connection.
    fn is_reordered_ack(&self, header: &Header, payload_len: usize, value: u32) -> bool {
        let control = Flags::SYN | Flags::FIN | Flags::RST;
        let is_pure = payload_len == 0
            && header.flags.contains(Flags::ACK)
            && !header.flags.intersects(control);
        is_pure
            && header.seq == self.rcv_nxt
            && header.ack == self.snd_nxt
            && !self.window.is_updated_by(header, header.ack)
            && self.timestamps.lateness_ns(value) <= u64::from(self.lateness_max) * TICK_NS
    }

    /// RFC 5961 §3.2; [`Tcb`] explains the exact RST, which RFC 1337 §3 ignores.
    fn on_reset(&mut self, now: Instant, seq: SeqNum, stand: Stand) -> TimeWaitOutcome {
        match stand {
            Stand::Inside { .. } if seq == self.rcv_nxt => return TimeWaitOutcome::Ends,
            Stand::Inside { .. } => self.challenge(now),
            Stand::Old | Stand::Beyond => {}
        }
        TimeWaitOutcome::Lasts
    }

    /// RFC 9293 §3.10.7.4; for a FIN: "Acknowledge it, and restart the 2 MSL timeout."
    fn on_old(&mut self, now: Instant, header: &Header, payload_len: usize) -> TimeWaitOutcome {
        self.report_duplicate(header.seq, payload_len);
        self.answer_stray(now, payload_len);
        if header.flags.contains(Flags::FIN) {
            TimeWaitOutcome::Restarts
        } else {
            TimeWaitOutcome::Lasts
        }
    }

    /// Records a duplicate as the receive half does (RFC 2883 §4).
    fn report_duplicate(&mut self, seq: SeqNum, payload_len: usize) {
        let Ok(len) = u32::try_from(payload_len) else { return };
        let fin_at = SeqNum(self.rcv_nxt.0.wrapping_sub(1));
        let before = fin_at.distance_from(seq);
        if len == 0 || u32::try_from(before).is_ok_and(|before| before > self.delivered) {
            return;
        }
        let (start, end) = self.duplicate;
        let continues = start != end && end == seq;
        self.duplicate = (if continues { start } else { seq }, seq.plus(len));
    }

    /// RFC 9293 §3.10.7.4, "Fifth, check the ACK field", and RFC 5961 §5.2. Nothing is in flight.
    fn on_acknowledgment(&mut self, now: Instant, header: &Header) {
        let behind = i64::from(self.snd_nxt.distance_from(header.ack));
        if u64::try_from(behind).map_or(true, |behind| behind > self.window.bytes_max()) {
            return self.challenge(now);
        }
        if behind == 0 && self.window.is_updated_by(header, header.ack) {
            self.window.set(header, header.ack, true);
        }
        if let Some(stamps) = header.options.timestamps.filter(|_| self.timestamps.agreed) {
            self.timestamps.update(now, stamps.value, header.seq);
        }
    }

    fn challenge(&mut self, now: Instant) {
        if self.challenges.allow(now) {
            self.owe(false);
        }
    }

    fn answer_stray(&mut self, now: Instant, payload_len: usize) {
        if payload_len > 0 || self.strays.allow(now) {
            self.owe(payload_len > 0 && !self.sack);
        }
    }

    /// With `each`, not merged with others owed, because the peer counts them.
    fn owe(&mut self, each: bool) {
        let owed = u32::from(self.owed);
        let owed = if each { (owed + 1).min(OWED_MAX) } else { owed.max(1) };
        self.owed = u8::try_from(owed).unwrap_or(u8::MAX);
    }

    pub(crate) const fn owes(&self) -> bool {
        self.owed > 0
    }

    pub(crate) fn poll_ack(
        &mut self,
        now: Instant,
        src_port: u16,
        dst_port: u16,
    ) -> Option<Header> {
        self.owed = self.owed.checked_sub(1)?;
        self.timestamps.ack_sent(self.rcv_nxt);
        let mut options = Options { timestamps: self.timestamps.option(now), ..Options::default() };
        let (start, end) = self.duplicate;
        if self.sack && start != end {
            options.sack.push(std::mem::take(&mut self.duplicate));
        }
        Some(Header {
            src_port,
            dst_port,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: if self.echoes_mark { Flags::ACK | Flags::ECE } else { Flags::ACK },
            window: self.window_field,
            options,
            ecn: Ecn::NotCapable,
        })
    }

    pub(crate) const fn snd_end_seq(&self) -> SeqNum {
        self.snd_nxt
    }

    pub(crate) fn may_be_replaced_by(&self, syn: &Header) -> bool {
        opens_later(syn, &self.timestamps, self.rcv_nxt)
    }
}

/// Returns true if a segment opens a connection that is provably a later incarnation than the one
/// with these timestamps (RFC 9293 §3.6.1 MAY-2, RFC 6191).
fn opens_later(syn: &Header, timestamps: &TimestampState, rcv_nxt: SeqNum) -> bool {
    let later = || syn.seq.is_after(rcv_nxt);
    let newer = match syn.options.timestamps {
        // RFC 6191 §2: an older timestamp is that of an old duplicate, at any sequence number.
        Some(stamps) if timestamps.agreed && stamps.value != timestamps.recent() => {
            timestamps.is_newer(stamps.value)
        }
        _ => later(),
    };
    super::check_syn(syn).is_ok() && newer
}
