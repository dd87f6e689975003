//! Whether a peer does anything, and how long it may do nothing.

use std::time::Duration;

use anyhow::ensure;
use urnic_engine::time::Instant;

/// What a peer was last seen to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// What its connection had counted.
    counted: u64,
    at: Instant,
    /// Whether something of it has completed since.
    heard: bool,
}

impl Activity {
    pub(super) const fn new(now: Instant) -> Self {
        Self { counted: 0, at: now, heard: false }
    }

    /// Something of the peer has completed.
    #[inline]
    pub(super) const fn hear(&mut self) {
        self.heard = true;
    }

    /// Looks whether the peer has done anything since the last look: by completions, because it
    /// `waits` for this end, or else by what its connection has `counted`. Whether it has.
    pub(super) fn look(
        &mut self,
        now: Instant,
        waits: bool,
        counted: impl FnOnce() -> Option<u64>,
    ) -> bool {
        let is_active = std::mem::take(&mut self.heard)
            || waits
            || counted()
                .is_some_and(|counted| std::mem::replace(&mut self.counted, counted) != counted);
        if is_active {
            self.at = now;
        }
        is_active
    }

    /// Gives up a peer that has done nothing for `idle_max`; when it would be given up.
    ///
    /// # Errors
    /// That it is.
    pub(super) fn check(&self, now: Instant, idle_max: Duration) -> anyhow::Result<Instant> {
        ensure!(now - self.at < idle_max, "nothing came for {idle_max:?}: given up");
        Ok(self.at + idle_max)
    }
}

/// How often peers are looked at, and how long one may do nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) idle_max: Duration,
}

impl Patience {
    /// From one look at a peer to the next.
    pub(super) fn interval(self) -> Duration {
        (self.idle_max / LOOKS).clamp(INTERVAL_MIN, INTERVAL_MAX)
    }

    /// How long a peer may do nothing, when one of its address was last active at `active_at`. With a
    /// thousand connections on a link that loses much, TCP may leave one out for longer than it takes
    /// to see that a peer is gone; the others show that it is not.
    pub(super) fn limit(self, now: Instant, active_at: Instant) -> Duration {
        if now - active_at < self.idle_max {
            self.idle_max.saturating_mul(WITH_OTHERS)
        } else {
            self.idle_max
        }
    }
}

/// Times `--timeout` that a peer may be silent while others of its address are not.
const WITH_OTHERS: u32 = 6;
/// Looks at a silent peer in the time of `--timeout`, within the bounds below.
const LOOKS: u32 = 8;
const INTERVAL_MIN: Duration = Duration::from_millis(50);
const INTERVAL_MAX: Duration = Duration::from_secs(1);

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
    fn a_peer_is_given_up_when_it_has_done_nothing_for_so_long() {
        let mut activity = Activity::new(at(100));
        let limit = Duration::from_secs(10);
        assert!(activity.look(at(101), false, || Some(7)), "it has sent");
        assert!(!activity.look(at(102), false, || Some(7)));
        assert!(!activity.look(at(103), false, || None), "its connection is over");
        assert_eq!(activity.check(at(110), limit).unwrap(), at(111));
        assert!(activity.check(at(111), limit).is_err());
        activity.hear();
        assert!(activity.look(at(104), false, || panic!("it is known by then")));
        assert!(activity.look(at(105), true, || panic!("it waits for this end")));
        assert_eq!(activity.check(at(106), limit).unwrap(), at(115));
        assert!(!activity.look(at(106), false, || Some(7)));
        assert!(activity.check(at(106), Duration::MAX).is_ok());
    }
}
