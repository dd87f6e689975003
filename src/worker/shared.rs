//! The worker of an endpoint without a thread: one of the threads that wait turns it, the others
//! sleep. Or one with a thread that rests while others poll.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, Thread};

use crate::clock::monotonic_now;
use crate::error::Error;
use crate::mail::wakeup::Wakeup;
use crate::worker::Worker;
use urnic_engine::time::{Duration, Instant};

/// A worker, and the threads that wait while another turns it.
#[derive(Debug, Default)]
pub(crate) struct SharedWorker {
    /// Empty before there is a worker, after its end, and after a panic in it.
    worker: Mutex<Option<Box<Worker>>>,
    /// Turns that have ended.
    turns: AtomicU64,
    /// Threads that sleep until the next turn has ended. Changed only under `gate`.
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    turned: Condvar,
    /// A thread has turned the worker by polling since its own thread looked last.
    was_polled: AtomicBool,
    /// The worker's own thread, if it has one, turns it just now, and may sleep in it.
    is_with_thread: AtomicBool,
    /// The worker's own thread leaves it to those that poll.
    rests: AtomicBool,
    /// A thread sleeps until something comes; otherwise those that polled look at something else.
    is_awaited: AtomicBool,
    /// How often that thread was found with it.
    refused: AtomicUsize,
    /// The worker's own thread is to end.
    has_stopped: AtomicBool,
}

impl SharedWorker {
    pub(crate) fn set(&self, worker: Worker) {
        *lock(&self.worker) = Some(Box::new(worker));
    }

    pub(crate) fn take(&self) -> Option<Box<Worker>> {
        lock(&self.worker).take()
    }

    /// How many turns have ended. Ask before looking for what turns bring, and give it to
    /// [`turn`](Self::turn).
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Turns the worker once. If another thread does so just now, looks for `spin` and then sleeps,
    /// until more than `seen` turns have ended or `deadline` has come. Without `seen`, when the thread
    /// looked last is not known: it does not sleep for long.
    pub(crate) fn turn(
        &self,
        seen: Option<u64>,
        deadline: Option<Instant>,
        spin: Duration,
    ) -> Result<(), Error> {
        let (mut started, turns) = (None, seen.unwrap_or_else(|| self.turns()));
        loop {
            if let Some(turned) = self.try_turn(deadline, false) {
                return turned;
            }
            thread::yield_now();
            let now = monotonic_now();
            if self.turns() != turns || deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(());
            }
            if now - *started.get_or_insert(now) >= spin {
                let soon = seen.is_none().then(|| now + UNSEEN_SLEEP);
                let until = [deadline, soon].into_iter().flatten().min();
                self.sleep(turns, now, until);
                return Ok(());
            }
        }
    }

    /// Turns the worker once, without sleep, unless another thread does so just now. With `stays`, the
    /// caller does so again and again: the worker's own thread leaves it alone meanwhile.
    pub(crate) fn poll(&self, wakeup: &Wakeup, stays: bool) -> Result<(), Error> {
        if stays {
            self.was_polled.store(true, Ordering::Relaxed);
            self.is_awaited.store(false, Ordering::Relaxed);
        }
        if let Some(turned) = self.try_turn(Some(Instant::ZERO), false) {
            return turned;
        }
        // It may sleep with the worker. A thread that comes again and again wakes it, once.
        if stays
            && self.refused.fetch_add(1, Ordering::Relaxed) >= REFUSED_MAX
            && self.is_with_thread.swap(false, Ordering::AcqRel)
        {
            self.refused.store(0, Ordering::Relaxed);
            wakeup.ring();
        }
        Ok(())
    }

    /// The thread that polled will sleep now: the worker's own thread takes over.
    pub(crate) fn hand_over(&self, thread: &Thread) {
        self.was_polled.store(false, Ordering::Relaxed);
        self.is_awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.rests.load(Ordering::Relaxed) {
            thread.unpark();
        }
    }

    /// What the worker's own thread does: turns it, except while others do.
    pub(crate) fn run(&self) {
        let mut rest = SHORT_REST;
        while !self.has_stopped.load(Ordering::Acquire) {
            if self.was_polled.swap(false, Ordering::AcqRel) {
                self.rest(rest);
                rest = (rest * 2).min(LONG_REST);
                continue;
            }
            self.is_with_thread.store(true, Ordering::Release);
            let turned = self.try_turn(None, !self.is_awaited.load(Ordering::Relaxed));
            self.is_with_thread.store(false, Ordering::Release);
            match turned {
                Some(Ok(())) => rest = SHORT_REST,
                Some(Err(_down)) => return,
                // Another thread is in it, and may wait there for long.
                None => {
                    self.rest(rest);
                    rest = (rest * 2).min(LONG_REST);
                }
            }
        }
    }

    /// Sleeps for a while, unless a thread that polled hands over.
    fn rest(&self, time: Duration) {
        self.rests.store(true, Ordering::Relaxed);
        // Pairs with the fence of `hand_over`: either that is seen here, or this there.
        fence(Ordering::SeqCst);
        if !self.is_awaited.load(Ordering::Relaxed) || self.is_taken() {
            thread::park_timeout(time);
        }
        self.rests.store(false, Ordering::Relaxed);
    }

    /// Whether another thread turns the worker just now.
    fn is_taken(&self) -> bool {
        self.try_lock().is_none()
    }

    /// Ends [`run`](Self::run).
    pub(crate) fn stop(&self) {
        self.has_stopped.store(true, Ordering::Release);
    }

    /// `None` when another thread turns the worker. With `is_brief`, it sleeps soon.
    fn try_turn(&self, deadline: Option<Instant>, is_brief: bool) -> Option<Result<(), Error>> {
        let place = self.try_lock()?;
        // However the turn ends: first goes a worker that has panicked, then the lock; then the
        // others look.
        let _last = EndOfTurn(self);
        let mut place = place;
        let Some(mut worker) = place.take() else { return Some(Err(Error::Down)) };
        worker.set_brief(is_brief);
        worker.turn_or_wait(deadline);
        *place = Some(worker);
        Some(Ok(()))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Box<Worker>>>> {
        match self.worker.try_lock() {
            Ok(place) => Some(place),
            // The worker that panicked is gone.
            Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sleeps while another thread turns the worker and no turn has ended since `seen`.
    fn sleep(&self, seen: u64, now: Instant, deadline: Option<Instant>) {
        let gate = lock(&self.gate);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence at the end of a turn: either that end is seen here, or this sleeper
        // there.
        fence(Ordering::SeqCst);
        if self.turns() == seen && self.try_lock().is_none() {
            match deadline {
                Some(deadline) => drop(self.turned.wait_timeout(gate, deadline - now)),
                None => drop(self.turned.wait(gate)),
            }
            let _gate = lock(&self.gate);
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// How long the worker's own thread sleeps while others poll, at first and when they have gone on for
/// some time: as long, at most, it is missed when they stop without a word.
const SHORT_REST: Duration = Duration::from_micros(20);
const LONG_REST: Duration = Duration::from_micros(500);

/// How often one that polls finds the worker's own thread with the worker before it wakes it. Waking
/// costs more than looking: those that look only now and then do not.
const REFUSED_MAX: usize = 16;

/// How long a thread sleeps that may have missed a turn, at most.
const UNSEEN_SLEEP: Duration = Duration::from_millis(1);

/// Tells the other threads, when it goes, that a turn has ended.
struct EndOfTurn<'a>(&'a SharedWorker);

impl Drop for EndOfTurn<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        shared.turns.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if shared.sleepers.load(Ordering::Relaxed) > 0 {
            let _gate = lock(&shared.gate);
            shared.turned.notify_all();
        }
    }
}

/// These locks protect nothing that a panic leaves half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
