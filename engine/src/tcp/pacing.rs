//! Pacing: on a long path, the congestion window is spread over the round trip. A window that opens
//! in one step, after idle time or by acknowledgments in a bunch, overflows queues that the same
//! window would fill evenly. On a short path the queues hold a whole window, and nothing is paced.

use crate::time::Instant;

/// Minimum round trip from which on a path is paced: the smoothed one is long on the shortest of
/// paths if ends wait for a processor.
const ROUND_TRIP_MIN_NS: u64 = 2_000_000;
/// Time that one burst takes at the pace. A super-frame is no larger.
const QUANTUM_NS: u64 = 1_000_000;
/// Longest delay that a sender that is woken late may make up for.
const CATCH_UP_NS: u64 = 10_000_000;
/// Segments that may always be sent in one burst.
const QUANTUM_SEGMENTS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    bytes: u64,
    ns: u64,
}

impl Pace {
    pub(crate) const fn is_worth_it(rtt_min_ns: u64) -> bool {
        rtt_min_ns >= ROUND_TRIP_MIN_NS
    }

    /// Faster than a window per round trip, so that pacing never limits by itself: 2 times in slow
    /// start, where the window doubles in that time, 1.25 times later.
    pub(crate) fn new(cwnd: u64, srtt_ns: u64, slow_start: bool) -> Self {
        let bytes = if slow_start { cwnd.saturating_mul(2) } else { cwnd.saturating_add(cwnd / 4) };
        Self { bytes: bytes.max(1), ns: srtt_ns.max(1) }
    }

    fn ns_for(self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * u128::from(self.ns) / u128::from(self.bytes);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    fn bytes_in(self, ns: u64) -> u64 {
        let bytes = u128::from(ns) * u128::from(self.bytes) / u128::from(self.ns);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn quantum(self, emss: u64) -> u64 {
        self.bytes_in(QUANTUM_NS).max(QUANTUM_SEGMENTS * emss)
    }
}

/// Time at which all that was sent would have left at the pace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    clear_at: Instant,
    /// A segment has waited for its time, and the sender has not caught up since.
    behind: bool,
}

impl Pacer {
    /// Returns the bytes that may be sent now, or the time to ask again.
    pub(crate) fn room(&mut self, now: Instant, pace: Pace, emss: u64) -> Result<u64, Instant> {
        let quantum = pace.quantum(emss);
        let waiting = pace.bytes_in(self.clear_at.nanos_since(now));
        // Time that passed while a segment waited counts: a late timer does not lower the rate.
        let late_ns = if self.behind { now.nanos_since(self.clear_at).min(CATCH_UP_NS) } else { 0 };
        let room = quantum.saturating_sub(waiting).saturating_add(pace.bytes_in(late_ns));
        if room >= emss {
            return Ok(room);
        }
        self.behind = true;
        // When half of the quantum is free: few timers, no large bursts.
        let ahead_ns = self.clear_at.nanos_since(now).saturating_sub(pace.ns_for(quantum / 2));
        Err(now.plus_nanos(ahead_ns.max(1)))
    }

    pub(crate) fn on_sent(&mut self, now: Instant, pace: Pace, bytes: u64) {
        let credit_ns = if self.behind { CATCH_UP_NS } else { 0 };
        let from = self.clear_at.as_nanos().max(now.as_nanos().saturating_sub(credit_ns));
        self.clear_at = Instant::from_nanos(from).plus_nanos(pace.ns_for(bytes));
        self.behind &= self.clear_at < now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMSS: u64 = 1000;
    const MS: u64 = 1_000_000;

    fn pace(cwnd: u64) -> Pace {
        Pace::new(cwnd, 20 * MS, false)
    }

    #[test]
    fn a_short_path_is_not_paced() {
        assert!(!Pace::is_worth_it(MS) && Pace::is_worth_it(20 * MS));
    }

    /// 1.6 MB in 20 ms: 100 kB in each millisecond.
    #[test]
    fn a_window_leaves_in_pieces_over_the_round_trip() {
        let (pace, mut pacer, mut now) = (pace(1_600_000), Pacer::default(), Instant::ZERO);
        let mut sent = 0;
        while sent < 1_600_000 {
            match pacer.room(now, pace, EMSS) {
                Ok(room) => {
                    assert!(room <= 100_000);
                    pacer.on_sent(now, pace, room);
                    sent += room;
                }
                Err(at) => {
                    assert!(at > now);
                    now = at;
                }
            }
        }
        assert!((14 * MS..17 * MS).contains(&now.as_nanos()), "{now}");
    }

    #[test]
    fn idle_time_earns_at_most_one_quantum() {
        let (pace, mut pacer) = (pace(1_600_000), Pacer::default());
        pacer.on_sent(Instant::ZERO, pace, 1000);
        let later = Instant::from_nanos(500 * MS);
        assert_eq!(pacer.room(later, pace, EMSS), Ok(100_000));
    }

    #[test]
    fn a_sender_that_wakes_late_keeps_the_pace() {
        let (pace, mut pacer, mut now) = (pace(1_600_000), Pacer::default(), Instant::ZERO);
        let mut sent = 0;
        while sent < 16_000_000 {
            match pacer.room(now, pace, EMSS) {
                Ok(room) => {
                    assert!(room <= 900_000, "a burst of {room}");
                    // In several frames.
                    let frame = room.min(60_000);
                    pacer.on_sent(now, pace, frame);
                    sent += frame;
                }
                // Every timer is 7 ms late.
                Err(at) => now = at.plus_nanos(7 * MS),
            }
        }
        assert!((150 * MS..170 * MS).contains(&now.as_nanos()), "{now}");
    }

    /// Time that a late timer may make up for is not saved for later.
    #[test]
    fn a_sender_that_has_caught_up_begins_with_a_quantum() {
        let (pace, mut pacer, now) = (pace(1_600_000), Pacer::default(), Instant::ZERO);
        let room = pacer.room(now, pace, EMSS).unwrap();
        pacer.on_sent(now, pace, room);
        let at = pacer.room(now, pace, EMSS).unwrap_err();
        let room = pacer.room(at, pace, EMSS).unwrap();
        pacer.on_sent(at, pace, room);
        assert_eq!(pacer.room(at.plus_nanos(1000 * MS), pace, EMSS), Ok(100_000));
    }

    #[test]
    fn a_small_window_sends_two_segments_at_a_time() {
        let (pace, mut pacer, now) = (pace(4000), Pacer::default(), Instant::ZERO);
        assert_eq!(pacer.room(now, pace, EMSS), Ok(2000));
        pacer.on_sent(now, pace, 2000);
        // A thousand bytes take 4 ms.
        assert_eq!(pacer.room(now, pace, EMSS), Err(Instant::from_nanos(4 * MS)));
    }
}
