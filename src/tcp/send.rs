//! The send half: what may be sent, what must be sent again, and what acknowledgments mean.
//!
//! Owns SND.UNA, SND.NXT (in the scoreboard), SND.WND and the loss recovery; holds no payload. New
//! data enters as lengths; retransmissions leave as the ranges they were first sent as.

use super::config::Config;
use super::congestion::{AckSample, Congestion, Controller, initial_window};
use super::header::{Flags, HEADER_LEN, Header, TIMESTAMPS_LEN};
use super::rtt::RttEstimator;
use super::sack::{Acknowledged, Resend, Scoreboard};
use super::seq::{SeqNum, SeqSpace};
use crate::time::Instant;
use crate::types::StreamOffset;

/// Whether losses are being repaired, and up to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// No loss is known.
    Open,
    /// Losses found by acknowledgments (RFC 6675 §5, RFC 6582 §3.2), until this is acknowledged.
    Fast { until: StreamOffset },
    /// The retransmission timer ran out, until this is acknowledged.
    Timeout { until: StreamOffset },
}

/// The send half of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) space: SeqSpace,
    pub(crate) board: Scoreboard,
    pub(crate) rtt: RttEstimator,
    congestion: Congestion,
    recovery: Recovery,
    /// SND.NXT when the last recovery began (RFC 6582 "recover").
    recover: Option<StreamOffset>,
    /// Duplicate ACKs in a row, counted when the peer has no SACK.
    duplicate_acks: u32,
    /// The next retransmission need not wait for room in cwnd.
    resend_at_once: bool,
    /// Data before this was sent while cwnd was full.
    limited_before: StreamOffset,
    /// SND.WND.
    window: u64,
    window_max: u64,
    shift: u8,
    /// Sequence and acknowledgment number of the last window update (RFC 9293 SND.WL1, SND.WL2).
    wl1: SeqNum,
    wl2: StreamOffset,
    sack: bool,
    peer_mss: u16,
    path_payload_max: usize,
    options_len: usize,
    emss: u32,
    /// Timeouts since the last forward progress.
    timeouts: u32,
    /// Last forward progress, or the moment data was first outstanding: R2 counts from here.
    progress_at: Instant,
    last_sent: Instant,
}

/// What an acknowledgment did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckOutcome {
    /// SND.UNA moved.
    pub(crate) advanced: bool,
    /// A fast recovery began.
    pub(crate) recovery_began: bool,
}

/// An EMSS below this is no use to anybody, whatever the peer's SYN or an ICMP message said.
const EMSS_MIN: usize = 8;
/// RFC 5681 §3.2: the third duplicate ACK begins fast retransmit.
const DUPLICATE_ACKS: u32 = 3;

impl Sender {
    pub(crate) fn new(config: &Config, iss: SeqNum) -> Self {
        Self {
            space: SeqSpace::new(iss),
            board: Scoreboard::default(),
            rtt: RttEstimator::new(config.rto_initial, config.rto_min, config.rto_max),
            congestion: Congestion::new(config.congestion, 1, 1),
            recovery: Recovery::Open,
            recover: None,
            duplicate_acks: 0,
            resend_at_once: false,
            limited_before: StreamOffset::ZERO,
            window: 0,
            window_max: 0,
            shift: 0,
            wl1: SeqNum(0),
            wl2: StreamOffset::ZERO,
            sack: false,
            peer_mss: config.mss_default,
            path_payload_max: usize::from(config.path_payload_max),
            options_len: 0,
            emss: effective_mss(config.mss_default, usize::from(config.path_payload_max), 0),
            timeouts: 0,
            progress_at: Instant::ZERO,
            last_sent: Instant::ZERO,
        }
    }

    /// Both SYNs are seen: what was agreed on. `shift` is the peer's.
    pub(crate) fn agree(&mut self, peer_mss: Option<u16>, shift: u8, timestamps: bool, sack: bool) {
        self.peer_mss = peer_mss.unwrap_or(self.peer_mss);
        self.shift = shift;
        self.sack = sack;
        self.options_len = if timestamps { TIMESTAMPS_LEN } else { 0 };
        self.emss = effective_mss(self.peer_mss, self.path_payload_max, self.options_len);
    }

    /// The connection is established: data may flow.
    pub(crate) fn begin(&mut self, config: &Config, syn_resent: bool) {
        // RFC 5681 §3.1: "If the SYN or SYN/ACK is lost, the initial window used by a sender after
        // a correctly transmitted SYN MUST be one segment".
        let segments = if syn_resent { Some(1) } else { config.initial_window_segments };
        let window = initial_window(self.emss, segments);
        self.congestion = Congestion::new(config.congestion, self.emss, window);
        if syn_resent {
            self.rtt.after_syn_loss();
        }
    }

    pub(crate) const fn emss(&self) -> u32 {
        self.emss
    }

    pub(crate) const fn has_sack(&self) -> bool {
        self.sack
    }

    pub(crate) fn cwnd(&self) -> u64 {
        self.congestion.cwnd()
    }

    pub(crate) fn ssthresh(&self) -> u64 {
        self.congestion.ssthresh()
    }

    pub(crate) const fn timeouts(&self) -> u32 {
        self.timeouts
    }

    pub(crate) const fn progress_at(&self) -> Instant {
        self.progress_at
    }

    /// Takes `now` for the moment from which a lack of progress counts.
    pub(crate) const fn progress(&mut self, now: Instant) {
        self.progress_at = now;
    }

    /// Octets of new data that the peer's window takes.
    pub(crate) fn window_room(&self) -> u64 {
        (self.board.una().0 + self.window).saturating_sub(self.board.nxt().0)
    }

    /// Octets of new data that cwnd takes: whole segments, of which the last may overhang.
    ///
    /// A segment may be sent while at least one octet of cwnd is free, as stacks do that count
    /// packets; otherwise a cwnd that is no multiple of the record length would leave a part of it
    /// unused for ever.
    pub(crate) fn cwnd_room(&mut self) -> u64 {
        let free = self.congestion.cwnd().saturating_sub(self.board.pipe());
        self.note_limit();
        if free >= crate::limits::FRAME_PAYLOAD_MAX as u64 {
            return free;
        }
        let emss = self.emss;
        u32::try_from(free).map_or(free, |free| u64::from(free.div_ceil(emss)) * u64::from(emss))
    }

    /// While cwnd is full, everything in flight was sent under its limit.
    fn note_limit(&mut self) {
        if self.board.pipe() >= self.congestion.cwnd() {
            self.limited_before = self.board.nxt();
        }
    }

    /// Whether the window is so large a part of what this peer ever offered that it is not silly
    /// to fill it (RFC 9293 §3.8.6.2.1, Fs = 1/2).
    pub(crate) const fn fills_half_the_window(&self, room: u64) -> bool {
        room.saturating_mul(2) >= self.window_max
    }

    /// RFC 5681 §4.1: after an idle RTO, cwnd restarts from the initial window at most.
    pub(crate) fn restart_if_idle(&mut self, now: Instant) {
        if self.board.flight() == 0 && now.nanos_since(self.last_sent) > self.rtt.rto_ns() {
            self.congestion.on_idle();
            self.last_sent = now;
        }
    }

    /// Records new data.
    pub(crate) fn sent(&mut self, now: Instant, len: u32, segment_len: u32, push: bool) {
        self.before_sending(now);
        self.board.push(now, len, segment_len, push);
        self.note_limit();
    }

    /// Records our FIN.
    pub(crate) fn fin_sent(&mut self, now: Instant) {
        self.before_sending(now);
        self.board.push_fin(now);
    }

    fn before_sending(&mut self, now: Instant) {
        if self.board.flight() == 0 {
            self.progress_at = now;
        }
        self.last_sent = now;
    }

    /// The next segment to send again, if cwnd has room for it.
    pub(crate) fn resend(&mut self, now: Instant) -> Option<Resend> {
        if !self.board.has_unsent_loss() {
            return None;
        }
        if !self.resend_at_once && self.board.pipe() >= self.congestion.cwnd() {
            self.note_limit();
            return None;
        }
        let window_end = self.board.una() + self.window;
        let resend = self.board.resend(now, self.emss, window_end)?;
        self.resend_at_once = false;
        self.last_sent = now;
        Some(resend)
    }

    /// Window of the first segment that has one: the SYN's is not scaled.
    pub(crate) fn first_window(&mut self, header: &Header) {
        let scaled = !header.flags.contains(Flags::SYN);
        self.set_window(header, StreamOffset::ZERO, scaled);
    }

    fn set_window(&mut self, header: &Header, ack: StreamOffset, scaled: bool) {
        let shift = if scaled { self.shift } else { 0 };
        self.window = u64::from(header.window) << shift;
        self.window_max = self.window_max.max(self.window);
        self.wl1 = header.seq;
        self.wl2 = ack;
    }

    /// Largest window the peer ever offered (RFC 5961 "MAX.SND.WND").
    pub(crate) const fn window_max(&self) -> u64 {
        self.window_max
    }

    /// Processes an acceptable acknowledgment of `ack`, between SND.UNA − window and SND.NXT.
    /// `pure`: the segment carries nothing else. `echo_ns`: round trip that its timestamp tells.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        header: &Header,
        ack: StreamOffset,
        pure: bool,
        echo_ns: Option<u64>,
    ) -> AckOutcome {
        let una = self.board.una();
        let in_flight = self.board.flight() > 0;
        let window_before = self.window;
        self.update_window(now, header, ack);
        // RFC 5681 §2: what makes an acknowledgment a duplicate.
        let duplicate = pure && in_flight && ack == una && self.window == window_before;
        let acked = if ack > una { self.board.acknowledge(ack) } else { Acknowledged::default() };
        let sacked = self.take_sacks(header);
        let advanced = acked.octets > 0;
        if advanced {
            self.on_progress(now, &acked, echo_ns);
        }
        if !advanced && sacked == 0 && !duplicate {
            return AckOutcome::default();
        }
        let recovery_began = self.update_recovery(now, &acked, sacked, duplicate);
        if advanced && !matches!(self.recovery, Recovery::Fast { .. }) {
            self.congestion.on_ack(&AckSample {
                now,
                acked_octets: acked.octets,
                srtt_ns: self.rtt.srtt_ns(),
                cwnd_limited: una < self.limited_before,
            });
        }
        AckOutcome { advanced, recovery_began }
    }

    /// RFC 9293 §3.10.7.4: a newer segment updates the send window. A newer acknowledgment is newer
    /// too, even on retransmitted data; of two segments with the same numbers the larger window
    /// counts, unless one closes it: reordered segments must not shrink it by accident for long.
    fn update_window(&mut self, now: Instant, header: &Header, ack: StreamOffset) {
        let window = u64::from(header.window) << self.shift;
        let newer = ack > self.wl2
            || header.seq.is_after(self.wl1)
            || (header.seq == self.wl1 && ack == self.wl2 && (window > self.window || window == 0));
        if newer && ack >= self.board.una() {
            self.set_window(header, ack, true);
        }
        if self.window == 0 {
            // RFC 9293 MUST-37: "TCP implementations MUST allow the connection to stay open" as
            // long as the receiver acknowledges probes.
            self.progress_at = now;
        }
    }

    fn take_sacks(&mut self, header: &Header) -> u64 {
        if !self.sack || header.options.sack.is_empty() {
            return 0;
        }
        let (space, una) = (self.space, self.board.una());
        let blocks = header.options.sack.iter().filter_map(|&(left, right)| {
            Some(space.offset_near(left, una)?..space.offset_near(right, una)?)
        });
        self.board.sack(blocks)
    }

    fn on_progress(&mut self, now: Instant, acked: &Acknowledged, echo_ns: Option<u64>) {
        self.progress_at = now;
        self.timeouts = 0;
        self.duplicate_acks = 0;
        // RFC 6298 §3: "RTT samples MUST NOT be made using segments that were retransmitted",
        // "unless the TCP timestamp option is used". Send times are finer, so they come first.
        match acked.sample_from {
            Some(sent_at) if !acked.ambiguous => self.rtt.sample(now.nanos_since(sent_at)),
            _ => {
                if let Some(echo_ns) = echo_ns {
                    self.rtt.sample(echo_ns);
                }
            }
        }
    }

    /// Ends, continues or begins a recovery; true when a fast recovery began.
    fn update_recovery(
        &mut self,
        now: Instant,
        acked: &Acknowledged,
        sacked: u64,
        duplicate: bool,
    ) -> bool {
        if let Recovery::Fast { until } | Recovery::Timeout { until } = self.recovery
            && self.board.una() >= until
        {
            self.recovery = Recovery::Open;
            self.board.forget_duplicates();
        }
        if self.sack {
            if sacked > 0 {
                self.board.detect_losses();
            }
        } else if acked.octets > 0 {
            self.board.duplicates_acknowledged(acked.octets);
            // RFC 6582 §3.2 step 3: a partial acknowledgment: "retransmit the first
            // unacknowledged segment".
            if matches!(self.recovery, Recovery::Fast { .. }) {
                self.board.mark_first_lost();
                self.resend_at_once = true;
            }
        } else if duplicate {
            self.on_duplicate_ack();
        }
        let begins = self.recovery == Recovery::Open && self.board.has_unsent_loss();
        if begins {
            self.congestion.on_loss(now, self.board.flight());
            let until = self.board.nxt();
            self.recovery = Recovery::Fast { until };
            self.recover = Some(until);
            self.resend_at_once = true;
        }
        begins
    }

    /// Without SACK (RFC 5681 §3.2, RFC 6582 §3.2).
    fn on_duplicate_ack(&mut self) {
        self.duplicate_acks += 1;
        if matches!(self.recovery, Recovery::Timeout { .. }) {
            return;
        }
        // Each duplicate ACK stands for a segment that left the network: room for limited transmit
        // (RFC 3042) before the third, for inflation after it.
        self.board.duplicate_ack(u64::from(self.emss));
        let una = self.board.una();
        let is_new = self.recover.is_none_or(|recover| una > recover);
        if self.duplicate_acks == DUPLICATE_ACKS && is_new {
            self.board.mark_first_lost();
        }
    }

    /// The retransmission timer ran out (RFC 6298 §5.4 to §5.6); true when the peer reneged.
    pub(crate) fn on_timeout(&mut self, now: Instant) -> bool {
        let reneged = self.board.first_is_sacked();
        self.congestion.on_timeout(now, self.board.flight(), self.timeouts == 0);
        self.board.mark_all_lost(reneged);
        let until = self.board.nxt();
        self.recovery = Recovery::Timeout { until };
        self.recover = Some(until);
        self.rtt.back_off();
        self.timeouts = self.timeouts.saturating_add(1);
        self.duplicate_acks = 0;
        self.resend_at_once = true;
        reneged
    }

    /// The path takes IP payloads of `octets` from now on.
    pub(crate) fn set_path(&mut self, octets: usize) {
        self.path_payload_max = octets;
        let emss = effective_mss(self.peer_mss, octets, self.options_len);
        if emss < self.emss {
            // Segments that no longer fit were dropped because of their size: they are sent again
            // without a reduction of cwnd.
            self.board.mark_oversized_lost(emss);
            self.resend_at_once |= self.board.has_unsent_loss();
            if self.recovery == Recovery::Open && self.board.has_unsent_loss() {
                self.recovery = Recovery::Fast { until: self.board.nxt() };
            }
        }
        self.emss = emss;
        self.congestion.set_emss(emss);
    }
}

/// RFC 9293 §3.7.1: the most octets of data in a segment whose header carries `options_len` octets
/// of options. A multiple of 8, which keeps FPDU lengths even on all parts of the path.
fn effective_mss(peer_mss: u16, path_payload_max: usize, options_len: usize) -> u32 {
    let path = path_payload_max.saturating_sub(HEADER_LEN);
    let emss = usize::from(peer_mss).min(path).saturating_sub(options_len);
    u32::try_from((emss & !7).max(EMSS_MIN)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
