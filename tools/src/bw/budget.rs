//! Limits the messages posted up to a time, by count and rate. With a rate, a message is posted
//! when the link could have carried it, the first after its own time: until a time `t` after the
//! start, at most `rate × t` bits are posted, for any `t`.

use std::time::Duration;

use urnic_engine::time::Instant;

/// Messages that may be posted, on all connections together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: u64,
    /// Picoseconds of a message on the link, rounded up, if there is a rate.
    message_ps: Option<u128>,
    started: Instant,
    /// Picoseconds from the start until the next message, if there is a rate.
    due_ps: u128,
    now: Instant,
}

impl Budget {
    /// Limits to `rate` bits per second.
    pub(super) fn new(count: Option<u64>, rate: Option<u64>, size: u32, now: Instant) -> Self {
        let message_ps = rate.map(|rate| message_ps(size, rate));
        let left = count.unwrap_or(u64::MAX);
        Self { left, message_ps, started: now, due_ps: message_ps.unwrap_or(0), now }
    }

    #[inline]
    pub(super) const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    #[inline]
    pub(super) const fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// `false` if no message may be posted now.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        if let Some(message_ps) = self.message_ps {
            let now_ps = (self.now - self.started).as_nanos() * PS_PER_NS;
            if now_ps < self.due_ps {
                return false;
            }
            // An end that was late catches up, but only by a moment.
            let missed_ps = (now_ps - self.due_ps).saturating_sub(BURST.as_nanos() * PS_PER_NS);
            self.due_ps += missed_ps + message_ps;
        }
        self.left -= 1;
        true
    }

    /// Delays no message.
    pub(super) fn pause(&self, longest: Duration) -> Duration {
        if self.message_ps.is_none() || self.left == 0 {
            return longest;
        }
        let now_ps = (self.now - self.started).as_nanos() * PS_PER_NS;
        let wait_ns = self.due_ps.saturating_sub(now_ps).div_ceil(PS_PER_NS);
        match u64::try_from(wait_ns) {
            Ok(0) | Err(_) => longest,
            Ok(ns) => Duration::from_nanos(ns).min(longest),
        }
    }
}

pub(super) fn message_time(size: u32, rate: u64) -> Duration {
    let ns = message_ps(size, rate).div_ceil(PS_PER_NS);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

fn message_ps(size: u32, rate: u64) -> u128 {
    (u128::from(size) * 8 * PS_PER_SECOND).div_ceil(u128::from(rate.max(1)))
}

const PS_PER_NS: u128 = 1000;
const PS_PER_SECOND: u128 = 1_000_000_000_000;
/// Longest time by which an end may catch up at once.
const BURST: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(1000 + ms)
    }

    #[test]
    fn message_count_is_kept_exactly() {
        let mut budget = Budget::new(Some(3), None, 64, at(0));
        assert_eq!((0..9).filter(|_| budget.take()).count(), 3);
        assert!(budget.is_spent());
    }

    #[test]
    fn rate_is_kept_and_a_short_backlog_is_made_up() {
        // 1000 bytes at 8 Mbit/s: a message in a millisecond.
        let mut budget = Budget::new(None, Some(8_000_000), 1000, at(0));
        let mut taken_at = |ms| {
            budget.set_time(at(ms));
            let taken = (0..999).filter(|_| budget.take()).count();
            (taken, budget.pause(Duration::from_secs(1)))
        };
        let ms = Duration::from_millis(1);
        assert_eq!(taken_at(0), (0, ms), "the first message takes its time, too");
        assert_eq!(taken_at(1), (1, ms));
        assert_eq!(taken_at(1), (0, ms));
        assert_eq!(taken_at(6), (5, ms));
        assert_eq!(taken_at(506), (21, ms), "20 ms of it");
    }

    #[test]
    fn the_slowest_rate_and_the_longest_message_do_not_overflow() {
        let mut budget = Budget::new(None, Some(1), u32::MAX, at(0));
        assert!(!budget.take());
        assert_eq!(budget.pause(Duration::from_secs(1)), Duration::from_secs(1));
        budget.set_time(Instant::from_nanos(u64::MAX));
        assert_eq!((budget.take(), budget.take()), (false, false), "1089 years");
        assert_eq!(message_time(64 << 10, 1000), Duration::from_millis(524_288));
        assert_eq!(message_time(1, 8_000_000_000), Duration::from_nanos(1));
        assert_eq!(message_time(1, u64::MAX), Duration::from_nanos(1), "rounded up");
    }

    proptest! {
        /// At any times of the turns: never more than the rate since the start, and the full rate
        /// while turns are close.
        #[test]
        fn a_rate_is_at_most_that_from_the_first_message_on(
            size in 1_u32..100_000,
            rate in 1_000_000_u64..200_000_000_000,
            pauses in prop::collection::vec(1_u64..40_000_000, 1..60),
        ) {
            let mut budget = Budget::new(None, Some(rate), size, at(0));
            let (mut elapsed, mut bits) = (0_u64, 0_u128);
            let (mut late, limit) = (0_u64, 40_000);
            for pause in pauses {
                elapsed += pause;
                late += pause.saturating_sub(20_000_000);
                budget.set_time(at(0) + Duration::from_nanos(elapsed));
                let mut taken = 0;
                while taken < limit && budget.take() {
                    taken += 1;
                    bits += u128::from(size) * 8;
                }
                prop_assert!(bits * 1_000_000_000 <= u128::from(rate) * u128::from(elapsed));
                if taken == limit {
                    return Ok(());
                }
            }
            // Missing parts: turns over 20 ms late, the message in flight, and rounding.
            let due = u128::from(rate) * u128::from(elapsed - late) / 1_000_000_000;
            let missing = due.saturating_sub(bits);
            prop_assert!(missing <= u128::from(size) * 16 + due / 500, "{missing} of {due} bits");
        }
    }
}
