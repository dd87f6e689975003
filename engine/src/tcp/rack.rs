//! RACK: a segment is lost if it was sent well before another that has arrived (RFC 8985 §5, §6).
//! The scoreboard asks here which segments are overdue; the sender decides how to react to a loss.

use crate::time::Instant;
use crate::types::StreamOffset;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) sent_at: Instant,
    pub(crate) end: StreamOffset,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deliveries {
    /// The latest among segments that were sent once.
    pub(crate) original: Option<Delivery>,
    /// The latest among segments that were sent more than once.
    pub(crate) resent: Option<Delivery>,
    /// Lowest end of a segment sent once.
    pub(crate) lowest_end: Option<StreamOffset>,
}

impl Deliveries {
    pub(crate) fn note(&mut self, sent_at: Instant, end: StreamOffset, sent_once: bool) {
        let slot = if sent_once { &mut self.original } else { &mut self.resent };
        if slot.is_none_or(|known| is_later((sent_at, end), (known.sent_at, known.end))) {
            *slot = Some(Delivery { sent_at, end });
        }
        if sent_once {
            self.lowest_end = Some(self.lowest_end.map_or(end, |lowest| lowest.min(end)));
        }
    }
}

/// Segments sent at the same moment are ordered by their ends (RFC 8985 §6.2 "RACK_sent_after").
fn is_later(one: (Instant, StreamOffset), other: (Instant, StreamOffset)) -> bool {
    one > other
}

/// The state of RFC 8985 §5.3.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Rack {
    /// "RACK.dsack_round": the window has grown for D-SACKs in this round trip, which ends here.
    dsack_round: Option<StreamOffset>,
    /// "RACK.reo_wnd_mult".
    multiple: u64,
    /// "RACK.reo_wnd_persist": recoveries until the multiple falls back to 1.
    persist: u32,
    reordering_seen: bool,
    /// "RACK.xmit_ts" and "RACK.end_seq": the latest transmission known to have arrived.
    latest: Delivery,
    /// "RACK.rtt": the round trip of that transmission.
    rtt_ns: u64,
    /// "RACK.fack": the highest position known to have arrived.
    highest: StreamOffset,
}

/// RFC 8985 §6.2 step 4: recoveries without D-SACK after which the window is small again.
const PERSIST_RECOVERIES: u32 = 16;

impl Rack {
    pub(crate) const fn new() -> Self {
        Self {
            latest: Delivery { sent_at: Instant::ZERO, end: StreamOffset::ZERO },
            rtt_ns: 0,
            highest: StreamOffset::ZERO,
            reordering_seen: false,
            dsack_round: None,
            multiple: 1,
            persist: PERSIST_RECOVERIES,
        }
    }

    /// Everything before `end` arrived in order. Cheaper than [`update`](Self::update).
    pub(crate) const fn in_order(&mut self, now: Instant, sent_at: Instant, end: StreamOffset) {
        self.latest = Delivery { sent_at, end };
        self.rtt_ns = now.nanos_since(sent_at);
        self.highest = end;
    }

    /// RFC 8985 §6.2 steps 2 and 3. `could_be_resent` returns true if the retransmission sent at
    /// that time can have caused the acknowledgment.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        delivered: &Deliveries,
        could_be_resent: impl Fn(Instant) -> bool,
    ) {
        // Step 3: a segment sent once arrived below one that had arrived before.
        if delivered.lowest_end.is_some_and(|end| end < self.highest) {
            self.reordering_seen = true;
        }
        let resent = delivered.resent.filter(|resent| could_be_resent(resent.sent_at));
        for delivery in [delivered.original, resent].into_iter().flatten() {
            if is_later((delivery.sent_at, delivery.end), (self.latest.sent_at, self.latest.end)) {
                self.latest = delivery;
                self.rtt_ns = now.nanos_since(delivery.sent_at);
            }
        }
        let ends = [delivered.original, delivered.resent].into_iter().flatten();
        self.highest = ends.map(|delivery| delivery.end).fold(self.highest, StreamOffset::max);
    }

    /// Corrects the latest arrival: the retransmission did not cause it, `original` is the latest.
    pub(crate) const fn go_back_to(&mut self, now: Instant, original: Delivery) {
        self.latest = original;
        self.rtt_ns = now.nanos_since(original.sent_at);
    }

    pub(crate) fn acknowledged(&mut self, end: StreamOffset) {
        self.highest = self.highest.max(end);
        // RFC 8985 §6.2 step 4: the round trip in which D-SACKs count once is over.
        if self.dsack_round.is_some_and(|round| end >= round) {
            self.dsack_round = None;
        }
    }

    pub(crate) fn is_overtaken(&self, sent_at: Instant, end: StreamOffset) -> bool {
        is_later((self.latest.sent_at, self.latest.end), (sent_at, end))
    }

    pub(crate) const fn overdue_at(&self, sent_at: Instant, window_ns: u64) -> Instant {
        sent_at.plus_nanos(self.rtt_ns.saturating_add(window_ns))
    }

    /// A D-SACK reports a needless retransmission (RFC 8985 §6.2 step 4).
    pub(crate) const fn on_dsack(&mut self, nxt: StreamOffset) {
        if self.dsack_round.is_none() {
            self.dsack_round = Some(nxt);
            self.multiple = self.multiple.saturating_add(1);
            self.persist = PERSIST_RECOVERIES;
        }
    }

    pub(crate) const fn on_reordering(&mut self) {
        self.reordering_seen = true;
    }

    pub(crate) const fn on_recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.multiple = 1;
        }
    }

    /// RFC 8985 §6.2 "RACK_update_reo_wnd". `certain`: losses are being repaired, or enough is
    /// SACKed to begin a recovery without RACK.
    // spec: TCP-8985-2
    pub(crate) fn window_ns(
        &self,
        certain: bool,
        min_ns: Option<u64>,
        srtt_ns: Option<u64>,
    ) -> u64 {
        if !self.reordering_seen && certain {
            return 0;
        }
        let (Some(min_ns), Some(srtt_ns)) = (min_ns, srtt_ns) else { return 0 };
        self.multiple.saturating_mul(min_ns / 4).min(srtt_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn originals(segments: &[(u64, u64)]) -> Deliveries {
        let mut delivered = Deliveries::default();
        for &(sent_us, end) in segments {
            delivered.note(at(sent_us), StreamOffset(end), true);
        }
        delivered
    }

    #[test]
    fn lowest_and_latest_delivered_segments_are_recorded_in_any_order() {
        for ends in [[100, 200, 300], [300, 100, 200], [200, 300, 100]] {
            let delivered = originals(&ends.map(|end| (end, end)));
            assert_eq!(delivered.lowest_end, Some(StreamOffset(100)));
            assert_eq!(delivered.original.map(|one| one.end), Some(StreamOffset(300)));
        }
    }

    // spec: TCP-8985-1, TCP-8985-2
    #[test]
    fn segment_sent_before_a_delivered_one_is_overdue_after_a_round_trip() {
        let mut rack = Rack::new();
        rack.update(at(150), &originals(&[(40, 400), (50, 500)]), |_| true);
        assert!(rack.is_overtaken(at(50), StreamOffset(400)));
        assert!(!rack.is_overtaken(at(50), StreamOffset(500)));
        assert!(!rack.is_overtaken(at(51), StreamOffset(100)));
        assert_eq!(rack.overdue_at(at(40), 7_000), at(147));
    }

    #[test]
    fn retransmission_too_recent_for_its_acknowledgment_is_ignored() {
        let mut rack = Rack::new();
        let mut delivered = originals(&[(10, 100)]);
        delivered.note(at(90), StreamOffset(200), false);
        rack.update(at(100), &delivered, |sent_at| sent_at < at(80));
        assert!(!rack.is_overtaken(at(50), StreamOffset(300)));
        rack.update(at(100), &delivered, |_| true);
        assert!(rack.is_overtaken(at(50), StreamOffset(300)));
    }

    /// RFC 8985 §6.2 step 4.
    #[test]
    fn the_window_is_zero_until_reordering_is_seen_and_grows_with_dsacks() {
        let mut rack = Rack::new();
        let window = |rack: &Rack| rack.window_ns(true, Some(400), Some(1000));
        assert_eq!(window(&rack), 0);
        assert_eq!(rack.window_ns(false, Some(400), Some(1000)), 100);
        rack.update(at(9), &originals(&[(5, 500)]), |_| true);
        rack.update(at(9), &originals(&[(3, 300)]), |_| true);
        assert_eq!(window(&rack), 100);
        // Once per round trip.
        rack.on_dsack(StreamOffset(1000));
        rack.on_dsack(StreamOffset(1000));
        assert_eq!(window(&rack), 200);
        rack.acknowledged(StreamOffset(1000));
        for _ in 0..20 {
            rack.on_dsack(StreamOffset(1000));
            rack.acknowledged(StreamOffset(1000));
        }
        assert_eq!(window(&rack), 1000, "never above SRTT");
        for _ in 1..PERSIST_RECOVERIES {
            rack.on_recovered();
        }
        assert_eq!(window(&rack), 1000);
        rack.on_recovered();
        assert_eq!(window(&rack), 100);
    }
}
