//! When to acknowledge, and the timestamps that acknowledgments echo.

use super::header::Timestamps;
use super::seq::SeqNum;
use crate::time::Instant;

/// Decides when an acknowledgment is owed (RFC 9293 §3.8.6.3, RFC 5681 §4.2).
#[derive(Clone, Debug)]
pub(crate) struct AckPolicy {
    full_segments: usize,
    bytes: usize,
    owed: u32,
    /// With SACK blocks, or counted as a duplicate ACK: data does not carry it.
    separate: bool,
    /// Number of segments that are still acknowledged one by one.
    quick: u8,
    /// Full-sized segments per acknowledgment while acknowledgments may be held.
    stretch: usize,
    /// An acknowledgment that RFC 9293 requires is held until the timer expires.
    held: bool,
    held_bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckDue {
    Now,
    Held,
    /// When the delayed-ACK timer expires, or with data of ours.
    Delayed,
}

/// Full-sized segments per acknowledgment if none is held (RFC 9293 SHLD-19).
const EVERY_SECOND: usize = 2;
/// Most full-sized segments per held acknowledgment: some 90 KiB at an MTU of 1500.
const STRETCH_MAX: usize = 64;
/// A quarter of the window is a second limit: the peer must not have to wait.
const HELD_BYTES_MAX: usize = 96 << 10;

/// Most duplicate ACKs owed at once, for peers without SACK, which count them.
pub(crate) const OWED_MAX: u32 = 64;

impl AckPolicy {
    /// The first `quick` segments are acknowledged one by one.
    pub(crate) fn new(quick: u8, window: u32) -> Self {
        let quarter = usize::try_from(window / 4).unwrap_or(usize::MAX);
        Self {
            full_segments: 0,
            bytes: 0,
            owed: 0,
            separate: false,
            quick,
            stretch: EVERY_SECOND,
            held: false,
            held_bytes_max: quarter.min(HELD_BYTES_MAX),
        }
    }

    /// With `hold`, acknowledgments may wait for the rest of a burst. `push`: PSH ends what the
    /// sender has queued (RFC 9293 §3.9.1.2, MUST-61). Its messages may complete only when they are
    /// acknowledged, so pushed data, however short, is acknowledged at once: after all segments
    /// that have arrived, on data if there is any. RFC 9293 §3.8.6.3: "an ACK
    /// SHOULD be generated for at least every second full-sized segment or 2*RMSS bytes of new
    /// data". A segment above half the MSS counts as full-sized: the next FPDU no longer fits. RFC
    /// 9293 MUST-58, MUST-59: acknowledgments are aggregated. A receiver that is faster than the
    /// link has a queue of one segment, so it holds a due acknowledgment for a moment. The number
    /// of segments it waits for doubles each time that many arrive, and halves each time the timer
    /// expires first.
    // spec: TCP-9293-18, TCP-9293-19
    pub(crate) fn on_data(
        &mut self,
        segments: usize,
        bytes: usize,
        mss: usize,
        push: bool,
        hold: bool,
    ) -> AckDue {
        self.bytes = self.bytes.saturating_add(bytes);
        if bytes.saturating_mul(2) > mss.saturating_mul(segments) {
            self.full_segments = self.full_segments.saturating_add(segments);
        }
        let quick = self.quick > 0;
        self.quick = self.quick.saturating_sub(u8::try_from(segments).unwrap_or(u8::MAX));
        let is_due = self.full_segments >= EVERY_SECOND || self.bytes >= mss.saturating_mul(2);
        if self.owed > 0 || quick || push || (is_due && !hold) {
            self.owed = self.owed.max(1);
            AckDue::Now
        } else if !is_due {
            AckDue::Delayed
        } else if self.full_segments >= self.stretch || self.bytes >= self.held_bytes_max {
            self.stretch = (self.stretch * 2).min(STRETCH_MAX);
            self.owed = 1;
            AckDue::Now
        } else {
            self.held = true;
            AckDue::Held
        }
    }

    /// Owes an acknowledgment at the delayed-ACK timer. Halves the stretch if one was held.
    pub(crate) fn on_timeout(&mut self) {
        if self.held {
            self.stretch = (self.stretch / 2).max(EVERY_SECOND);
        }
        self.owe();
    }

    pub(crate) fn owe(&mut self) {
        self.owed = self.owed.max(1);
    }

    /// Owes an acknowledgment in a segment of its own; with `each`, one for every call.
    pub(crate) fn owe_separate(&mut self, each: bool) {
        self.owed = if each { (self.owed + 1).min(OWED_MAX) } else { self.owed.max(1) };
        self.separate = true;
    }

    pub(crate) const fn has_unacknowledged(&self) -> bool {
        self.bytes > 0
    }

    pub(crate) const fn is_due(&self) -> bool {
        self.owed > 0
    }

    pub(crate) const fn owed(&self) -> u32 {
        self.owed
    }

    /// Records that a pure acknowledgment was sent; returns true if no other is owed.
    pub(crate) fn pure_ack_sent(&mut self) -> bool {
        self.owed = self.owed.saturating_sub(1);
        self.begin_again();
        if self.owed == 0 {
            self.separate = false;
        }
        self.owed == 0
    }

    /// Records that a data segment carried the acknowledgment; returns true if no other is owed.
    pub(crate) fn rode_on_data(&mut self) -> bool {
        self.begin_again();
        if !self.separate {
            self.owed = 0;
        }
        self.owed == 0
    }

    const fn begin_again(&mut self) {
        self.full_segments = 0;
        self.bytes = 0;
        self.held = false;
    }
}

/// TS.Recent and our own timestamp clock (RFC 7323 §4, §5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimestampState {
    pub(crate) agreed: bool,
    offset: u32,
    recent: u32,
    recent_at: Instant,
    last_ack_sent: SeqNum,
}

/// One tick of the timestamp clock. RFC 7323 §5.4: between 1 ms and 1 s.
// spec: TCP-7323-6
pub(crate) const TICK_NS: u64 = 1_000_000;
/// RFC 7323 §5.5: TS.Recent older than 24 days is invalid.
const RECENT_VALID_NS: u64 = 24 * 24 * 3600 * 1_000_000_000;

impl TimestampState {
    pub(crate) const fn new(wanted: bool, offset: u32) -> Self {
        let zero = Instant::ZERO;
        Self { agreed: wanted, offset, recent: 0, recent_at: zero, last_ack_sent: SeqNum(0) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "timestamps are ticks modulo 2^32")]
    pub(crate) const fn clock(&self, now: Instant) -> u32 {
        self.offset.wrapping_add((now.as_nanos() / TICK_NS) as u32)
    }

    pub(crate) fn option(&self, now: Instant) -> Option<Timestamps> {
        self.agreed.then(|| Timestamps { value: self.clock(now), echo: self.recent })
    }

    pub(crate) fn begin(&mut self, now: Instant, value: u32) {
        self.recent = value;
        self.recent_at = now;
    }

    /// Returns true if the timestamp went backwards and TS.Recent is valid (RFC 7323 §5.3 R1).
    pub(crate) fn is_old(&self, now: Instant, value: u32) -> bool {
        value.wrapping_sub(self.recent).cast_signed() < 0
            && now.nanos_since(self.recent_at) < RECENT_VALID_NS
    }

    /// Returns how much older than TS.Recent a value is, if the peer's clock ticks as ours does.
    pub(crate) const fn lateness_ns(&self, value: u32) -> u64 {
        self.recent.wrapping_sub(value) as u64 * TICK_NS
    }

    /// RFC 7323 §4.3: if SEG.TSval ≥ TS.Recent and SEG.SEQ ≤ Last.ACK.sent.
    // spec: TCP-7323-4
    pub(crate) fn update(&mut self, now: Instant, value: u32, seq: SeqNum) {
        if !seq.is_after(self.last_ack_sent) && !self.is_old(now, value) {
            self.begin(now, value);
        }
    }

    pub(crate) fn ack_sent(&mut self, ack: SeqNum) {
        self.last_ack_sent = ack;
    }

    pub(crate) const fn recent(&self) -> u32 {
        self.recent
    }

    pub(crate) const fn is_newer(&self, value: u32) -> bool {
        value.wrapping_sub(self.recent).cast_signed() > 0
    }

    /// Returns the age of an echoed clock value; `None` if the value cannot be ours.
    pub(crate) fn echo(&self, now: Instant, echo: u32) -> Option<Echo> {
        let ticks = self.clock(now).wrapping_sub(echo);
        (ticks < 1 << 24).then(|| Echo { ticks: u64::from(ticks) })
    }
}

/// The age of a timestamp of ours that the peer echoed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    ticks: u64,
}

impl Echo {
    /// Rounded up: a tick is long compared with a local round trip, and 0 would be no measurement.
    pub(crate) const fn round_trip_ns(self) -> u64 {
        (self.ticks + 1) * TICK_NS
    }

    /// Returns true if the timestamp is earlier than that of a segment sent at `sent_at`.
    pub(crate) const fn is_before(self, now: Instant, sent_at: Instant) -> bool {
        (now.as_nanos() / TICK_NS).saturating_sub(sent_at.as_nanos() / TICK_NS) < self.ticks
    }
}

/// Packed, because each [`TimeWait`](super::TimeWait) record holds two.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct RateLimit<const MAX: u32, const PERIOD_NS: u64> {
    since: Instant,
    count: u32,
}

impl<const MAX: u32, const PERIOD_NS: u64> RateLimit<MAX, PERIOD_NS> {
    // spec: TCP-5961-4
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let Self { since, count } = *self;
        let is_over = now.nanos_since(since) >= PERIOD_NS;
        let count = if is_over { 1 } else { count.saturating_add(1) };
        *self = Self { since: if is_over { now } else { since }, count };
        count <= MAX
    }
}

/// RFC 5961 §7: "at most 10 challenge ACKs in any 5 second window". For each connection: from a
/// shared count an outsider learns what happens on others (CVE-2016-5696). The section wants
/// tunable values for a system's count; one for a connection fits every system.
pub(crate) type Challenges = RateLimit<10, 5_000_000_000>;
/// Answers to unacceptable segments without data, which two ends could exchange for ever.
pub(crate) type Strays = RateLimit<100, 1_000_000_000>;
