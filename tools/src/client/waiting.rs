//! How long a server may take for what it owes.

use std::time::Duration;

use urnic_engine::time::Instant;

/// Since when the server owes an answer, and what it has said about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// How long without any message.
    silence_max: Duration,
    /// How long without an answer, however often the server says that it works on one.
    work_max: Duration,
    since: Option<Instant>,
    told: Option<Instant>,
    stops: OwnStops,
}

/// Notices that this process was stopped: between two looks, much more time passed than it slept.
#[derive(Clone, Copy, Debug, Default)]
struct OwnStops {
    looked_at: Option<Instant>,
    longest: Duration,
}

impl OwnStops {
    /// Returns true if this process was stopped since the last look.
    #[inline]
    fn look(&mut self, now: Instant) -> bool {
        let before = self.looked_at.replace(now);
        let away = before.map_or(Duration::ZERO, |before| now - before);
        if away < OWN_STOP_MIN {
            return false;
        }
        self.longest = self.longest.max(away);
        true
    }
}

impl Waiting {
    /// Of a server that does not answer for `timeout`, and has a file of `file_len` octets to work on.
    pub(super) fn new(timeout: Duration, file_len: u64) -> Self {
        let work_max = timeout
            .saturating_mul(WORK_TIMEOUTS)
            .saturating_add(Duration::from_secs(file_len / WORK_BYTES_PER_SECOND));
        let stops = OwnStops::default();
        Self { silence_max: timeout, work_max, since: None, told: None, stops }
    }

    /// Returns true if this process was stopped since the last look.
    pub(super) fn was_stopped(&mut self, now: Instant) -> bool {
        self.stops.look(now)
    }

    /// For how long this process was stopped, if for longer than servers wait for a peer.
    pub(super) fn stopped_for(&self) -> Option<Duration> {
        Some(self.stops.longest).filter(|longest| *longest >= OWN_STOP_TOLD_MIN)
    }

    /// The server owes nothing, or has answered.
    #[inline]
    pub(super) const fn end(&mut self) {
        (self.since, self.told) = (None, None);
    }

    /// The server says that its answer takes longer.
    pub(super) const fn told(&mut self, now: Instant) {
        self.told = Some(now);
    }

    /// The server owes an answer `now`; for how long it has done so, when that is too long.
    #[inline]
    pub(super) fn is_over(&mut self, now: Instant) -> Option<Duration> {
        if self.stops.look(now) {
            // What the server sent meanwhile is still to be read: it has all the time once more.
            (self.since, self.told) = (self.since.map(|_| now), None);
        }
        let since = *self.since.get_or_insert(now);
        let silence = now - self.told.map_or(since, |told| told.max(since));
        let is_over = silence >= self.silence_max || now - since >= self.work_max;
        is_over.then_some(if silence >= self.silence_max { self.silence_max } else { now - since })
    }
}

/// A look that comes so late shows that this process was stopped: sleeps are much shorter.
const OWN_STOP_MIN: Duration = Duration::from_secs(1);
/// A stop that is worth telling when a connection was lost: a server gives a silent peer up after that.
const OWN_STOP_TOLD_MIN: Duration = Duration::from_secs(5);
/// How often the timeout passes at most while a server says that it works: on the queue of its disk.
const WORK_TIMEOUTS: u32 = 4;
/// Octets of a file that a server reads, or brings to its disk, in a second, at least.
const WORK_BYTES_PER_SECOND: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(1000 + ms)
    }

    /// Looks each 100 ms, as sleeps have it, up to `end`; when it was over.
    fn look_until(waiting: &mut Waiting, from: u64, end: u64) -> Option<u64> {
        (from..=end).step_by(100).find(|ms| waiting.is_over(at(*ms)).is_some())
    }

    #[test]
    fn a_server_that_says_nothing_has_the_timeout() {
        let mut waiting = Waiting::new(Duration::from_secs(3), 0);
        assert_eq!(look_until(&mut waiting, 0, 9000), Some(3000));
        assert_eq!(waiting.is_over(at(3001)), Some(Duration::from_secs(3)));
        waiting.end();
        assert_eq!(look_until(&mut waiting, 3100, 9000), Some(6100), "another answer is due");
    }

    #[test]
    fn the_time_in_which_this_process_was_stopped_is_not_the_servers() {
        let mut waiting = Waiting::new(Duration::from_secs(3), 0);
        assert_eq!(look_until(&mut waiting, 0, 2900), None);
        assert_eq!(waiting.stopped_for(), None);
        assert_eq!(look_until(&mut waiting, 32_900, 60_000), Some(35_900), "all of it once more");
        assert_eq!(waiting.stopped_for(), Some(Duration::from_secs(30)));
        let mut stops = OwnStops::default();
        assert!(!stops.look(at(0)) && !stops.look(at(999)), "a busy machine");
        assert!(stops.look(at(1999)) && !stops.look(at(2000)));
    }

    #[test]
    fn a_server_that_works_has_as_long_as_a_slow_disk() {
        let mut waiting = Waiting::new(Duration::from_secs(1), 3 << 20);
        for half_second in 0..14 {
            assert_eq!(waiting.is_over(at(half_second * 500)), None);
            waiting.told(at(half_second * 500));
        }
        assert_eq!(waiting.is_over(at(7000)), Some(Duration::from_secs(7)));
        let mut longest = Waiting::new(Duration::MAX, u64::MAX);
        assert_eq!(longest.is_over(at(0)), None);
    }
}
