//! Programs that wait by looking at their memory: they post a Write, take its completion, and then look
//! until the peer's Write has come, without a call. The endpoint's thread would have to bring it, on a
//! core that such programs do not leave. So the call that takes the completion stays a while, and
//! brings the peer's Write itself: if it was seen that this is what the program waits for, and as long
//! as it pays.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use urnic_engine::time::{Duration, Instant};

/// How long a call stays while nothing of a Write comes. A round trip of a small message on one host
/// takes a tenth of it.
const QUIET_MAX: Duration = Duration::from_micros(100);

/// How long it stays at most. A Write of 8 MiB takes a fifth of it on one host.
const STAY_MAX: Duration = Duration::from_millis(10);

/// How often in a row it stays for nothing before it waits for new signs.
const MISSES_MAX: u32 = 4;

/// How many signs it takes to stay again, at most. It is doubled each time that they misled.
const SIGNS_MAX: u32 = 1024;

/// What is known of the program. Threads that post and poll at the same time may lose some of it: it
/// is about speed only.
#[derive(Debug)]
pub(super) struct MemoryWait {
    /// The queue pair that was posted to last, and how many Writes of its peer had come by then.
    poster: AtomicU32,
    at_post: AtomicU64,
    /// Posts since a completion was there to be taken.
    posts: AtomicU32,
    /// Writes of the peer when that was taken.
    at_take: AtomicU64,
    signs: AtomicU32,
    signs_wanted: AtomicU32,
    /// How often calls will still stay for nothing.
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

    /// A call has posted to a queue pair whose peer has written so often.
    pub(super) fn posted(&self, number: u32, writes: u64) {
        let posts = self.posts.load(Ordering::Relaxed).saturating_add(1);
        self.posts.store(posts, Ordering::Relaxed);
        let is_same = self.poster.load(Ordering::Relaxed) == number;
        self.poster.store(number, Ordering::Relaxed);
        self.at_post.store(writes, Ordering::Relaxed);
        // The peer's Write came while the program made no call.
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

    /// The program takes the completion of one post to this queue pair, and has posted no other.
    pub(super) fn takes_one(&self) -> Option<u32> {
        let posts = self.posts.load(Ordering::Relaxed);
        self.posts.store(0, Ordering::Relaxed);
        (posts == 1).then(|| self.poster.load(Ordering::Relaxed))
    }

    /// Whether to stay until there are more Writes than this.
    pub(super) fn stays(&self) -> Option<u64> {
        let stays = self.stays.load(Ordering::Relaxed) > 0;
        stays.then(|| self.at_post.load(Ordering::Relaxed))
    }

    /// The call has stayed; whether the peer's Write came.
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

    /// The program goes on, when the peer has written so often.
    pub(super) fn goes_on(&self, writes: u64) {
        self.at_take.store(writes, Ordering::Relaxed);
    }
}

/// One stay of a call.
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

    /// Whether the call has stayed long enough, when the peer's Writes have come so far.
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
    fn a_call_stays_while_a_write_comes_and_not_for_ever() {
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

    /// One post, its completion, and the peer's Write behind it; whether the call stays.
    fn round(wait: &MemoryWait, writes: u64) -> Option<u64> {
        wait.posted(7, writes);
        assert_eq!(wait.takes_one(), Some(7));
        let stays = wait.stays();
        wait.goes_on(writes);
        stays
    }

    #[test]
    fn a_call_stays_where_a_write_came_without_one() {
        let wait = MemoryWait::new();
        assert_eq!(round(&wait, 5), None);
        assert_eq!(round(&wait, 6), Some(6));
    }

    #[test]
    fn other_programs_are_not_held_up() {
        let wait = MemoryWait::new();
        for turn in 0..100 {
            // The peer writes nothing, or much, or the program posts more than one.
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
    fn it_costs_less_and_less_where_it_does_not_pay() {
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
