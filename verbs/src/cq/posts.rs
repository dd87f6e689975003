//! How an application posts: one request and then it waits, or many together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of posts between two polls that are each sent at once.
const ALONE_MAX: usize = 2;

/// Number of post calls whose requests complete to one queue. Threads that post at the same time
/// may count too few: the count only affects speed.
#[derive(Debug, Default)]
pub(super) struct Posts {
    /// Since the last poll.
    now: AtomicUsize,
    /// Before the last poll that followed a post.
    before: AtomicUsize,
}

impl Posts {
    /// Records a poll: posts that were not sent yet are sent now.
    pub(super) fn looked(&self) {
        let posts = self.now.load(Ordering::Relaxed);
        if posts > 0 {
            self.now.store(0, Ordering::Relaxed);
            self.before.store(posts, Ordering::Relaxed);
        }
    }

    /// Records a post. Returns true if it is sent at once: an application that posts more, now or
    /// the last time, does not wait yet.
    pub(super) fn posted(&self) -> bool {
        let posts = self.now.load(Ordering::Relaxed).saturating_add(1);
        self.now.store(posts, Ordering::Relaxed);
        posts <= ALONE_MAX && self.before.load(Ordering::Relaxed) <= ALONE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `count` posts are sent at once, before two polls.
    fn round(posts: &Posts, count: usize) -> usize {
        let at_once = (0..count).filter(|_| posts.posted()).count();
        posts.looked();
        posts.looked();
        at_once
    }

    #[test]
    fn requests_that_are_waited_for_go_at_once_and_others_together() {
        let posts = Posts::default();
        assert_eq!([1, 1, 2].map(|count| round(&posts, count)), [1, 1, 2]);
        assert_eq!(round(&posts, 100), ALONE_MAX, "nothing tells yet that many come");
        assert_eq!([100, 100].map(|count| round(&posts, count)), [0, 0]);
        // It waits for single ones again.
        assert_eq!([1, 1, 1].map(|count| round(&posts, count)), [0, 1, 1]);
    }
}
