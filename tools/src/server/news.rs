//! Which peers have news: their wakers note them, and a turn of the server visits only those.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use urnic::QpNum;

/// The peers with news, by the numbers of their queue pairs.
#[derive(Debug)]
pub(super) struct News(Arc<Noted>);

#[derive(Debug)]
struct Noted {
    keys: Mutex<Vec<QpNum>>,
    /// Whether there are keys; changed only under the lock.
    any: AtomicBool,
    /// Ends the sleep of the endpoint.
    sleeper: Waker,
}

impl Noted {
    // A panic of another holder leaves the list whole.
    fn keys(&self) -> MutexGuard<'_, Vec<QpNum>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl News {
    /// No news yet. `sleeper` is called when there are.
    pub(super) fn new(sleeper: Waker) -> Self {
        let (keys, any) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Noted { keys, any, sleeper }))
    }

    /// The waker of the peer whose queue pair has this number.
    pub(super) fn waker(&self, key: QpNum) -> Arc<PeerWaker> {
        Arc::new(PeerWaker { key, is_noted: AtomicBool::new(false), noted: Arc::clone(&self.0) })
    }

    /// Whether a peer has news.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    /// Takes the peers that have news, in the order in which they had them, for the empty list `to`.
    pub(super) fn take(&self, to: &mut Vec<QpNum>) {
        let mut keys = self.0.keys();
        std::mem::swap(&mut *keys, to);
        self.0.any.store(false, Ordering::Relaxed);
    }
}

/// Notes that one peer has news. Any thread may call it.
#[derive(Debug)]
pub(super) struct PeerWaker {
    key: QpNum,
    /// Whether it is noted already, and not looked at since.
    is_noted: AtomicBool,
    noted: Arc<Noted>,
}

impl PeerWaker {
    /// The peer is about to be looked at: what happens from now on is news again.
    pub(super) fn heard(&self) {
        // It pairs with the swap of `wake`: news that are not noted once more were there before, and
        // are seen after this.
        self.is_noted.swap(false, Ordering::AcqRel);
    }
}

impl Wake for PeerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_noted.swap(true, Ordering::AcqRel) {
            return;
        }
        {
            let mut keys = self.noted.keys();
            keys.push(self.key);
            self.noted.any.store(true, Ordering::Release);
        }
        // Only now: a server that has looked before goes to sleep and is woken.
        self.noted.sleeper.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use urnic_testkit::waker::counting;

    use super::*;

    fn taken(news: &News) -> Vec<u32> {
        let mut keys = Vec::new();
        news.take(&mut keys);
        keys.into_iter().map(|key| key.0).collect()
    }

    #[test]
    fn a_peer_is_noted_once_until_it_is_looked_at() {
        let (calls, waker) = counting();
        let news = News::new(waker);
        let (one, two) = (news.waker(QpNum(1)), news.waker(QpNum(2)));
        assert!(!news.any());
        two.wake_by_ref();
        one.wake_by_ref();
        two.wake_by_ref();
        assert!(news.any());
        assert_eq!(calls.count(), 2, "the sleep ends for each that is noted");
        assert_eq!(taken(&news), [2, 1]);
        assert!(!news.any());
        two.wake_by_ref();
        assert_eq!(taken(&news), [0; 0], "it is still to be looked at");
        two.heard();
        two.wake_by_ref();
        assert_eq!(taken(&news), [2]);
    }

    /// Whatever a thread brings is seen, though the peer is looked at meanwhile.
    #[test]
    fn no_news_are_lost_while_others_are_looked_at() {
        const COUNT: usize = 20_000;
        let news = News::new(Waker::noop().clone());
        let waker = news.waker(QpNum(7));
        let brought = AtomicUsize::new(0);
        let (mut seen, mut keys) = (0, Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..COUNT {
                    brought.fetch_add(1, Ordering::Relaxed);
                    waker.wake_by_ref();
                }
            });
            while seen < COUNT {
                news.take(&mut keys);
                assert!(keys.len() <= 1, "one peer");
                for _ in keys.drain(..) {
                    waker.heard();
                    seen = brought.load(Ordering::Relaxed);
                }
                // Without a note that is still to come this would never end.
                thread::yield_now();
            }
        });
    }
}
