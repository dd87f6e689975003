//! Detects applications that wait for a peer's Write by polling their memory.
//!
//! Such an application posts a Write, takes its completion, and then polls memory without calling
//! this library. It occupies the core that the endpoint's thread would need to deliver the Write.
//! So the call that takes the completion *stays*: it runs the endpoint until the peer's Write has
//! arrived, or until a time limit.
//!
//! - A *sign* for such an application: on one queue pair it posts one request, takes the
//!   completion, and the peer writes exactly once before it posts again.
//! - After one sign, calls stay. A stay is useful if the peer's Write arrives during it.
//! - After [`MISSES_MAX`] useless stays in a row, calls stop staying until there are signs again:
//!   twice as many as before, up to [`SIGNS_MAX`]. One useful stay sets the number back to one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use urnic_engine::time::{Duration, Instant};

/// Limit of a stay in which no segment of a Write arrives. A round trip of a small message on one
/// host takes a tenth of this time.
const QUIET_MAX: Duration = Duration::from_micros(100);

/// Limit of a stay. A Write of 8 MiB takes a fifth of this time on one host.
const STAY_MAX: Duration = Duration::from_millis(10);

const MISSES_MAX: u32 = 4;

const SIGNS_MAX: u32 = 1024;

/// Observations of one queue. Threads may overwrite each other's, which costs only speed.
#[derive(Debug)]
pub(super) struct MemoryWait {
    poster: AtomicU32,
    /// Number of the peer's Writes to that queue pair at that post.
    at_post: AtomicU64,
    posts: AtomicU32,
    /// Number of the peer's Writes when a call that took a completion last returned.
    at_take: AtomicU64,
    signs: AtomicU32,
    signs_wanted: AtomicU32,
    /// Number of useless stays in a row that are still allowed. Calls stay while it is not 0.
    stays: AtomicU32,
}

impl MemoryWait {
    pub(super) const fn new() -> Self {
        Self {
            poster: AtomicU32::new(0),
            at_post: AtomicU64::new(0),
            posts: AtomicU32::new(0),
            at_take: AtomicU64::new(u64::MAX),
            signs: AtomicU32::new(0),
            signs_wanted: AtomicU32::new(1),
            stays: AtomicU32::new(0),
        }
    }

    /// `writes` is the number of the peer's Writes so far.
    pub(super) fn posted(&self, number: u32, writes: u64) {
        let posts = self.posts.load(Ordering::Relaxed).saturating_add(1);
        self.posts.store(posts, Ordering::Relaxed);
        let is_same = self.poster.load(Ordering::Relaxed) == number;
        self.poster.store(number, Ordering::Relaxed);
        self.at_post.store(writes, Ordering::Relaxed);
        // A sign: one Write arrived between the last take and this first post after it.
        if is_same && posts == 1 && writes == self.at_take.load(Ordering::Relaxed).wrapping_add(1) {
            self.sign();
        }
    }

    fn sign(&self) {
        if self.stays.load(Ordering::Relaxed) > 0 {
            return;
        }
        let signs = self.signs.load(Ordering::Relaxed) + 1;
        if signs < self.signs_wanted.load(Ordering::Relaxed) {
            self.signs.store(signs, Ordering::Relaxed);
        } else {
            self.signs.store(0, Ordering::Relaxed);
            self.stays.store(MISSES_MAX, Ordering::Relaxed);
        }
    }

    /// Returns the queue pair's number if there was exactly one post since the last completion.
    pub(super) fn takes_one(&self) -> Option<u32> {
        let posts = self.posts.load(Ordering::Relaxed);
        self.posts.store(0, Ordering::Relaxed);
        (posts == 1).then(|| self.poster.load(Ordering::Relaxed))
    }

    /// `Some` if the call should stay: the number of the peer's Writes at the last post.
    pub(super) fn stays(&self) -> Option<u64> {
        let stays = self.stays.load(Ordering::Relaxed) > 0;
        stays.then(|| self.at_post.load(Ordering::Relaxed))
    }

    /// `has_come` is true if the peer's Write arrived.
    pub(super) fn stayed(&self, has_come: bool) {
        if has_come {
            self.stays.store(MISSES_MAX, Ordering::Relaxed);
            self.signs_wanted.store(1, Ordering::Relaxed);
            return;
        }
        let stays = self.stays.load(Ordering::Relaxed).saturating_sub(1);
        self.stays.store(stays, Ordering::Relaxed);
        if stays == 0 {
            let wanted = self.signs_wanted.load(Ordering::Relaxed) * 2;
            self.signs_wanted.store(wanted.min(SIGNS_MAX), Ordering::Relaxed);
        }
    }

    pub(super) fn goes_on(&self, writes: u64) {
        self.at_take.store(writes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Stay {
    segments: u64,
    quiet_until: Instant,
    until: Instant,
}

impl Stay {
    pub(super) fn new(now: Instant, segments: u64) -> Self {
        Self { segments, quiet_until: now + QUIET_MAX, until: now + STAY_MAX }
    }

    /// `segments` is the number of Write segments that have arrived so far.
    pub(super) fn is_over(&mut self, now: Instant, segments: u64) -> bool {
        if segments != self.segments {
            self.segments = segments;
            self.quiet_until = now + QUIET_MAX;
        }
        now >= self.quiet_until || now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_wait_lasts_while_writes_arrive_and_is_limited() {
        let start = Instant::ZERO + Duration::from_secs(1);
        let mut stay = Stay::new(start, 7);
        assert!(!stay.is_over(start + Duration::from_micros(99), 7));
        assert!(stay.is_over(start + Duration::from_micros(100), 7));

        let mut stay = Stay::new(start, 7);
        let mut segments = 7;
        for turn in 1..=110 {
            segments += 1;
            let now = start + Duration::from_micros(90) * turn;
            assert!(!stay.is_over(now, segments), "{turn}");
        }
        assert!(stay.is_over(start + Duration::from_micros(9_900 + 100), segments + 1));
    }

    /// One post, its completion, and the peer's Write behind it. Returns `Some` if the call stays.
    fn round(wait: &MemoryWait, writes: u64) -> Option<u64> {
        wait.posted(7, writes);
        assert_eq!(wait.takes_one(), Some(7));
        let stays = wait.stays();
        wait.goes_on(writes);
        stays
    }

    #[test]
    fn memory_wait_starts_after_a_write_arrived_without_one() {
        let wait = MemoryWait::new();
        assert_eq!(round(&wait, 5), None);
        assert_eq!(round(&wait, 6), Some(6));
    }

    #[test]
    fn applications_that_do_not_poll_memory_are_not_delayed() {
        let wait = MemoryWait::new();
        for turn in 0..100 {
            // The peer writes nothing or several times, or the application posts more than one
            // request.
            assert_eq!(round(&wait, 5), None);
            wait.goes_on(5);
            wait.posted(7, 7 + turn);
            wait.posted(7, 8 + turn);
            assert_eq!(wait.takes_one(), None);
            wait.goes_on(5);
        }
        // Another queue pair.
        wait.goes_on(5);
        wait.posted(8, 6);
        assert_eq!(wait.stays(), None);
    }

    #[test]
    fn memory_wait_backs_off_while_it_does_not_pay() {
        let wait = MemoryWait::new();
        let mut stayed = 0;
        for writes in 0..100_000 {
            if round(&wait, writes).is_some() {
                stayed += 1;
                wait.stayed(false);
            }
        }
        assert!((30..=1000).contains(&stayed), "{stayed}");
        // It pays again.
        let mut writes = 100_000;
        while round(&wait, writes).is_none() {
            writes += 1;
            assert!(writes < 100_000 + 2 * u64::from(SIGNS_MAX));
        }
        wait.stayed(true);
        for _ in 1..MISSES_MAX {
            wait.stayed(false);
            assert!(wait.stays().is_some());
        }
    }
}
