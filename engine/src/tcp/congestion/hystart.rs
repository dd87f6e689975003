//! HyStart++: ends slow start when the round trip grows, before queues overflow (RFC 9406).

use super::AckSample;

/// RFC 9406 §4.3.
const MIN_RTT_THRESH_NS: u64 = 4_000_000;
const MAX_RTT_THRESH_NS: u64 = 16_000_000;
const MIN_RTT_DIVISOR: u64 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    Add(u64),
    Leave,
}

/// The state of RFC 9406 §4.2 for one slow start.
#[derive(Clone, Debug)]
pub(super) struct HyStart {
    /// SND.NXT when the round began: its acknowledgment ends the round.
    round_end: u64,
    last_round_min_ns: u64,
    this_round_min_ns: u64,
    samples: u32,
    /// Conservative slow start: the round trip that started it, and its remaining rounds.
    conservative: Option<(u64, u32)>,
}

impl HyStart {
    pub(super) const fn new() -> Self {
        Self {
            round_end: 0,
            last_round_min_ns: u64::MAX,
            this_round_min_ns: u64::MAX,
            samples: 0,
            conservative: None,
        }
    }

    /// L of RFC 9406 is infinite, because long paths are paced.
    pub(super) fn on_ack(&mut self, ack: &AckSample) -> Growth {
        if ack.una >= self.round_end {
            self.round_end = ack.nxt;
            self.last_round_min_ns = self.this_round_min_ns;
            self.this_round_min_ns = u64::MAX;
            self.samples = 0;
            if let Some((_, rounds_left)) = &mut self.conservative {
                *rounds_left -= 1;
                if *rounds_left == 0 {
                    return Growth::Leave;
                }
            }
        }
        if let Some(rtt_ns) = ack.rtt_ns {
            self.this_round_min_ns = self.this_round_min_ns.min(rtt_ns);
            self.samples = self.samples.saturating_add(1);
        }
        let enough = self.samples >= N_RTT_SAMPLE;
        match self.conservative {
            // "If [..] currentRoundMinRTT < cssBaselineMinRtt": the delay was jitter.
            Some((baseline_ns, _)) if enough && self.this_round_min_ns < baseline_ns => {
                self.conservative = None;
            }
            None if enough && self.last_round_min_ns != u64::MAX => {
                let thresh_ns = (self.last_round_min_ns / MIN_RTT_DIVISOR)
                    .clamp(MIN_RTT_THRESH_NS, MAX_RTT_THRESH_NS);
                if self.this_round_min_ns >= self.last_round_min_ns.saturating_add(thresh_ns) {
                    self.conservative = Some((self.this_round_min_ns, CSS_ROUNDS));
                }
            }
            _ => {}
        }
        let divisor = if self.conservative.is_some() { CSS_GROWTH_DIVISOR } else { 1 };
        Growth::Add(ack.acked_bytes / divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    /// Runs one round of ten acknowledgments with this round trip; returns the bytes added, or
    /// `None` at the end.
    fn round(hystart: &mut HyStart, at: &mut u64, rtt_ms: u64) -> Option<u64> {
        let mut added = 0;
        for _ in 0..10 {
            *at += 1000;
            let ack = AckSample {
                now: Instant::ZERO,
                acked_bytes: 1000,
                srtt_ns: None,
                rtt_ns: Some(rtt_ms * 1_000_000),
                cwnd_limited: true,
                marked: false,
                una: *at,
                nxt: *at + 10_000,
            };
            match hystart.on_ack(&ack) {
                Growth::Add(octets) => added += octets,
                Growth::Leave => return None,
            }
        }
        Some(added)
    }

    #[test]
    fn a_round_trip_that_grows_slows_growth_down_and_ends_it_after_five_rounds() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, &mut at, 20), Some(10_000));
        }
        // 4 ms above the last round: noticed at the eighth sample.
        let added = round(&mut hystart, &mut at, 24).unwrap();
        assert!((7000..10_000).contains(&added), "{added}");
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, &mut at, 25), Some(2500));
        }
        assert_eq!(round(&mut hystart, &mut at, 25), None);
    }

    /// RFC 9406 §4.3: an eighth of the round trip, between 4 and 16 ms.
    #[test]
    fn round_trip_threshold_is_sixteen_milliseconds_at_most() {
        for (rtt_ms, more_ms, slows) in [(200, 15, false), (200, 16, true), (80, 9, false)] {
            let (mut hystart, mut at) = (HyStart::new(), 0);
            for _ in 0..3 {
                round(&mut hystart, &mut at, rtt_ms);
            }
            let added = round(&mut hystart, &mut at, rtt_ms + more_ms).unwrap();
            assert_eq!(added < 10_000, slows, "{rtt_ms} and {more_ms} more");
        }
    }

    #[test]
    fn a_round_trip_that_falls_again_resumes_slow_start() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        for rtt_ms in [20, 20, 30] {
            round(&mut hystart, &mut at, rtt_ms);
        }
        round(&mut hystart, &mut at, 20);
        assert_eq!(round(&mut hystart, &mut at, 20), Some(10_000));
    }

    #[test]
    fn small_changes_of_a_short_round_trip_mean_nothing() {
        let (mut hystart, mut at) = (HyStart::new(), 0);
        for rtt_ms in [1, 2, 3, 4, 1, 4, 4] {
            assert_eq!(round(&mut hystart, &mut at, rtt_ms), Some(10_000));
        }
    }
}
