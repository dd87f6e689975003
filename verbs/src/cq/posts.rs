//! Detects if an application posts one request and waits, or posts many requests together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Posts between two polls up to which each post is sent at once.
const ALONE_MAX: usize = 2;

/// Threads that post at the same time may count too few, which affects only speed.
#[derive(Debug, Default)]
pub(super) struct Posts {
    now: AtomicUsize,
    /// Posts of the round before: up to the last poll that followed a post.
    before: AtomicUsize,
}

impl Posts {
    /// Ends the round if there were posts.
    pub(super) fn looked(&self) {
        let posts = self.now.load(Ordering::Relaxed);
        if posts > 0 {
            self.now.store(0, Ordering::Relaxed);
            self.before.store(posts, Ordering::Relaxed);
        }
    }

    /// Returns true if the post should be sent at once. An application with more posts, since the
    /// last poll or in the round before, does not wait for a completion yet.
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
