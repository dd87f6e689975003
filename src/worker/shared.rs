//! A worker that several threads run: for an endpoint without a thread, and for an endpoint whose
//! thread rests while others poll.
//!
//! Without a thread of its own ([`turn`](SharedWorker::turn)):
//! 1. A waiting thread reads `turns`, looks for its message or completion, and calls `turn`.
//! 2. If no other thread holds `worker`, it runs the worker once. [`EndOfTurn`] then increments
//!    `turns` and wakes all sleepers, also after a panic.
//! 3. Otherwise it retries for the spin time, then sleeps on `turned` until another turn has ended.
//!
//! Race: a turn may end before the thread of step 3 sleeps. The fences in `sleep` and `EndOfTurn`
//! pair: the sleeper sees the new `turns`, or the end of the turn sees the sleeper.
//!
//! With a thread of its own, beside polling threads ([`poll`](SharedWorker::poll),
//! [`run`](SharedWorker::run)):
//! 1. A thread that polls continuously calls `poll` with `stays`. `poll` then sets `was_polled`,
//!    clears `is_awaited`, and runs the worker without sleeping.
//! 2. The own thread rests if `was_polled` was set since its last check, longer each time.
//!    Otherwise it runs the worker, and may sleep in it (`is_with_thread`).
//! 3. A polling thread that finds the worker taken too often rings the wakeup once, to end the own
//!    thread's sleep.
//! 4. Before a polling thread sleeps, `hand_over` sets `is_awaited` and unparks the own thread if
//!    it rests.
//!
//! Race: the own thread may begin to rest during step 4. The fences in `rest` and `hand_over` pair:
//! `rest` sees `is_awaited`, or `hand_over` sees `rests`.
//!
//! No loom model: the steps sleep with time limits, in the kernel, and loom has neither clock nor
//! kernel. Each race is the one of `alarm`, which has a model: a store, a fence and a load at both
//! sides.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, Thread};

use crate::clock::monotonic_now;
use crate::error::Error;
use crate::mail::wakeup::Wakeup;
use crate::worker::Worker;
use urnic_engine::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(crate) struct SharedWorker {
    /// Empty before the worker exists, after its end, and after a panic in it.
    worker: Mutex<Option<Box<Worker>>>,
    turns: AtomicU64,
    /// Changed only under `gate`.
    sleepers: AtomicUsize,
    gate: Mutex<()>,
    turned: Condvar,
    /// A thread has polled the worker since its own thread checked last.
    was_polled: AtomicBool,
    /// The own thread is running the worker, and may sleep in it. A polling thread clears the flag
    /// when it rings the wakeup.
    is_with_thread: AtomicBool,
    /// The worker's own thread leaves it to polling threads.
    rests: AtomicBool,
    /// A polling thread has handed over and sleeps. False while threads poll.
    is_awaited: AtomicBool,
    /// Continuous polls that found the worker taken since the last ring.
    refused: AtomicUsize,
    has_stopped: AtomicBool,
}

impl SharedWorker {
    pub(crate) fn set(&self, worker: Worker) {
        *lock(&self.worker) = Some(Box::new(worker));
    }

    pub(crate) fn take(&self) -> Option<Box<Worker>> {
        lock(&self.worker).take()
    }

    /// Number of ended turns. Read it before looking for results, for [`turn`](Self::turn).
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Runs the worker once. If another thread is running it, retries for `spin` and then sleeps,
    /// until more than `seen` turns have ended or `deadline` is reached. Without `seen`, sleeps for
    /// [`UNSEEN_SLEEP`] at most: the caller may have missed a turn.
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

    /// Runs the worker once, without sleeping, unless another thread is running it. `stays`: the
    /// caller polls continuously until it calls [`hand_over`](Self::hand_over).
    pub(crate) fn poll(&self, wakeup: &Wakeup, stays: bool) -> Result<(), Error> {
        if stays {
            self.was_polled.store(true, Ordering::Relaxed);
            self.is_awaited.store(false, Ordering::Relaxed);
        }
        if let Some(turned) = self.try_turn(Some(Instant::ZERO), false) {
            return turned;
        }
        // The own thread may sleep while it holds the worker: a continuous poller wakes it, once.
        if stays
            && self.refused.fetch_add(1, Ordering::Relaxed) >= REFUSED_MAX
            && self.is_with_thread.swap(false, Ordering::AcqRel)
        {
            self.refused.store(0, Ordering::Relaxed);
            wakeup.ring();
        }
        Ok(())
    }

    pub(crate) fn hand_over(&self, thread: &Thread) {
        self.was_polled.store(false, Ordering::Relaxed);
        self.is_awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.rests.load(Ordering::Relaxed) {
            thread.unpark();
        }
    }

    /// Runs the worker in its own thread, except while other threads do.
    pub(crate) fn run(&self) {
        let mut rest = SHORT_REST;
        while !self.has_stopped.load(Ordering::Acquire) {
            if self.was_polled.swap(false, Ordering::AcqRel) {
                self.rest(rest);
                rest = longer(rest);
                continue;
            }
            self.is_with_thread.store(true, Ordering::Release);
            let turned = self.try_turn(None, !self.is_awaited.load(Ordering::Relaxed));
            self.is_with_thread.store(false, Ordering::Release);
            match turned {
                Some(Ok(())) => rest = SHORT_REST,
                Some(Err(_down)) => return,
                // Another thread is running the worker, and may sleep in it for long.
                None => {
                    self.rest(rest);
                    rest = longer(rest);
                }
            }
        }
    }

    /// Sleeps for `time`, unless a polling thread has handed over and the worker is free.
    fn rest(&self, time: Duration) {
        self.rests.store(true, Ordering::Relaxed);
        // Pairs with the fence in `hand_over`.
        fence(Ordering::SeqCst);
        if !self.is_awaited.load(Ordering::Relaxed) || self.is_taken() {
            thread::park_timeout(time);
        }
        self.rests.store(false, Ordering::Relaxed);
    }

    fn is_taken(&self) -> bool {
        self.try_lock().is_none()
    }

    pub(crate) fn stop(&self) {
        self.has_stopped.store(true, Ordering::Release);
    }

    /// `None` if another thread is running the worker. With `is_brief`, a worker without work
    /// sleeps almost at once.
    fn try_turn(&self, deadline: Option<Instant>, is_brief: bool) -> Option<Result<(), Error>> {
        let place = self.try_lock()?;
        // Drops in this order, also after a panic: the worker, the lock, then `EndOfTurn`.
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
            // The worker that panicked was dropped.
            Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sleeps while another thread runs the worker and no turn has ended since `seen`.
    fn sleep(&self, seen: u64, now: Instant, deadline: Option<Instant>) {
        let gate = lock(&self.gate);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence at the end of a turn.
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

/// Shortest and longest rest of the own thread while other threads poll; each is twice the one
/// before. If they stop without handing over, the worker is not run until the rest ends.
const SHORT_REST: Duration = Duration::from_micros(20);
const LONG_REST: Duration = Duration::from_micros(500);

fn longer(rest: Duration) -> Duration {
    (rest * 2).min(LONG_REST)
}

/// Waking costs more than a poll: a thread that polls only now and then never does it.
const REFUSED_MAX: usize = 16;

/// Longest sleep of a thread that may have missed a turn.
const UNSEEN_SLEEP: Duration = Duration::from_millis(1);

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

/// Ignores poisoning: these locks protect no partial updates.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_sleep_grows_up_to_half_a_millisecond() {
        let rests = std::iter::successors(Some(SHORT_REST), |rest| Some(longer(*rest)));
        let micros: Vec<_> = rests.take(7).map(|rest| rest.as_micros()).collect();
        assert_eq!(micros, [20, 40, 80, 160, 320, 500, 500]);
    }
}
