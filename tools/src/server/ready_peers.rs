//! Peers with events: their wakers record them, and a turn of the server polls only these peers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use urnic::QpNum;

/// Peers with events, by the numbers of their queue pairs.
#[derive(Debug)]
pub(super) struct ReadyPeers(Arc<Noted>);

#[derive(Debug)]
struct Noted {
    keys: Mutex<Vec<QpNum>>,
    /// Changed only under the lock.
    any: AtomicBool,
    sleeper: Waker,
}

impl Noted {
    // A panic of another holder leaves the list consistent.
    fn keys(&self) -> MutexGuard<'_, Vec<QpNum>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadyPeers {
    /// A new entry calls `sleeper`.
    pub(super) fn new(sleeper: Waker) -> Self {
        let (keys, any) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Noted { keys, any, sleeper }))
    }

    pub(super) fn waker(&self, key: QpNum) -> Arc<PeerWaker> {
        Arc::new(PeerWaker { key, is_noted: AtomicBool::new(false), noted: Arc::clone(&self.0) })
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    /// Keeps the order of events.
    pub(super) fn take(&self, to: &mut Vec<QpNum>) {
        let mut keys = self.0.keys();
        std::mem::swap(&mut *keys, to);
        self.0.any.store(false, Ordering::Relaxed);
    }
}

/// Any thread may call it.
#[derive(Debug)]
pub(super) struct PeerWaker {
    key: QpNum,
    /// The peer is in the list and was not polled since.
    is_noted: AtomicBool,
    noted: Arc<Noted>,
}

impl PeerWaker {
    /// Call before the peer is polled: later events are recorded again.
    pub(super) fn clear_ready(&self) {
        // Pairs with the swap in `wake`: an event that is not recorded again came before this swap,
        // and the poll after it sees the event.
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
        // Only after the store: a server that has checked before it goes to sleep and is woken.
        self.noted.sleeper.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use urnic_testkit::waker::counting;

    use super::*;

    fn taken(ready_peers: &ReadyPeers) -> Vec<u32> {
        let mut keys = Vec::new();
        ready_peers.take(&mut keys);
        keys.into_iter().map(|key| key.0).collect()
    }

    #[test]
    fn ready_peer_is_queued_once_until_it_is_polled() {
        let (calls, waker) = counting();
        let ready_peers = ReadyPeers::new(waker);
        let (one, two) = (ready_peers.waker(QpNum(1)), ready_peers.waker(QpNum(2)));
        assert!(!ready_peers.any());
        two.wake_by_ref();
        one.wake_by_ref();
        two.wake_by_ref();
        assert!(ready_peers.any());
        assert_eq!(calls.count(), 2, "the sleep ends for each that is noted");
        assert_eq!(taken(&ready_peers), [2, 1]);
        assert!(!ready_peers.any());
        two.wake_by_ref();
        assert_eq!(taken(&ready_peers), [0; 0], "it is still to be looked at");
        two.clear_ready();
        two.wake_by_ref();
        assert_eq!(taken(&ready_peers), [2]);
    }

    /// Every event of a thread is seen, though the peer is polled at the same time.
    #[test]
    fn wakeups_during_a_poll_round_are_not_lost() {
        const COUNT: usize = 20_000;
        let ready_peers = ReadyPeers::new(Waker::noop().clone());
        let waker = ready_peers.waker(QpNum(7));
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
                ready_peers.take(&mut keys);
                assert!(keys.len() <= 1, "one peer");
                for _ in keys.drain(..) {
                    waker.clear_ready();
                    seen = brought.load(Ordering::Relaxed);
                }
                // If a record were lost, this loop would never end.
                thread::yield_now();
            }
        });
    }
}
