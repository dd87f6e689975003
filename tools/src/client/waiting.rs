//! Timeouts for answers of a server.

use std::time::Duration;

use urnic_engine::time::Instant;

/// `since` is the time of the question, `told` that of the server's last report that it works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    silence_max: Duration,
    /// Longest time without an answer, even if the server reports that it works.
    work_max: Duration,
    since: Option<Instant>,
    told: Option<Instant>,
    peer_max: Duration,
    stops: OwnStops,
}

/// Detects stops: between two checks, much more time passes than the process slept.
#[derive(Clone, Copy, Debug, Default)]
struct OwnStops {
    looked_at: Option<Instant>,
    /// Longest recent stop, and the time when the last one ended.
    longest: Duration,
    ended_at: Option<Instant>,
}

impl OwnStops {
    #[inline]
    fn look(&mut self, now: Instant) -> bool {
        let before = self.looked_at.replace(now);
        let away = before.map_or(Duration::ZERO, |before| now - before);
        if away < OWN_STOP_MIN {
            return false;
        }
        self.longest = self.of_late(now).unwrap_or_default().max(away);
        self.ended_at = Some(now);
        true
    }

    /// Time for which this process was stopped, if recent enough to be the cause of a failure.
    fn of_late(&self, now: Instant) -> Option<Duration> {
        self.ended_at.filter(|at| now - *at < OWN_STOP_CAUSE_MAX).map(|_| self.longest)
    }
}

impl Waiting {
    /// The server has `timeout` for an answer, processes `file_len` bytes, waits `peer_max` for a
    /// peer.
    pub(super) fn new(timeout: Duration, file_len: u64, peer_max: Duration) -> Self {
        let work_max = timeout
            .saturating_mul(WORK_TIMEOUTS)
            .saturating_add(Duration::from_secs(file_len / WORK_BYTES_PER_SECOND));
        let stops = OwnStops::default();
        Self { silence_max: timeout, work_max, since: None, told: None, peer_max, stops }
    }

    pub(super) fn was_stopped(&mut self, now: Instant) -> bool {
        self.stops.look(now)
    }

    /// Time for which this process was stopped, if longer than the server waits for a peer.
    pub(super) fn stopped_for(&self, now: Instant) -> Option<Duration> {
        self.stops.of_late(now).filter(|longest| *longest >= self.peer_max)
    }

    /// Call when the server owes nothing, or has answered.
    #[inline]
    pub(super) const fn end(&mut self) {
        (self.since, self.told) = (None, None);
    }

    pub(super) const fn told(&mut self, now: Instant) {
        self.told = Some(now);
    }

    /// Call while the server owes an answer. Returns the time since the question if it is too long.
    #[inline]
    pub(super) fn is_over(&mut self, now: Instant) -> Option<Duration> {
        if self.stops.look(now) {
            // Messages of the server that came meanwhile must still be read.
            (self.since, self.told) = (self.since.map(|_| now), None);
        }
        let since = *self.since.get_or_insert(now);
        let silence = now - self.told.map_or(since, |told| told.max(since));
        let is_over = silence >= self.silence_max || now - since >= self.work_max;
        is_over.then_some(if silence >= self.silence_max { self.silence_max } else { now - since })
    }
}

/// Sleeps are much shorter.
const OWN_STOP_MIN: Duration = Duration::from_secs(1);
const OWN_STOP_CAUSE_MAX: Duration = Duration::from_secs(10);
/// Multiple of the timeout for a server whose disk has a queue.
const WORK_TIMEOUTS: u32 = 4;
/// Least rate of a server's disk.
const WORK_BYTES_PER_SECOND: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(1000 + ms)
    }

    /// A server that waits 5 s for a peer.
    fn waiting(timeout: u64, file_len: u64) -> Waiting {
        Waiting::new(Duration::from_secs(timeout), file_len, Duration::from_secs(5))
    }

    /// Checks every 100 ms, like sleeping loops, up to `end`; returns the time of the timeout.
    fn look_until(waiting: &mut Waiting, from: u64, end: u64) -> Option<u64> {
        (from..=end).step_by(100).find(|ms| waiting.is_over(at(*ms)).is_some())
    }

    #[test]
    fn a_server_that_says_nothing_has_the_timeout() {
        let mut waiting = waiting(3, 0);
        assert_eq!(look_until(&mut waiting, 0, 9000), Some(3000));
        assert_eq!(waiting.is_over(at(3001)), Some(Duration::from_secs(3)));
        waiting.end();
        assert_eq!(look_until(&mut waiting, 3100, 9000), Some(6100), "another answer is due");
    }

    #[test]
    fn time_while_this_process_was_stopped_is_not_counted() {
        let mut waiting = waiting(3, 0);
        assert_eq!(look_until(&mut waiting, 0, 2900), None);
        assert_eq!(waiting.stopped_for(at(2900)), None);
        assert_eq!(look_until(&mut waiting, 32_900, 60_000), Some(35_900), "all of it once more");
        assert_eq!(waiting.stopped_for(at(35_900)), Some(Duration::from_secs(30)));
        let mut stops = OwnStops::default();
        assert!(!stops.look(at(0)) && !stops.look(at(999)), "a busy machine");
        assert!(stops.look(at(1999)) && !stops.look(at(2000)));
    }

    #[test]
    fn own_stop_is_blamed_only_if_it_was_recent_and_long() {
        let mut waiting = waiting(3, 0);
        let mut looked = |from: u64, to: u64| {
            waiting.was_stopped(at(from));
            waiting.was_stopped(at(to));
            waiting.stopped_for(at(to))
        };
        assert_eq!(looked(0, 4999), None, "the server waits 5 s");
        assert_eq!(looked(5000, 10_000), Some(Duration::from_secs(5)), "as long as it waits");
        assert_eq!(looked(10_001, 16_001), Some(Duration::from_secs(6)));
        assert_eq!(looked(16_100, 17_100), Some(Duration::from_secs(6)), "a short one after it");
        assert_eq!(waiting.stopped_for(at(27_099)), Some(Duration::from_secs(6)));
        assert_eq!(waiting.stopped_for(at(27_100)), None, "it has gone well since");
        waiting.was_stopped(at(27_200));
        assert_eq!(waiting.stopped_for(at(27_200)), Some(Duration::from_millis(10_100)));
    }

    #[test]
    fn a_server_that_works_has_as_long_as_a_slow_disk() {
        let mut waiting = waiting(1, 3 << 20);
        for half_second in 0..14 {
            assert_eq!(waiting.is_over(at(half_second * 500)), None);
            waiting.told(at(half_second * 500));
        }
        assert_eq!(waiting.is_over(at(7000)), Some(Duration::from_secs(7)));
        let mut longest = Waiting::new(Duration::MAX, u64::MAX, Duration::MAX);
        assert_eq!(longest.is_over(at(0)), None);
    }
}
