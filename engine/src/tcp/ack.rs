//! When to acknowledge, and the timestamps that acknowledgments echo.

use super::header::Timestamps;
use super::seq::SeqNum;
use crate::time::Instant;

/// Decides when an acknowledgment is owed (RFC 9293 §3.8.6.3, RFC 5681 §4.2).
#[derive(Clone, Debug)]
pub(crate) struct AckPolicy {
    /// Segments of full size since the last acknowledgment sent.
    full_segments: usize,
    /// Bytes since then.
    bytes: usize,
    /// Acknowledgments owed now.
    owed: u32,
    /// What is owed must go by itself: it carries SACK blocks, or counts as a duplicate ACK.
    separate: bool,
    /// Segments still acknowledged one by one.
    quick: u8,
    /// Full-sized segments that one acknowledgment is for, while acknowledgments may be held.
    stretch: usize,
    /// What is held counts as enough by RFC 9293, and goes when the timer runs out.
    held: bool,
    /// Bytes that are held at most.
    held_bytes_max: usize,
}

/// When data is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckDue {
    /// Now.
    Now,
    /// When its burst is over.
    Held,
    /// When the delayed-ACK timer runs out, or with more data.
    Delayed,
}

/// Full-sized segments that an acknowledgment is for when none is held (RFC 9293 SHLD-19).
const EVERY_SECOND: usize = 2;
/// Full-sized segments that are held at most: two super-frames of the usual MTU, 64 KiB of another.
const STRETCH_MAX: usize = 64;
/// Bytes that are held at most, and never more than a quarter of the window: the peer must not have
/// to wait.
const HELD_BYTES_MAX: usize = 96 << 10;

/// Duplicate ACKs owed at once, for peers without SACK that count them.
pub(crate) const OWED_MAX: u32 = 64;

impl AckPolicy {
    /// The first `quick` segments are acknowledged one by one; `window` is what is advertised at
    /// most.
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

    /// In-order data was committed: when is it acknowledged? `push`: its sender had no more.
    /// `hold`: acknowledgments may wait for the rest of a burst.
    ///
    /// RFC 9293 §3.8.6.3: "an ACK SHOULD be generated for at least every second full-sized segment
    /// or 2*RMSS bytes of new data". A segment above half the MSS counts as full-sized, because one
    /// that ends where the next FPDU no longer fits is as full as it gets.
    ///
    /// RFC 9293 MUST-58, MUST-59: acknowledgments are aggregated, and what is queued is processed
    /// before any is sent. A receiver that is faster than the link has a queue of one segment, so
    /// it holds what is due for a moment. It waits for twice as many segments each time as many as
    /// it waited for have come, and for half as many when they have not.
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
        if self.owed > 0 || quick || (is_due && (push || !hold)) {
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

    /// The delayed-ACK timer ran out.
    pub(crate) fn on_timeout(&mut self) {
        if self.held {
            self.stretch = (self.stretch / 2).max(EVERY_SECOND);
        }
        self.owe();
    }

    /// An acknowledgment must go now, but may ride on data.
    pub(crate) fn owe(&mut self) {
        self.owed = self.owed.max(1);
    }

    /// An acknowledgment must go now by itself; `each`: do not merge it with others owed.
    pub(crate) fn owe_separate(&mut self, each: bool) {
        self.owed = if each { (self.owed + 1).min(OWED_MAX) } else { self.owed.max(1) };
        self.separate = true;
    }

    /// Whether data waits for its acknowledgment.
    pub(crate) const fn has_unacknowledged(&self) -> bool {
        self.bytes > 0
    }

    /// Whether a pure acknowledgment should be sent.
    pub(crate) const fn is_due(&self) -> bool {
        self.owed > 0
    }

    /// Acknowledgments owed now.
    pub(crate) const fn owed(&self) -> u32 {
        self.owed
    }

    /// A pure acknowledgment went out; true when nothing more is owed.
    pub(crate) fn pure_ack_sent(&mut self) -> bool {
        self.owed = self.owed.saturating_sub(1);
        self.begin_again();
        if self.owed == 0 {
            self.separate = false;
        }
        self.owed == 0
    }

    /// A data segment carried the acknowledgment number; true when nothing more is owed.
    pub(crate) fn rode_on_data(&mut self) -> bool {
        self.begin_again();
        if !self.separate {
            self.owed = 0;
        }
        self.owed == 0
    }

    /// Everything so far is acknowledged.
    const fn begin_again(&mut self) {
        self.full_segments = 0;
        self.bytes = 0;
        self.held = false;
    }
}

/// TS.Recent and our own timestamp clock (RFC 7323 §4, §5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimestampState {
    /// Whether both sides agreed on timestamps.
    pub(crate) agreed: bool,
    offset: u32,
    recent: u32,
    recent_at: Instant,
    last_ack_sent: SeqNum,
}

/// One tick of the timestamp clock. RFC 7323 §5.4: between 1 ms and 1 s.
pub(crate) const TICK_NS: u64 = 1_000_000;
/// RFC 7323 §5.5: TS.Recent older than 24 days is invalid.
const RECENT_VALID_NS: u64 = 24 * 24 * 3600 * 1_000_000_000;

impl TimestampState {
    pub(crate) const fn new(wanted: bool, offset: u32) -> Self {
        let zero = Instant::ZERO;
        Self { agreed: wanted, offset, recent: 0, recent_at: zero, last_ack_sent: SeqNum(0) }
    }

    /// Our clock at `now`.
    #[expect(clippy::cast_possible_truncation, reason = "timestamps are ticks modulo 2^32")]
    pub(crate) const fn clock(&self, now: Instant) -> u32 {
        self.offset.wrapping_add((now.as_nanos() / TICK_NS) as u32)
    }

    /// The option to send.
    pub(crate) fn option(&self, now: Instant) -> Option<Timestamps> {
        self.agreed.then(|| Timestamps { value: self.clock(now), echo: self.recent })
    }

    /// The peer's first timestamp.
    pub(crate) fn begin(&mut self, now: Instant, value: u32) {
        self.recent = value;
        self.recent_at = now;
    }

    /// RFC 7323 §5.3 R1: the timestamp went backwards, and TS.Recent is valid.
    pub(crate) fn is_old(&self, now: Instant, value: u32) -> bool {
        value.wrapping_sub(self.recent).cast_signed() < 0
            && now.nanos_since(self.recent_at) < RECENT_VALID_NS
    }

    /// How much earlier than TS.Recent a value that is old is, if the peer's clock ticks as ours.
    pub(crate) const fn lateness_ns(&self, value: u32) -> u64 {
        self.recent.wrapping_sub(value) as u64 * TICK_NS
    }

    /// RFC 7323 §4.3: TS.Recent follows SEG.TSval when SEG.TSval ≥ TS.Recent and
    /// SEG.SEQ ≤ Last.ACK.sent.
    pub(crate) fn update(&mut self, now: Instant, value: u32, seq: SeqNum) {
        if !seq.is_after(self.last_ack_sent) && !self.is_old(now, value) {
            self.begin(now, value);
        }
    }

    pub(crate) fn ack_sent(&mut self, ack: SeqNum) {
        self.last_ack_sent = ack;
    }

    /// TS.Recent.
    pub(crate) const fn recent(&self) -> u32 {
        self.recent
    }

    /// Whether `value` is later than TS.Recent.
    pub(crate) const fn is_newer(&self, value: u32) -> bool {
        value.wrapping_sub(self.recent).cast_signed() > 0
    }

    /// How old an echoed clock value is; `None` when it cannot be ours.
    pub(crate) fn echo(&self, now: Instant, echo: u32) -> Option<Echo> {
        let ticks = self.clock(now).wrapping_sub(echo);
        (ticks < 1 << 24).then(|| Echo { ticks: u64::from(ticks) })
    }
}

/// The age of a timestamp of ours that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    ticks: u64,
}

impl Echo {
    /// The round-trip time it tells. Rounded up: a tick is long beside a local round trip, and 0
    /// would be no measurement.
    pub(crate) const fn round_trip_ns(self) -> u64 {
        (self.ticks + 1) * TICK_NS
    }

    /// Whether the timestamp is earlier than that of a segment sent at `sent_at`.
    pub(crate) const fn is_before(self, now: Instant, sent_at: Instant) -> bool {
        (now.as_nanos() / TICK_NS).saturating_sub(sent_at.as_nanos() / TICK_NS) < self.ticks
    }
}

/// Allows `MAX` events in each period. Packed, for the sake of the records of
/// [`TimeWait`](super::TimeWait), each of which has two.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct RateLimit<const MAX: u32, const PERIOD_NS: u64> {
    since: Instant,
    count: u32,
}

impl<const MAX: u32, const PERIOD_NS: u64> RateLimit<MAX, PERIOD_NS> {
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        let Self { since, count } = *self;
        let is_over = now.nanos_since(since) >= PERIOD_NS;
        let count = if is_over { 1 } else { count.saturating_add(1) };
        *self = Self { since: if is_over { now } else { since }, count };
        count <= MAX
    }
}

/// RFC 5961 §7: "at most 10 challenge ACKs in any 5 second window". Counted by connection: a count
/// that connections share tells an outsider what happens on those of others (CVE-2016-5696). The
/// section wants the values tunable, for the sake of a count that serves a whole system and has to
/// fit its size; one of a single connection fits all, and is a constant.
pub(crate) type Challenges = RateLimit<10, 5_000_000_000>;
/// Answers to unacceptable segments without data, which two confused ends could exchange for ever.
pub(crate) type Strays = RateLimit<100, 1_000_000_000>;
