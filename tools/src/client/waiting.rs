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
}

impl Waiting {
    /// Of a server that does not answer for `timeout`, and has a file of `file_len` octets to work on.
    pub(super) fn new(timeout: Duration, file_len: u64) -> Self {
        let work_max = timeout
            .saturating_mul(WORK_TIMEOUTS)
            .saturating_add(Duration::from_secs(file_len / WORK_BYTES_PER_SECOND));
        Self { silence_max: timeout, work_max, since: None, told: None }
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
        let since = *self.since.get_or_insert(now);
        let silence = now - self.told.map_or(since, |told| told.max(since));
        let is_over = silence >= self.silence_max || now - since >= self.work_max;
        is_over.then_some(if silence >= self.silence_max { self.silence_max } else { now - since })
    }
}

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

    #[test]
    fn a_server_that_says_nothing_has_the_timeout() {
        let mut waiting = Waiting::new(Duration::from_secs(1), 0);
        assert_eq!(waiting.is_over(at(0)), None);
        assert_eq!(waiting.is_over(at(999)), None);
        assert_eq!(waiting.is_over(at(1000)), Some(Duration::from_secs(1)));
        waiting.end();
        assert_eq!(waiting.is_over(at(5000)), None, "another answer is due");
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
