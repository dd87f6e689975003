//! One connection: its parts, how it opens, its timers and how it ends.

use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use tracing::debug;

use super::TRACE;
use super::ack::{AckPolicy, Challenges, Strays, TimestampState};
use super::config::{KeepAliveTimes, PathConfig};
use super::congestion::CongestionKind;
use super::counters::Counters;
use super::ecn::EcnState;
use super::header::{Flags, Header, Options};
use super::recv::{Full, ReceiveHalf, SHIFT_MAX, shift_for};
use super::send::SendHalf;
use super::seq::SeqNum;
use super::state::{State, Trigger};
use super::timer::{Timer, Timers};
use crate::time::{Duration, Instant};
use crate::types::StreamOffset;

/// An event of a connection that the layer above must handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpEvent {
    /// Data may be sent.
    Established,
    /// The peer closed its direction, and every byte before that was committed.
    PeerFin,
    /// Both directions closed in good order. The connection may linger in TIME-WAIT after this.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The peer stopped answering (R2 of RFC 9293 §3.8.3), or never answered the SYN.
    TimedOut,
    /// The peer refused the connection: a RST answered our SYN, or nothing is served at its port.
    Refused,
    /// The network says that the peer of a connection that was being opened cannot be reached.
    Unreachable,
}

/// A TCP connection: the TCB of RFC 9293 §3.3.1. See the [module](super) for the order of calls.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Tcb {
    pub(super) snd: SendHalf,
    pub(super) config: Arc<PathConfig>,
    pub(super) local_port: u16,
    pub(super) remote_port: u16,
    pub(super) state: State,
    pub(super) fin_sent: bool,
    /// Stream offset of our FIN, once the application has closed.
    pub(super) close_at: Option<StreamOffset>,
    pub(super) persist: Persist,
    pub(super) events: ArrayVec<TcpEvent, 4>,
    pub(super) reset: Option<Box<Header>>,
    pub(super) keepalive: KeepAlive,
    pub(super) timestamps: TimestampState,
    pub(super) acks: AckPolicy,
    pub(super) timers: Timers,
    pub(super) ecn: EcnState,
    pub(super) handshake: Handshake,
    pub(super) rcv: ReceiveHalf,
    pub(super) counters: Counters,
    pub(super) probe_idle: Option<KeepAliveTimes>,
    pub(super) challenges: Challenges,
    pub(super) strays: Strays,
}

#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Handshake {
    /// `None` once the SYN was retransmitted (Karn's algorithm) or acknowledged.
    pub(super) syn_sent_at: Option<Instant>,
    pub(super) started_at: Instant,
    pub(super) syns_sent: u32,
    /// Our window scale shift; `None` if we do not offer it, or the peer's SYN does not have it.
    pub(super) window_scale: Option<u8>,
    pub(super) sack: bool,
    /// Opened by us (`connect`), not by the peer. RFC 9293 MUST-11: kept in SYN-RECEIVED.
    pub(super) active: bool,
    /// The retransmission timer expired before our SYN was acknowledged.
    pub(super) syn_timed_out: bool,
    pub(super) syn_due: bool,
}

/// State of sending into a window that is too small (RFC 9293 §3.8.6.1 and §3.8.6.2.1).
#[derive(Clone, Debug, Default)]
pub(super) struct Persist {
    pub(super) probe_due: bool,
    /// The persist timer waits for an open window to grow, not for a closed one to open.
    pub(super) override_armed: bool,
    /// The override timer expired: send as much as the window permits.
    pub(super) override_due: bool,
    pub(super) backoff: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct KeepAlive {
    pub(super) received_at: Instant,
    pub(super) unanswered: u32,
}

impl Tcb {
    /// Bytes that most segments need, in addition to [`HOT_HEAD`](Self::HOT_HEAD).
    pub(crate) const HOT: Range<usize> = offset_of!(Self, snd) + SendHalf::HOT_FROM
        ..offset_of!(Self, counters) + offset_of!(Counters, retransmissions);
    /// Bytes at the start that most acknowledgments need.
    pub(crate) const HOT_HEAD: usize = offset_of!(Self, snd) + SendHalf::HOT_HEAD;

    #[inline]
    pub(crate) fn prefetch_outstanding(&self) {
        self.snd.board.prefetch();
    }

    pub(crate) const DUE: Range<usize> =
        offset_of!(Self, snd) + offset_of!(SendHalf, board)..offset_of!(Self, ecn);

    /// Opens a connection. `IsnGenerator` chooses `iss` and the offset of the timestamp clock.
    #[must_use]
    pub fn connect(
        now: Instant,
        config: &Arc<PathConfig>,
        local_port: u16,
        remote_port: u16,
        iss: SeqNum,
        ts_offset: u32,
    ) -> Self {
        let mut connection = Self::new(now, config, local_port, remote_port, iss, ts_offset);
        connection.state = State::SynSent;
        connection.handshake.active = true;
        connection
    }

    /// Answers a SYN that `check_syn` has checked: SYN-RECEIVED.
    #[must_use]
    pub fn accept(
        now: Instant,
        config: &Arc<PathConfig>,
        syn: &Header,
        iss: SeqNum,
        ts_offset: u32,
    ) -> Self {
        let mut connection = Self::new(now, config, syn.dst_port, syn.src_port, iss, ts_offset);
        connection.counters.segments_received = 1;
        connection.state = State::SynReceived;
        connection.take_syn(now, syn);
        connection
    }

    fn new(
        now: Instant,
        config: &Arc<PathConfig>,
        local_port: u16,
        remote_port: u16,
        iss: SeqNum,
        ts_offset: u32,
    ) -> Self {
        let shift = shift_for(config.window_bytes);
        Self {
            config: Arc::clone(config),
            local_port,
            remote_port,
            state: State::Closed,
            snd: SendHalf::new(config, iss),
            rcv: ReceiveHalf::new(SeqNum(0), config.window_bytes, u32::from(config.mss_receive)),
            acks: AckPolicy::new(config.quick_acks, config.window_bytes),
            timestamps: TimestampState::new(config.timestamps, ts_offset),
            ecn: EcnState::new(config.ecn, matches!(config.congestion, CongestionKind::Dctcp)),
            timers: Timers::new(),
            handshake: Handshake {
                active: false,
                syn_due: true,
                syn_sent_at: None,
                syns_sent: 0,
                syn_timed_out: false,
                started_at: now,
                window_scale: config.window_scaling.then_some(shift),
                sack: config.sack,
            },
            close_at: None,
            fin_sent: false,
            reset: None,
            persist: Persist::default(),
            keepalive: KeepAlive { received_at: now, unanswered: 0 },
            probe_idle: None,
            events: ArrayVec::new(),
            counters: Counters::default(),
            challenges: Challenges::default(),
            strays: Strays::default(),
        }
    }

    /// An option is agreed on only if both SYNs have it (RFC 7323 §2.2, §3.2; RFC 2018 §2).
    pub(super) fn take_syn(&mut self, now: Instant, syn: &Header) {
        let config = &self.config;
        let Options { mss, window_scale, sack_permitted, timestamps, sack: _ } = &syn.options;
        let window = self.rcv.window_bytes();
        self.rcv = ReceiveHalf::new(syn.seq, window, u32::from(config.mss_receive));
        // RFC 7323 §2.3: a shift above 14 counts as 14.
        // spec: TCP-7323-1
        let peer_shift = window_scale.map(|shift| shift.min(SHIFT_MAX));
        if peer_shift.is_none() {
            self.handshake.window_scale = None;
        }
        let both_scale = self.handshake.window_scale.is_some();
        self.rcv.set_shift(self.handshake.window_scale.unwrap_or(0));
        self.handshake.sack &= sack_permitted;
        self.ecn.take_syn(syn.flags);
        self.timestamps.agreed &= timestamps.is_some();
        if let Some(timestamps) = timestamps {
            self.timestamps.begin(now, timestamps.value);
        }
        let shift = if both_scale { peer_shift.unwrap_or(0) } else { 0 };
        self.snd.agree(*mss, shift, self.timestamps.agreed, self.handshake.sack);
        self.snd.first_window(syn);
    }

    /// The state of RFC 9293 §3.3.2. A connection in [`State::Closed`] can be dropped once
    /// [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event) are empty.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// The counters of this connection.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the first part of `within` that was never committed.
    #[must_use]
    pub fn next_missing(&self, within: Range<StreamOffset>) -> Option<Range<StreamOffset>> {
        self.rcv.next_missing(within)
    }

    /// Returns true if [`commit`](Self::commit) has room for `range` and for any front part of it.
    #[must_use]
    pub fn can_commit(&self, range: &Range<StreamOffset>) -> bool {
        self.rcv.can_commit(range)
    }

    /// Marks `range` as kept by the layer above: it is acknowledged and never offered again.
    /// Errors: [`Full`] if there are too many ranges beyond the cumulative point: the bytes count
    /// as not received, and must not be used.
    pub fn commit(&mut self, range: Range<StreamOffset>) -> Result<(), Full> {
        self.rcv.commit(range)
    }

    /// Withdraws bytes of `range` that were committed beyond a gap and could not be kept (RFC 2018
    /// §8), but none before the cumulative point.
    pub fn forget(&mut self, range: &Range<StreamOffset>) {
        self.rcv.forget(range);
    }

    /// The cumulative point of the receive direction: every byte before it was committed.
    #[must_use]
    pub const fn delivered(&self) -> StreamOffset {
        self.rcv.rcv_nxt()
    }

    /// The right edge never moves back (RFC 9293 SHLD-14). Opening a closed window sends an update.
    pub(crate) fn set_receive_window(&mut self, bytes: u32) {
        self.rcv.set_window(bytes);
        if self.state.is_synchronized() && self.rcv.update_is_due() {
            self.acks.owe();
        }
    }

    /// Limits the receive window to `bytes`; `None` restores the configured one.
    pub(crate) fn limit_receive_window(&mut self, bytes: Option<usize>) {
        let limit = bytes.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(u32::MAX);
        let window = limit.min(self.config.window_bytes);
        if window != self.rcv.window_bytes() {
            self.set_receive_window(window);
        }
    }

    #[must_use]
    pub(crate) fn snd_una(&self) -> StreamOffset {
        self.snd.board.una().min(self.send_end())
    }

    #[must_use]
    pub(crate) fn snd_nxt(&self) -> StreamOffset {
        self.snd.board.nxt().min(self.send_end())
    }

    /// Sequence number after the last one sent, including a FIN's.
    #[must_use]
    pub(crate) fn snd_end_seq(&self) -> SeqNum {
        self.snd.space.seq_at(self.snd.board.nxt())
    }

    /// An ICMP message that quotes a number not in flight is ignored (RFC 5927 §4.1).
    #[must_use]
    pub(crate) fn is_in_flight(&self, seq: SeqNum) -> bool {
        let ahead = seq.distance_from(self.snd.space.seq_at(self.snd.board.una()));
        u64::try_from(ahead).is_ok_and(|ahead| ahead < self.snd.board.flight())
    }

    fn send_end(&self) -> StreamOffset {
        let fin_at = self.close_at.filter(|_| self.fin_sent);
        fin_at.unwrap_or(StreamOffset(u64::MAX))
    }

    /// Effective MSS: the most bytes of data in one segment, a multiple of 8.
    // spec: TCP-A.1-3
    #[must_use]
    pub fn emss(&self) -> usize {
        usize::try_from(self.snd.emss()).unwrap_or(usize::MAX)
    }

    /// Sets the largest IP payload (TCP header and data) that the path carries, in bytes. Longer
    /// segments in flight are retransmitted, cut to fit.
    pub(crate) fn set_path_mtu(&mut self, now: Instant, bytes: usize) {
        self.snd.set_path(bytes);
        if self.snd.board.flight() > 0 {
            self.arm_retransmit(now);
        }
    }

    /// The peer has a segment as long as the oldest was when the path last shrank.
    #[must_use]
    pub(crate) const fn is_long_delivered(&self) -> bool {
        self.snd.board.is_long_delivered()
    }

    /// A size that worked before is in doubt: what arrived until now proves nothing about the path.
    pub(crate) const fn forget_path_evidence(&mut self) {
        self.snd.board.forget_path_evidence();
    }

    /// Time since the peer last acknowledged something new, or since something was first in flight.
    #[must_use]
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        Duration::from_nanos(now.nanos_since(self.snd.progress_at()))
    }

    #[must_use]
    #[cfg(test)]
    pub(crate) fn cwnd(&self) -> u64 {
        self.snd.cwnd()
    }

    #[must_use]
    #[cfg(test)]
    pub(crate) fn ssthresh(&self) -> u64 {
        self.snd.ssthresh()
    }

    #[must_use]
    #[cfg(test)]
    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.snd.rtt.srtt_ns().map(Duration::from_nanos)
    }

    /// From 2 on, the path is suspect (R1 of RFC 9293 §3.8.3: at least 3 transmissions).
    #[must_use]
    pub(crate) const fn consecutive_timeouts(&self) -> u32 {
        self.snd.timeouts()
    }

    /// Turns keep-alive probes on or off (RFC 9293 MUST-24, MUST-27).
    pub fn set_keepalive(&mut self, now: Instant, times: Option<KeepAliveTimes>) {
        Arc::make_mut(&mut self.config).settings.keepalive = times;
        self.keepalive.unanswered = 0;
        self.timers.clear(Timer::KeepAlive);
        let is_open = self.state.is_synchronized() && self.state != State::TimeWait;
        if let Some(times) = self.keepalive_times().filter(|_| is_open) {
            self.timers.set(Timer::KeepAlive, now.max(self.keepalive.received_at + times.idle));
        }
    }

    /// The times of keep-alive probes; `None` if they are off.
    #[must_use]
    pub fn keepalive(&self) -> Option<KeepAliveTimes> {
        self.config.keepalive
    }

    pub(crate) fn user_timeout(&self) -> Duration {
        self.config.user_timeout
    }

    /// Closes our direction: a FIN follows the byte before `end`. Closing twice changes nothing.
    /// Panics if bytes beyond `end` were sent already: a caller's bug.
    pub fn close(&mut self, end: StreamOffset) {
        if self.close_at.is_some() || self.state == State::Closed {
            return;
        }
        if self.state == State::SynSent {
            // RFC 9293 §3.10.4: nothing was exchanged yet; the connection is deleted.
            self.enter(Trigger::Abandoned);
            self.finish(TcpEvent::Closed);
            return;
        }
        assert!(end >= self.snd.board.nxt(), "closed before bytes that were already sent");
        self.close_at = Some(end);
    }

    /// Aborts the connection: the peer gets a RST (RFC 9293 §3.10.5). It raises no event.
    pub fn abort(&mut self) {
        let sends_reset = self.state.is_synchronized() && self.state != State::TimeWait;
        if sends_reset || self.state == State::SynReceived {
            self.reset = Some(Box::new(Header {
                src_port: self.local_port,
                dst_port: self.remote_port,
                seq: self.snd.space.seq_at(self.snd.board.nxt()),
                ack: self.rcv.ack_number(),
                flags: Flags::RST | Flags::ACK,
                ..Header::default()
            }));
        }
        self.enter(Trigger::Abandoned);
        self.stop();
    }

    /// Returns true if nothing is left to do or to send: the connection can be dropped.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state == State::Closed && self.reset.is_none() && self.events.is_empty()
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<TcpEvent> {
        self.events.pop_at(0)
    }

    pub(super) fn enter(&mut self, trigger: Trigger) {
        if let Some(next) = self.state.after(trigger) {
            let (local_port, remote_port) = (self.local_port, self.remote_port);
            debug!(
                target: TRACE, local_port, remote_port, from = ?self.state, to = ?next, ?trigger,
                "state changed"
            );
            self.state = next;
        }
        if self.state == State::Closed {
            self.stop();
        }
    }

    pub(super) fn establish(&mut self, now: Instant) {
        if let Some(sent_at) = self.handshake.syn_sent_at.take() {
            self.snd.rtt.sample(now, now.nanos_since(sent_at));
        }
        self.handshake.syn_due = false;
        self.snd.begin(&self.config, self.handshake.syn_timed_out);
        self.timers.clear(Timer::Retransmit);
        if let Some(times) = self.keepalive_times() {
            self.timers.set(Timer::KeepAlive, now + times.idle);
        }
        self.enter(Trigger::SynsAcknowledged);
        self.raise(TcpEvent::Established);
    }

    pub(super) fn begin_time_wait(&mut self, now: Instant) {
        self.timers.clear_all();
        self.timers.set(Timer::TimeWait, now + self.config.time_wait);
        self.raise(TcpEvent::Closed);
    }

    pub(super) fn finish(&mut self, event: TcpEvent) {
        self.stop();
        self.raise(event);
    }

    pub(super) fn raise(&mut self, event: TcpEvent) {
        // Established, PeerFin and one ending: a connection has at most these three events.
        if !self.events.is_full() {
            self.events.push(event);
        }
    }

    fn stop(&mut self) {
        self.timers.clear_all();
        self.acks = AckPolicy::new(0, self.config.window_bytes);
        self.handshake.syn_due = false;
        self.persist = Persist::default();
    }
}
