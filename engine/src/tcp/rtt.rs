//! Round-trip time and the retransmission timeout (RFC 6298).

use crate::time::{Duration, Instant};

/// RFC 6298 §5.7: the first timeout for data after the SYN was lost.
const AFTER_SYN_LOSS_NS: u64 = 3_000_000_000;
/// Clock granularity G of RFC 6298 §2: the delay that a poll loop may add.
const GRANULARITY_NS: u64 = 100_000;
/// Doublings after which the timeout no longer grows (it has reached its ceiling long before).
const BACKOFF_MAX: u32 = 24;

#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    srtt_ns: Option<u64>,
    rttvar_ns: u64,
    last_ns: u64,
    min: WindowedMin,
    /// Timeout without backoff.
    rto_ns: u64,
    rto_min_ns: u64,
    rto_max_ns: u64,
    backoff: u32,
}

impl RttEstimator {
    /// `rto_min` and `rto_max` bound the timeout; `rto_initial` holds until the first sample.
    pub(crate) fn new(rto_initial: Duration, rto_min: Duration, rto_max: Duration) -> Self {
        let rto_max_ns = nanos(rto_max);
        Self {
            srtt_ns: None,
            rttvar_ns: 0,
            last_ns: 0,
            min: WindowedMin::default(),
            rto_ns: nanos(rto_initial).min(rto_max_ns),
            rto_min_ns: nanos(rto_min).min(rto_max_ns),
            rto_max_ns,
            backoff: 0,
        }
    }

    /// Takes a sample that no retransmission makes ambiguous. This also ends the backoff (Karn).
    pub(crate) fn sample(&mut self, now: Instant, rtt_ns: u64) {
        let rtt_ns = rtt_ns.max(1);
        self.last_ns = rtt_ns;
        self.min.sample(now, rtt_ns);
        // RFC 6298 §2.2, §2.3: RTTVAR is updated with the old SRTT, then SRTT.
        // spec: TCP-6298-1
        let srtt_ns = match self.srtt_ns {
            None => {
                self.rttvar_ns = rtt_ns / 2;
                rtt_ns
            }
            Some(srtt_ns) => {
                let deviation = srtt_ns.abs_diff(rtt_ns);
                self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + deviation / 4;
                srtt_ns - srtt_ns / 8 + rtt_ns / 8
            }
        };
        self.srtt_ns = Some(srtt_ns);
        // RFC 6298 §2.3: SRTT + max (G, K*RTTVAR). The second term is at least the floor and SRTT:
        // on a steady path RTTVAR vanishes, and RACK and the tail loss probe need time.
        let margin_ns =
            self.rttvar_ns.saturating_mul(4).max(GRANULARITY_NS).max(self.rto_min_ns).max(srtt_ns);
        self.rto_ns = srtt_ns.saturating_add(margin_ns).min(self.rto_max_ns);
        self.backoff = 0;
    }

    pub(crate) fn rto_ns(&self) -> u64 {
        self.rto_ns.saturating_mul(1 << self.backoff).min(self.rto_max_ns)
    }

    /// "The host MUST set RTO <- RTO * 2 ("back off the timer")" (RFC 6298 §5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Starts data transmission after a SYN was retransmitted.
    // spec: TCP-6298-4
    pub(crate) fn after_syn_loss(&mut self) {
        // RFC 6298 §5.7: "the RTO MUST be re-initialized to 3 seconds when data transmission
        // begins", unless a higher initial value is configured.
        self.rto_ns = self.rto_ns.max(AFTER_SYN_LOSS_NS).min(self.rto_max_ns);
        self.backoff = 0;
    }

    pub(crate) const fn srtt_ns(&self) -> Option<u64> {
        self.srtt_ns
    }

    pub(crate) const fn last_ns(&self) -> u64 {
        self.last_ns
    }

    pub(crate) const fn variation_ns(&self) -> u64 {
        self.rttvar_ns
    }

    pub(crate) fn min_ns(&self) -> Option<u64> {
        let min_ns = self.min.value_ns();
        (min_ns != u64::MAX).then_some(min_ns)
    }
}

/// The smallest sample of the last minutes. RFC 8985 §6.2 step 1 prefers "a windowed min-filtered
/// value of recent RTT measurements" to a global minimum, which after a change of route does not
/// describe the path.
#[derive(Clone, Debug)]
struct WindowedMin {
    /// Smallest sample of this span, and of the one before it; `u64::MAX` without a sample.
    current_ns: u64,
    previous_ns: u64,
    since: Instant,
}

/// A minimum is valid for one to two spans, at most five minutes.
const MIN_SPAN_NS: u64 = 150_000_000_000;

impl Default for WindowedMin {
    fn default() -> Self {
        Self { current_ns: u64::MAX, previous_ns: u64::MAX, since: Instant::ZERO }
    }
}

impl WindowedMin {
    fn sample(&mut self, now: Instant, value_ns: u64) {
        let age_ns = now.nanos_since(self.since);
        if age_ns >= MIN_SPAN_NS {
            let is_recent = age_ns < 2 * MIN_SPAN_NS;
            self.previous_ns = if is_recent { self.current_ns } else { u64::MAX };
            self.current_ns = u64::MAX;
            self.since = now;
        }
        self.current_ns = self.current_ns.min(value_ns);
    }

    fn value_ns(&self) -> u64 {
        self.current_ns.min(self.previous_ns)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn estimator() -> RttEstimator {
        let ms = Duration::from_millis;
        RttEstimator::new(ms(1000), ms(10), ms(60_000))
    }

    // spec: TCP-6298-1
    #[test]
    fn the_first_sample_sets_the_timeout_to_three_times_itself() {
        let mut rtt = estimator();
        assert_eq!(rtt.rto_ns(), 1000 * MS);
        rtt.sample(Instant::ZERO, 100 * MS);
        assert_eq!(rtt.srtt_ns(), Some(100 * MS));
        assert_eq!(rtt.rto_ns(), 300 * MS);
    }

    // spec: TCP-6298-1
    #[test]
    fn variation_is_updated_before_the_mean() {
        let mut rtt = estimator();
        rtt.sample(Instant::ZERO, 80 * MS);
        rtt.sample(Instant::ZERO, 160 * MS);
        // RTTVAR = 3/4·40 + 1/4·|80−160| = 50; SRTT = 7/8·80 + 1/8·160 = 90.
        assert_eq!(rtt.srtt_ns(), Some(90 * MS));
        assert_eq!(rtt.rto_ns(), 290 * MS);
    }

    // spec: TCP-6298-2
    #[test]
    fn the_timeout_keeps_its_floor_and_its_ceiling() {
        let mut rtt = estimator();
        for _ in 0..50 {
            rtt.sample(Instant::ZERO, 20_000);
        }
        assert_eq!(rtt.rto_ns(), 10 * MS + 20_000);
        rtt.sample(Instant::ZERO, u64::MAX / 2);
        assert_eq!(rtt.rto_ns(), 60_000 * MS);
    }

    #[test]
    fn the_timeout_is_two_round_trips_at_least() {
        let mut rtt = estimator();
        for _ in 0..50 {
            rtt.sample(Instant::ZERO, 100 * MS);
        }
        assert_eq!(rtt.rto_ns(), 200 * MS);
    }

    // spec: TCP-6298-4
    #[test]
    fn backoff_doubles_up_to_the_ceiling_and_ends_with_a_sample() {
        let mut rtt = estimator();
        rtt.back_off();
        assert_eq!(rtt.rto_ns(), 2000 * MS);
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto_ns(), 60_000 * MS);
        rtt.sample(Instant::ZERO, 100 * MS);
        assert_eq!(rtt.rto_ns(), 300 * MS);
    }

    /// RFC 8985 §6.2 step 1.
    #[test]
    fn the_minimum_is_that_of_the_last_minutes() {
        let mut rtt = estimator();
        assert_eq!(rtt.min_ns(), None);
        let mut at = |seconds: u64, rtt_ms: u64| {
            let now = Instant::from_nanos((5000 + seconds) * 1000 * MS);
            rtt.sample(now, rtt_ms * MS);
            rtt.min_ns().unwrap() / MS
        };
        assert_eq!([at(0, 3), at(1, 1), at(2, 5), at(149, 5)], [3, 1, 1, 1]);
        assert_eq!([at(150, 5), at(299, 4)], [1, 1], "at least a span");
        assert_eq!([at(300, 7), at(449, 8)], [4, 4], "at most two");
        assert_eq!(at(449 + 301, 9), 9, "nothing is left of it after a long pause");
    }

    // spec: TCP-6298-4
    #[test]
    fn data_after_a_lost_syn_starts_with_three_seconds() {
        let mut rtt = estimator();
        rtt.back_off();
        rtt.after_syn_loss();
        assert_eq!(rtt.rto_ns(), 3000 * MS);
    }
}
