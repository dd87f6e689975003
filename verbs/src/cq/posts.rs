//! How a program posts: one request and then it waits, or many together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Posts between two looks at a queue that are sent one by one.
const ALONE_MAX: usize = 2;

/// Calls that post sends which complete to one queue. Threads that post at the same time may count too
/// few: it is about speed only.
#[derive(Debug, Default)]
pub(super) struct Posts {
    /// Since the program looked last.
    now: AtomicUsize,
    /// Before it looked then, if it had posted.
    before: AtomicUsize,
}

impl Posts {
    /// The program looks at its queue: what was posted goes out, if it has not gone.
    pub(super) fn looked(&self) {
        let posts = self.now.load(Ordering::Relaxed);
        if posts > 0 {
            self.now.store(0, Ordering::Relaxed);
            self.before.store(posts, Ordering::Relaxed);
        }
    }

    /// The program posts; whether that is to be sent at once. One that posts more, now or the last time,
    /// has not come to wait yet.
    pub(super) fn posted(&self) -> bool {
        let posts = self.now.load(Ordering::Relaxed).saturating_add(1);
        self.now.store(posts, Ordering::Relaxed);
        posts <= ALONE_MAX && self.before.load(Ordering::Relaxed) <= ALONE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many posts are sent at once, before the program looks, and looks again.
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
