//! Activity of a peer, and the time for which it may be inactive.

use std::time::Duration;

use anyhow::ensure;
use urnic_engine::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// Last sum of the connection's counters.
    counted: u64,
    at: Instant,
    has_completed: bool,
    /// Most payload FPDUs that have crossed, and the time when that last grew.
    payload: u64,
    payload_at: Instant,
    payload_due: Instant,
    /// Set if the peer has asked for work since the last check for payload.
    has_requested: bool,
}

impl Activity {
    pub(super) const fn new(now: Instant) -> Self {
        let (payload_at, payload_due) = (now, now);
        let (has_completed, has_requested) = (false, false);
        Self {
            counted: 0,
            at: now,
            has_completed,
            payload: 0,
            payload_at,
            payload_due,
            has_requested,
        }
    }

    pub(super) const fn payload_at(&self) -> Instant {
        self.payload_at
    }

    /// Adds the `time` for which this process was stopped.
    pub(super) fn excuse(&mut self, time: Duration) {
        self.at = self.at + time;
    }

    /// Counts a request for work, such as the check of a chunk, as payload.
    pub(super) const fn ask(&mut self) {
        self.has_requested = true;
    }

    /// Records `now` if payload has crossed, work was requested, or the peer `waits` for this end.
    pub(super) fn see_payload(
        &mut self,
        now: Instant,
        waits: bool,
        payload: impl FnOnce() -> Option<u64>,
    ) {
        let payload = payload().unwrap_or(0);
        if std::mem::take(&mut self.has_requested) || waits || payload > self.payload {
            (self.payload, self.payload_at) = (payload.max(self.payload), now);
        }
    }

    /// Checks periodically [for payload](Self::see_payload): fails after [`quiet_max`], since
    /// keep-alives alone do not keep a session open for ever.
    pub(super) fn look_for_payload(
        &mut self,
        now: Instant,
        quiet_max: Duration,
        waits: bool,
        payload: impl FnOnce() -> Option<u64>,
    ) -> anyhow::Result<()> {
        if now < self.payload_due {
            return Ok(());
        }
        self.payload_due = now + QUIET_MAX / QUIET_LOOKS;
        self.see_payload(now, waits, payload);
        ensure!(now - self.payload_at < quiet_max, "no payload came for {quiet_max:?}: given up");
        Ok(())
    }

    #[inline]
    pub(super) const fn note_completion(&mut self) {
        self.has_completed = true;
    }

    /// Returns true if the peer was active: by completions, because it `waits` for this end, or by
    /// what its connection has `counted`.
    pub(super) fn look(
        &mut self,
        now: Instant,
        waits: bool,
        counted: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let is_active = std::mem::take(&mut self.has_completed)
            || waits
            || counted()
                .is_some_and(|counted| std::mem::replace(&mut self.counted, counted) != counted);
        if is_active {
            self.at = now;
        }
        is_active
    }

    /// Returns the time at which the peer will time out. Fails if it was inactive for `idle_max`.
    pub(super) fn check(&self, now: Instant, idle_max: Duration) -> anyhow::Result<Instant> {
        ensure!(now - self.at < idle_max, "nothing came for {idle_max:?}: given up");
        Ok(self.at + idle_max)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) idle_max: Duration,
}

impl Patience {
    pub(super) fn interval(self) -> Duration {
        (self.idle_max / LOOKS).clamp(INTERVAL_MIN, INTERVAL_MAX)
    }

    /// Time for which a peer may be inactive, if a peer of its address was active at `active_at`.
    /// With a thousand connections on a link with heavy loss, TCP may starve one of them for longer
    /// than the timeout; the others show that the peer is alive.
    pub(super) fn limit(self, now: Instant, active_at: Instant) -> Duration {
        if now - active_at < self.idle_max {
            self.idle_max.saturating_mul(WITH_OTHERS)
        } else {
            self.idle_max
        }
    }
}

/// Longest time without payload of a peer that may be hashing `file_len` bytes.
pub(super) const fn quiet_max(file_len: u64) -> Duration {
    QUIET_MAX.saturating_add(Duration::from_secs(file_len / HASHED_BYTES_PER_SECOND))
}

/// Multiple of `--timeout` for which a peer may be silent while others of its address are active.
const WITH_OTHERS: u32 = 6;
/// Checks of a silent peer in the time of `--timeout`, within the bounds below.
const LOOKS: u32 = 8;
const INTERVAL_MIN: Duration = Duration::from_millis(50);
const INTERVAL_MAX: Duration = Duration::from_secs(1);
/// Bytes of a file that a peer reads and hashes in a second, at least.
const HASHED_BYTES_PER_SECOND: u64 = 1 << 20;
/// Limit without a file: each session holds a place that others want.
const QUIET_MAX: Duration = Duration::from_secs(3600);
/// Checks for payload in that time.
const QUIET_LOOKS: u32 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_silent_peer_has_more_time_while_others_of_its_address_are_active() {
        let patience = |seconds| Patience { idle_max: Duration::from_secs(seconds) };
        let limit = |before: u64| patience(10).limit(at(100), at(100 - before));
        assert_eq!(limit(9), Duration::from_secs(10) * WITH_OTHERS);
        assert_eq!(limit(10), Duration::from_secs(10));
        let forever = Patience { idle_max: Duration::MAX };
        assert_eq!(forever.limit(at(100), at(100)), Duration::MAX);
        assert_eq!(forever.interval(), INTERVAL_MAX);
        assert_eq!(patience(0).interval(), INTERVAL_MIN);
        assert_eq!(patience(4).interval(), Duration::from_millis(500));
    }

    #[test]
    fn a_session_without_payload_ends_whatever_else_its_peer_does() {
        let minute = QUIET_MAX.as_secs() / u64::from(QUIET_LOOKS);
        let mut activity = Activity::new(at(0));
        let mut look = |minutes: u64, waits, payload| {
            activity
                .look_for_payload(at(minutes * minute), QUIET_MAX, waits, || Some(payload))
                .is_ok()
        };
        assert!(look(0, false, 1), "the first FPDU");
        assert!(look(30, false, 2) && look(89, false, 2));
        assert!(!look(90, false, 2), "an hour after the last");
        assert!(look(91, true, 2), "the peer waits for this end");
        // Counts that fall and rise again are no new payload.
        assert!(look(120, false, 1) && look(150, false, 2) && !look(151, false, 2));
        let mut activity = Activity::new(at(0));
        activity.look_for_payload(at(0), QUIET_MAX, false, || None).unwrap();
        activity.look_for_payload(at(1), QUIET_MAX, false, || panic!("too soon")).unwrap();
        assert_eq!(activity.payload_at(), at(0));
    }

    #[test]
    fn a_peer_that_asks_or_hashes_a_file_is_not_quiet() {
        let mut activity = Activity::new(at(0));
        let mut look = |seconds, asks, len| {
            if asks {
                activity.ask();
            }
            activity.look_for_payload(at(seconds), quiet_max(len), false, || Some(0)).is_ok()
        };
        let hour = QUIET_MAX.as_secs();
        assert!(look(hour - 1, true, 0), "the check of a chunk");
        assert!(look(2 * hour - 2, false, 0) && !look(2 * hour + 60, false, 0));
        assert!(look(2 * hour + 120, false, 1000 << 20), "a file of 1000 MiB");
        assert!(!look(2 * hour + 999, false, 1000 << 20));
        assert!(quiet_max(u64::MAX) > QUIET_MAX);
    }

    #[test]
    fn the_time_in_which_this_end_was_stopped_does_not_count() {
        let mut activity = Activity::new(at(100));
        let limit = Duration::from_secs(10);
        activity.excuse(Duration::from_secs(30));
        assert_eq!(activity.check(at(139), limit).unwrap(), at(140));
        assert!(activity.check(at(140), limit).is_err());
    }

    #[test]
    fn a_peer_is_given_up_when_it_has_done_nothing_for_so_long() {
        let mut activity = Activity::new(at(100));
        let limit = Duration::from_secs(10);
        assert!(activity.look(at(101), false, || Some(7)), "it has sent");
        assert!(!activity.look(at(102), false, || Some(7)));
        assert!(!activity.look(at(103), false, || None), "its connection is over");
        assert_eq!(activity.check(at(110), limit).unwrap(), at(111));
        assert!(activity.check(at(111), limit).is_err());
        activity.note_completion();
        assert!(activity.look(at(104), false, || panic!("it is known by then")));
        assert!(activity.look(at(105), true, || panic!("it waits for this end")));
        assert_eq!(activity.check(at(106), limit).unwrap(), at(115));
        assert!(!activity.look(at(106), false, || Some(7)));
        assert!(activity.check(at(106), Duration::MAX).is_ok());
    }
}
