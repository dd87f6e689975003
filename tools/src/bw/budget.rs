//! How many messages may be posted by now: as many as were asked for, and no faster.

use std::time::Duration;

use urnic_engine::time::Instant;

/// What may be posted, on all connections together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: u64,
    /// With a rate: nanoseconds of a message on the link.
    message_ns: Option<u64>,
    /// With a rate: when the next message may go.
    due: Instant,
    now: Instant,
}

impl Budget {
    /// `count` messages of `size` octets, at `rate` bits per second.
    pub(super) fn new(count: Option<u64>, rate: Option<u64>, size: u32, now: Instant) -> Self {
        let message_ns = rate.map(|rate| {
            let ns = u128::from(size) * 8 * 1_000_000_000 / u128::from(rate.max(1));
            u64::try_from(ns).unwrap_or(u64::MAX)
        });
        Self { left: count.unwrap_or(u64::MAX), message_ns, due: now, now }
    }

    /// It is `now`.
    #[inline]
    pub(super) const fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Whether no message is left.
    #[inline]
    pub(super) const fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Takes a message, if there is one for now.
    #[inline]
    pub(super) fn take(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        if let Some(ns) = self.message_ns {
            if self.now < self.due {
                return false;
            }
            // An end that was late makes good what it has missed, but for more than a moment.
            let missed = (self.now - self.due).saturating_sub(BURST);
            self.due = self.due + missed + Duration::from_nanos(ns.min(LONGEST_NS));
        }
        self.left -= 1;
        true
    }

    /// How long to sleep at most.
    pub(super) fn pause(&self, longest: Duration) -> Duration {
        if self.message_ns.is_none() || self.left == 0 {
            return longest;
        }
        if self.now < self.due { (self.due - self.now).min(longest) } else { longest }
    }
}

/// How much of a rate may be made good at once.
const BURST: Duration = Duration::from_millis(20);
/// A hundred years: a message that takes longer is the last one.
const LONGEST_NS: u64 = 100 * 365 * 86_400 * 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(1000 + ms)
    }

    #[test]
    fn a_count_is_kept_to_the_message() {
        let mut budget = Budget::new(Some(3), None, 64, at(0));
        assert_eq!((0..9).filter(|_| budget.take()).count(), 3);
        assert!(budget.is_spent());
    }

    #[test]
    fn a_rate_is_kept_and_what_was_missed_is_made_good_for_a_moment() {
        // 1000 octets at 8 Mbit/s: a message in a millisecond.
        let mut budget = Budget::new(None, Some(8_000_000), 1000, at(0));
        let mut taken_at = |ms| {
            budget.set_time(at(ms));
            let taken = (0..999).filter(|_| budget.take()).count();
            (taken, budget.pause(Duration::from_secs(1)))
        };
        let ms = Duration::from_millis(1);
        assert_eq!(taken_at(0), (1, ms));
        assert_eq!(taken_at(0), (0, ms));
        assert_eq!(taken_at(5), (5, ms));
        assert_eq!(taken_at(505), (21, ms), "20 ms of it");
    }

    #[test]
    fn the_slowest_rate_and_the_longest_message_do_not_overflow() {
        let mut budget = Budget::new(None, Some(1), u32::MAX, at(0));
        assert!(budget.take() && !budget.take());
        assert_eq!(budget.pause(Duration::from_secs(1)), Duration::from_secs(1));
    }
}
