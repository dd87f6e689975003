//! The send half: how much may be sent, what must be retransmitted, and how acknowledgments change
//! that. Owns SND.UNA, SND.NXT (in the scoreboard), SND.WND and the loss recovery; holds no
//! payload. Retransmissions are returned as the ranges they were first sent as.

mod frto;
pub(super) mod recovery;
mod tlp;

use std::mem::offset_of;

use super::ack::Echo;
use super::config::{Config, PathConfig};
use super::congestion::{AckSample, Congestion, CongestionKind, initial_window};
use super::header::{Flags, HEADER_LEN, Header, TIMESTAMPS_LEN};
use super::pacing::{Pace, Pacer};
use super::rack::{Deliveries, Rack};
use super::rtt::RttEstimator;
use super::sack::{Acknowledged, Resend, Scoreboard};
use super::send_window::SendWindow;
use super::seq::{SeqNum, SeqSpace};
use crate::limits::EMSS_MIN;
use crate::time::{Duration, Instant};
use crate::types::StreamOffset;
use frto::Frto;
use recovery::{Disorder, Recovery, UndoPlace};
use tlp::{LossProbe, ProbeDue};

#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct SendHalf {
    pub(super) recovery: Recovery,
    pub(super) congestion: Congestion,
    /// State to undo the last recovery, until the recovery is known to have been needed.
    pub(super) undo: UndoPlace,
    pacer: Pacer,
    /// Echoed marks for data sent before this offset need no further reaction.
    marks_until: Option<StreamOffset>,
    /// SND.NXT when the last recovery began (RFC 6582 "recover").
    pub(super) recover: Option<StreamOffset>,
    path_payload_max: usize,
    options_len: usize,
    peer_mss: u16,
    pub(crate) rtt: RttEstimator,
    pub(super) rack: Rack,
    /// Current congestion window; see [`refresh_cwnd`](Self::refresh_cwnd).
    cwnd: u64,
    /// Data before this offset was sent while cwnd was full.
    limited_before: StreamOffset,
    /// Data before this offset was pushed: the last segment before it carries PSH.
    pushed_before: StreamOffset,
    /// Longest delay assumed for the acknowledgment of a single segment.
    pub(super) ack_delay_ns: u64,
    /// A round trip that began before this time is no measurement: the link was down.
    link_returned_at: Option<Instant>,
    pub(super) frto: Frto,
    /// Consecutive duplicate ACKs, counted if the peer has no SACK.
    pub(super) duplicate_acks: u32,
    /// Retransmissions and probes that a timer sent since the last forward progress.
    unanswered: u32,
    /// Time of the last forward progress, or since when data is outstanding: R2 counts from here.
    progress_at: Instant,
    pub(super) last_sent: Instant,
    pub(crate) board: Scoreboard,
    pub(super) loss_probe: Option<LossProbe>,
    pub(super) next_loss_at: Option<Instant>,
    pub(crate) space: SeqSpace,
    window: SendWindow,
    emss: u32,
    pub(super) timeouts: u32,
    pub(super) probe_due: ProbeDue,
    /// The next retransmission does not wait for room in cwnd.
    pub(super) resend_at_once: bool,
    marked: bool,
    /// The layer above wanted to send more than cwnd permitted.
    pub(super) starved: bool,
    sack: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    pub(crate) header: &'a Header,
    pub(crate) ack: StreamOffset,
    pub(crate) pure: bool,
    /// The age of the timestamp it echoes.
    pub(crate) echo: Option<Echo>,
    pub(crate) marked: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckOutcome {
    pub(crate) advanced: bool,
    pub(crate) recovery_began: bool,
    /// A recovery proved to be spurious and was undone.
    pub(crate) undone: bool,
    /// The window was reduced because of a mark: CWR must report it to the peer.
    pub(crate) reduced: bool,
}

const EMSS_FLOOR: usize = 8;
/// R1 of RFC 9293 §3.8.3 is at least 3 transmissions (SHLD-10), and R2 comes after it.
const UNANSWERED_MIN: u32 = 3;

impl SendHalf {
    /// Bytes at the start of the struct that most acknowledgments need: recovery, and the window.
    pub(super) const HOT_HEAD: usize = offset_of!(Self, congestion) + Congestion::HOT_HEAD;
    /// Offset from which on most acknowledgments and most transmissions need the fields.
    pub(super) const HOT_FROM: usize = offset_of!(Self, rtt);

    pub(crate) fn new(config: &PathConfig, iss: SeqNum) -> Self {
        Self {
            space: SeqSpace::new(iss),
            board: Scoreboard::default(),
            rtt: RttEstimator::new(config.rto_initial, config.rto_min, config.rto_max),
            // Replaced by `begin`.
            congestion: Congestion::new(CongestionKind::NewReno, 1, 1),
            cwnd: 1,
            recovery: Recovery::Open,
            rack: Rack::new(),
            pacer: Pacer::default(),
            next_loss_at: None,
            loss_probe: None,
            probe_due: ProbeDue::No,
            ack_delay_ns: u64::try_from(config.delayed_ack.as_nanos()).unwrap_or(u64::MAX),
            undo: UndoPlace::default(),
            frto: Frto::Off,
            recover: None,
            duplicate_acks: 0,
            resend_at_once: false,
            starved: false,
            marked: false,
            marks_until: None,
            limited_before: StreamOffset::ZERO,
            pushed_before: StreamOffset::ZERO,
            window: SendWindow::default(),
            sack: false,
            peer_mss: config.mss_default,
            path_payload_max: usize::from(config.path_payload_max),
            options_len: 0,
            emss: effective_mss(config.mss_default, usize::from(config.path_payload_max), 0),
            timeouts: 0,
            progress_at: Instant::ZERO,
            unanswered: 0,
            link_returned_at: None,
            last_sent: Instant::ZERO,
        }
    }

    pub(crate) fn agree(&mut self, peer_mss: Option<u16>, shift: u8, timestamps: bool, sack: bool) {
        self.peer_mss = peer_mss.unwrap_or(self.peer_mss);
        self.window.agree(shift);
        self.sack = sack;
        self.options_len = if timestamps { TIMESTAMPS_LEN } else { 0 };
        self.emss = effective_mss(self.peer_mss, self.path_payload_max, self.options_len);
    }

    pub(crate) fn begin(&mut self, config: &Config, syn_resent: bool) {
        // RFC 5681 §3.1: "If the SYN or SYN/ACK is lost, the initial window used by a sender after
        // a correctly transmitted SYN MUST be one segment".
        // spec: TCP-5681-1
        let segments = if syn_resent { Some(1) } else { config.initial_window_segments };
        let window = initial_window(self.emss, segments);
        self.congestion = Congestion::new(config.congestion, self.emss, window);
        self.refresh_cwnd();
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

    pub(super) const fn has_timestamps(&self) -> bool {
        self.options_len > 0
    }

    pub(crate) const fn cwnd(&self) -> u64 {
        self.cwnd
    }

    pub(super) fn refresh_cwnd(&mut self) {
        self.cwnd = if let Recovery::Fast { prr, .. } = &self.recovery {
            prr.cwnd()
        } else {
            // A controller from outside may answer less.
            self.congestion.cwnd().max(u64::from(self.emss))
        };
    }

    #[cfg(test)]
    pub(crate) fn ssthresh(&self) -> u64 {
        self.congestion.ssthresh()
    }

    pub(crate) const fn next_loss_at(&self) -> Option<Instant> {
        self.next_loss_at
    }

    pub(crate) const fn timeouts(&self) -> u32 {
        self.timeouts
    }

    pub(crate) const fn progress_at(&self) -> Instant {
        self.progress_at
    }

    /// Restarts the user timeout at `now`: the peer is alive.
    pub(crate) const fn progress(&mut self, now: Instant) {
        self.progress_at = now;
        self.unanswered = 0;
    }

    /// Counts a retransmission or probe that a timer sends and the peer must answer.
    pub(super) const fn note_unanswered(&mut self) {
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// R2 of RFC 9293 §3.8.3; not time alone: one loss at the RTO's ceiling would use it up.
    // spec: TCP-9293-12
    pub(crate) fn is_given_up(&self, now: Instant, user_timeout: Duration) -> bool {
        self.unanswered >= UNANSWERED_MIN && now >= self.progress_at + user_timeout
    }

    /// `None` while too little is unanswered. The last transmission has an RTO to be answered.
    pub(crate) fn give_up_at(&self, user_timeout: Duration) -> Option<Instant> {
        (self.unanswered > UNANSWERED_MIN).then(|| self.progress_at + user_timeout)
    }

    pub(crate) fn window_end(&self) -> StreamOffset {
        self.board.una() + self.window.bytes()
    }

    pub(crate) fn window_room(&self) -> u64 {
        self.window_end().0.saturating_sub(self.board.nxt().0)
    }

    /// Bytes that may be sent now without a burst on a long path, or the time to ask again.
    pub(crate) fn pacing_room(&mut self, now: Instant) -> Result<u64, Instant> {
        match self.pace() {
            Some(pace) if self.probe_due == ProbeDue::No => {
                self.pacer.room(now, pace, u64::from(self.emss))
            }
            _ => Ok(u64::MAX),
        }
    }

    fn pace(&self) -> Option<Pace> {
        self.rtt.min_ns().filter(|&min_ns| Pace::is_worth_it(min_ns))?;
        let srtt_ns = self.rtt.srtt_ns()?;
        let (cwnd, ssthresh) = (self.congestion.cwnd(), self.congestion.ssthresh());
        Some(Pace::new(cwnd, srtt_ns, cwnd < ssthresh))
    }

    /// Bytes of new data that cwnd permits: whole segments. One may be sent while at least one byte
    /// of cwnd is free, as in stacks that count packets: else a cwnd that is no multiple of the
    /// record length would leave a part of it unused for ever.
    pub(crate) fn cwnd_room(&mut self) -> u64 {
        if let Frto::Second { new_bytes } = self.frto {
            return new_bytes;
        }
        let free = self.cwnd().saturating_sub(self.board.pipe());
        self.note_limit();
        if free == 0 && self.probe_due == ProbeDue::NewData {
            return u64::from(self.emss);
        }
        self.starved = free == 0;
        if free >= crate::limits::FRAME_PAYLOAD_MAX as u64 {
            return free;
        }
        let emss = self.emss;
        u32::try_from(free).map_or(free, |free| u64::from(free.div_ceil(emss)) * u64::from(emss))
    }

    /// Records, if cwnd is full, that cwnd limited the data sent so far.
    fn note_limit(&mut self) {
        if self.board.pipe() >= self.cwnd() {
            self.limited_before = self.board.nxt();
        }
    }

    /// No silly-window sending (RFC 9293 §3.8.6.2.1, Fs = 1/2).
    pub(crate) const fn fills_half_the_window(&self, room: u64) -> bool {
        room.saturating_mul(2) >= self.window.bytes_max()
    }

    /// Limits cwnd to the initial window if nothing was sent for an RTO (RFC 5681 §4.1).
    // spec: TCP-5681-5
    pub(crate) fn restart_if_idle(&mut self, now: Instant) {
        if self.board.flight() == 0 && now.nanos_since(self.last_sent) > self.rtt.rto_ns() {
            self.congestion.on_idle();
            self.refresh_cwnd();
            self.last_sent = now;
        }
    }

    /// Records new data. Returns true if its last segment carries PSH: with `push`, or because half
    /// of what the windows permit was sent without PSH.
    pub(crate) fn sent(&mut self, now: Instant, len: u32, segment_len: u32, push: bool) -> bool {
        let stamp = self.before_sending(now);
        // As Linux's `forced_push`: a receiver that holds acknowledgments until PSH never holds all
        // of them while a window is full.
        let unpushed = self.board.nxt().bytes_since(self.pushed_before) + u64::from(len);
        let push = push || 2 * unpushed >= self.cwnd.min(self.window.bytes());
        self.board.push(stamp, len, segment_len, push);
        if push {
            self.pushed_before = self.board.nxt();
        }
        self.note_limit();
        self.note_new_data(u64::from(len));
        if let Some(pace) = self.pace() {
            self.pacer.on_sent(now, pace, u64::from(len));
        }
        if let Recovery::Fast { prr, .. } = &mut self.recovery {
            prr.on_sent(u64::from(len));
        }
        if self.probe_due == ProbeDue::NewData {
            self.note_loss_probe(false);
        }
        push
    }

    pub(crate) fn fin_sent(&mut self, now: Instant) {
        let stamp = self.before_sending(now);
        self.board.push_fin(stamp);
    }

    fn before_sending(&mut self, now: Instant) -> Instant {
        if self.board.flight() == 0 {
            self.progress(now);
        }
        self.stamp(now)
    }

    /// Returns the time of a transmission: no two are equal, because RACK goes by their order.
    // spec: TCP-8985-1
    fn stamp(&mut self, now: Instant) -> Instant {
        self.last_sent = now.max(self.last_sent.plus_nanos(1));
        self.last_sent
    }

    pub(crate) fn resend(&mut self, now: Instant) -> Option<Resend> {
        if !self.board.has_unsent_loss() {
            if self.probe_due != ProbeDue::LastSegment {
                return None;
            }
            let stamp = self.stamp(now);
            return self.take_loss_probe(stamp);
        }
        if self.holds_back() {
            return None;
        }
        if !self.resend_at_once && self.board.pipe() >= self.cwnd() {
            self.note_limit();
            return None;
        }
        let window_end = self.window_end();
        let stamp = now.max(self.last_sent.plus_nanos(1));
        let resend = self.board.resend(stamp, self.emss, window_end)?;
        self.last_sent = stamp;
        self.resend_at_once = false;
        self.note_resent(now, &resend);
        Some(resend)
    }

    /// Takes the window of the first segment that has one: a SYN's is not scaled.
    pub(crate) fn first_window(&mut self, header: &Header) {
        let scaled = !header.flags.contains(Flags::SYN);
        self.window.set(header, self.space.seq_at(StreamOffset::ZERO), scaled);
    }

    pub(crate) const fn window(&self) -> SendWindow {
        self.window
    }

    /// Largest window the peer ever advertised (RFC 5961 "MAX.SND.WND").
    pub(crate) const fn window_max(&self) -> u64 {
        self.window.bytes_max()
    }

    #[inline]
    pub(super) const fn is_at_rest(&self) -> bool {
        self.board.flight() == 0 && self.loss_probe.is_none() && self.next_loss_at.is_none()
    }

    /// An acknowledgment of SND.UNA that comes with data can change only the window.
    #[inline]
    pub(super) const fn awaits_no_news(&self) -> bool {
        self.loss_probe.is_none() && self.next_loss_at.is_none()
    }

    pub(crate) fn on_ack(&mut self, now: Instant, ack: &Ack<'_>) -> AckOutcome {
        let una = self.board.una();
        let in_flight = self.board.flight() > 0;
        let window_before = self.window.bytes();
        self.update_window(now, ack.header, ack.ack);
        // RFC 5681 §2: the definition of a duplicate acknowledgment.
        let same_window = self.window.bytes() == window_before;
        let duplicate = ack.pure && in_flight && ack.ack == una && same_window;
        let is_news = ack.ack > una || duplicate || !ack.header.options.sack.is_empty();
        if !is_news && !ack.marked && self.loss_probe.is_none() {
            // An acknowledgment that data in the other direction carries.
            return AckOutcome::default();
        }
        self.marked = ack.marked;
        let mut outcome = self.take_ack(now, ack, duplicate);
        if ack.marked {
            outcome.reduced = self.on_mark(now);
        }
        self.refresh_cwnd();
        outcome
    }

    /// "At most once every window of data" (RFC 3168 §6.1.2); true if it reacted now.
    fn on_mark(&mut self, now: Instant) -> bool {
        if self.marks_until.is_some_and(|until| self.board.una() <= until) {
            return false;
        }
        self.marks_until = Some(self.board.nxt());
        // A recovery has reduced the window already.
        if self.recovery == Recovery::Open {
            let flight = self.board.flight().min(self.congestion.cwnd());
            self.congestion.on_mark(now, flight);
        }
        true
    }

    fn take_ack(&mut self, now: Instant, arrived: &Ack<'_>, duplicate: bool) -> AckOutcome {
        let &Ack { header, ack, pure: _, echo, marked: _ } = arrived;
        let una = self.board.una();
        let is_plain = self.board.is_plain() && self.recovery == Recovery::Open;
        let mut delivered = Deliveries::default();
        let acked = if ack > una {
            self.board.acknowledge(ack, &mut delivered)
        } else {
            Acknowledged::default()
        };
        let advanced = acked.bytes > 0;
        if advanced {
            self.on_progress(now, &acked, echo);
            if is_plain
                && !acked.ambiguous
                && header.options.sack.is_empty()
                && self.loss_probe.is_none()
            {
                self.rack.in_order(now, acked.last_sent_at, ack);
                self.grow(now, una, acked.bytes, Some(self.rtt.last_ns()));
                return AckOutcome { advanced, ..AckOutcome::default() };
            }
        }
        let number = ack;
        self.on_disorder(now, Disorder { header, number, una, acked, delivered, duplicate, echo })
    }

    /// Grows the window for new data acknowledged outside of fast recovery.
    pub(super) fn grow(
        &mut self,
        now: Instant,
        una: StreamOffset,
        acked_bytes: u64,
        rtt_ns: Option<u64>,
    ) {
        self.congestion.on_ack(&AckSample {
            now,
            acked_bytes,
            srtt_ns: self.rtt.srtt_ns(),
            rtt_ns,
            una: self.board.una().0,
            nxt: self.board.nxt().0,
            marked: self.marked,
            cwnd_limited: una < self.limited_before,
        });
    }

    pub(crate) fn updates_window(&self, header: &Header, ack: StreamOffset) -> bool {
        self.window.is_updated_by(header, self.space.seq_at(ack))
    }

    /// Updates the send window if the segment is newer (RFC 9293 §3.10.7.4).
    #[inline]
    pub(super) fn update_window(&mut self, now: Instant, header: &Header, ack: StreamOffset) {
        if ack >= self.board.una() && self.updates_window(header, ack) {
            self.window.set(header, self.space.seq_at(ack), true);
        }
        if self.window.bytes() == 0 {
            // RFC 9293 MUST-37: "TCP implementations MUST allow the connection to stay open" as
            // long as the receiver acknowledges probes.
            self.progress(now);
        }
    }

    fn on_progress(&mut self, now: Instant, acked: &Acknowledged, echo: Option<Echo>) {
        self.progress(now);
        self.timeouts = 0;
        self.duplicate_acks = 0;
        self.probe_due = ProbeDue::No;
        // RFC 6298 §3: "RTT samples MUST NOT be made using segments that were retransmitted",
        // "unless the TCP timestamp option is used". Send times are finer, so they come first.
        // spec: TCP-6298-3
        match acked.sample_from {
            Some(sent_at) if !acked.ambiguous => {
                self.sample_round_trip(now, now.nanos_since(sent_at));
            }
            _ => {
                if let Some(echo) = echo {
                    self.sample_round_trip(now, echo.round_trip_ns());
                }
            }
        }
    }

    pub(super) fn sample_round_trip(&mut self, now: Instant, round_trip_ns: u64) {
        let outage = self.link_returned_at.is_some_and(|at| at.plus_nanos(round_trip_ns) > now);
        if !outage {
            self.rtt.sample(now, round_trip_ns);
        }
    }

    /// The link was down until now: acknowledgments of earlier data would measure the outage.
    pub(crate) const fn link_returned(&mut self, now: Instant) {
        self.link_returned_at = Some(now);
    }

    pub(crate) const fn header_len(&self) -> usize {
        HEADER_LEN + self.options_len
    }

    // spec: TCP-A.5.2-2, TCP-PMTU-4
    pub(crate) fn set_path(&mut self, bytes: usize) {
        self.path_payload_max = bytes;
        let emss = effective_mss(self.peer_mss, bytes, self.options_len);
        if emss > self.emss {
            self.board.forget_path_evidence();
        } else if emss < self.emss {
            self.board.path_shrank();
            // Segments that no longer fit were dropped because of their size: they are
            // retransmitted without a reduction of cwnd.
            self.board.mark_oversized_lost(emss);
            self.resend_at_once |= self.board.has_unsent_loss();
            if self.recovery == Recovery::Open && self.board.has_unsent_loss() {
                self.undo.clear();
                self.enter_fast(self.board.flight());
            }
        }
        self.emss = emss;
        self.congestion.set_emss(emss);
        self.refresh_cwnd();
    }
}

/// A multiple of 8, which keeps FPDU lengths even on all parts of the path (RFC 9293 §3.7.1). A
/// peer that announces less than [`EMSS_MIN`] gets that much, if the path takes it: segments of a
/// few bytes would cost this end many times what they cost the peer.
// spec: TCP-A.2-6, TCP-9293-3
fn effective_mss(peer_mss: u16, path_payload_max: usize, options_len: usize) -> u32 {
    let path = path_payload_max.saturating_sub(HEADER_LEN + options_len);
    let peer = usize::from(peer_mss).saturating_sub(options_len).max(EMSS_MIN);
    u32::try_from((peer.min(path) & !7).max(EMSS_FLOOR)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
