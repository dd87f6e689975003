//! One-shot wake-ups: a waker that has asked for a call is called once.
//!
//! 1. A waiting thread arms the alarm: it enters its waker under the lock and sets `armed`.
//! 2. The thread looks for the event once more, and sleeps if there was none.
//! 3. Another thread causes the event, and rings: it loads `armed`, and if that is set, takes all
//!    wakers under the lock and calls them without it.
//!
//! Racy cases:
//!
//! - *The event occurs between steps 1 and 2.* The fences of `arm` and `ring` pair: the look of
//!   step 2 finds the event, or `ring` finds the waker.
//! - *A called waker arms the alarm again.* It is in the list of the next ring.
//! - *A ring runs while a waker is cancelled.* The waker may be called once more.
//!
//! Model: the loom tests of `tests/loom` run this file.

use std::collections::VecDeque;
use std::task::Waker;

use crate::limits::{ALARM_EARLY_KEPT, ALARM_WAKERS_MAX};
use crate::verbs::calls;
use crate::verbs::sync::{AtomicBool, Mutex, Ordering, fence, lock};

/// The next ring calls all wakers that have asked. A ring without any costs a fence and a load.
#[derive(Debug)]
pub struct Alarm {
    /// There is a waker; changed only under the lock.
    armed: AtomicBool,
    wakers: Mutex<Wakers>,
}

#[derive(Debug)]
struct Wakers {
    /// Wakers in the order of their requests, each once.
    asked: Vec<Waker>,
    spare: Vec<Waker>,
    /// Created when the list is full for the first time.
    full: Option<Box<Full>>,
}

#[derive(Debug)]
struct Full {
    /// [`ALARM_WAKERS_MAX`], and one more for each waker that was called early and asked again.
    room: usize,
    /// The latest wakers that were called early since the last ring.
    early: VecDeque<Waker>,
}

impl Full {
    fn new() -> Self {
        Self { room: ALARM_WAKERS_MAX, early: VecDeque::new() }
    }

    fn take_returned(&mut self, waker: &Waker) -> Option<Waker> {
        let place = self.early.iter().position(|early| early.will_wake(waker))?;
        self.early.remove(place)
    }

    /// Remembers a waker that is called early. Returns the one that is forgotten for it.
    fn remember(&mut self, waker: Waker) -> Option<Waker> {
        let forgotten =
            if self.early.len() >= ALARM_EARLY_KEPT { self.early.pop_front() } else { None };
        self.early.push_back(waker);
        forgotten
    }
}

impl Wakers {
    /// Returns a waker to call early, and one to drop outside the lock.
    #[cold]
    fn make_room(&mut self, waker: &Waker) -> [Option<Waker>; 2] {
        let full = self.full.get_or_insert_with(|| Box::new(Full::new()));
        if self.asked.len() < full.room {
            return [None, None];
        }
        if let Some(returned) = full.take_returned(waker) {
            // Its owner still waits, and so may that of the waker that would be called early for
            // it. Without one more place the two would wake each other without end.
            full.room += 1;
            return [None, Some(returned)];
        }
        let early = self.asked.remove(0);
        let forgotten = full.remember(early.clone());
        [Some(early), forgotten]
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

impl Alarm {
    /// An alarm without wakers.
    #[must_use]
    pub fn new() -> Self {
        let wakers = Mutex::new(Wakers { asked: Vec::new(), spare: Vec::new(), full: None });
        Self { armed: AtomicBool::new(false), wakers }
    }

    /// Asks for one call of `waker`. An event before this call may cause none: check once more
    /// after arming. If more than [`ALARM_WAKERS_MAX`] wakers wait, the one that has waited longest
    /// is called early, in case its owner is gone. A waker that asks again after that gets a place
    /// beyond the limit, for the life of the alarm. If one executor has more than
    /// [`ALARM_WAKERS_MAX`] + [`ALARM_EARLY_KEPT`] tasks, the excess tasks may be called early
    /// repeatedly until the next ring.
    pub fn arm(&self, waker: &Waker) {
        let (mut early, mut _dropped_after_the_lock) = (None, None);
        {
            let mut wakers = lock(&self.wakers);
            if !wakers.asked.iter().any(|asked| asked.will_wake(waker)) {
                if wakers.asked.len() >= ALARM_WAKERS_MAX {
                    [early, _dropped_after_the_lock] = wakers.make_room(waker);
                }
                wakers.asked.push(waker.clone());
            }
            self.armed.store(true, Ordering::Relaxed);
        }
        // Pairs with the fence in `ring`: this side sees the event or `ring` the armed flag.
        fence(Ordering::SeqCst);
        if let Some(early) = early {
            early.wake();
        }
    }

    /// Cancels the request of `waker`.
    pub fn cancel(&self, waker: &Waker) {
        let _dropped_after_the_lock = {
            let mut wakers = lock(&self.wakers);
            let place = wakers.asked.iter().position(|asked| asked.will_wake(waker));
            let cancelled = place.map(|place| wakers.asked.remove(place));
            self.armed.store(!wakers.asked.is_empty(), Ordering::Relaxed);
            cancelled
        };
    }

    /// Reports an event: calls all wakers that have asked.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.call();
        }
    }

    /// Without holding the lock: a waker may ask again at once.
    #[cold]
    fn call(&self) {
        let (mut called, _dropped_after_the_lock) = {
            let mut wakers = lock(&self.wakers);
            self.armed.store(false, Ordering::Relaxed);
            let spare = std::mem::take(&mut wakers.spare);
            let early = wakers.full.as_mut().map(|full| std::mem::take(&mut full.early));
            (std::mem::replace(&mut wakers.asked, spare), early)
        };
        calls::call(&mut called);
        let mut wakers = lock(&self.wakers);
        if wakers.asked.capacity() == 0 {
            wakers.asked = called;
        } else if wakers.spare.capacity() == 0 {
            wakers.spare = called;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use urnic_testkit::waker::{Calls, counting};

    use super::*;
    use crate::verbs::calls::HeldCalls;

    #[test]
    fn an_armed_alarm_calls_once() {
        let (calls, waker) = counting();
        let alarm = Alarm::new();
        alarm.ring();
        assert_eq!(calls.count(), 0, "nothing was asked for");
        alarm.arm(&waker);
        alarm.ring();
        alarm.ring();
        assert_eq!(calls.count(), 1);
        alarm.arm(&waker);
        alarm.arm(&waker);
        alarm.ring();
        assert_eq!(calls.count(), 2, "asked for twice, called once");
        alarm.arm(&waker);
        alarm.cancel(&waker);
        alarm.ring();
        assert_eq!(calls.count(), 2, "cancelled");
    }

    #[test]
    fn every_armed_waker_is_called() {
        let ((one, waker_one), (two, waker_two)) = (counting(), counting());
        let alarm = Alarm::new();
        alarm.arm(&waker_one);
        alarm.arm(&waker_two);
        alarm.ring();
        assert_eq!((one.count(), two.count()), (1, 1));
        alarm.arm(&waker_two);
        alarm.ring();
        assert_eq!((one.count(), two.count()), (1, 2), "one after the other");
        alarm.arm(&waker_one);
        alarm.arm(&waker_two);
        alarm.cancel(&waker_one);
        alarm.ring();
        assert_eq!((one.count(), two.count()), (1, 3), "the other still waits");
    }

    #[test]
    fn a_waker_beyond_the_limit_has_the_first_called_early() {
        let wakers: Vec<_> = (0..=ALARM_WAKERS_MAX).map(|_| counting()).collect();
        let alarm = Alarm::new();
        for (_, waker) in &wakers[..ALARM_WAKERS_MAX] {
            alarm.arm(waker);
        }
        assert!(wakers.iter().all(|(calls, _)| calls.count() == 0));
        alarm.arm(&wakers[ALARM_WAKERS_MAX].1);
        assert_eq!(wakers[0].0.count(), 1);
        alarm.ring();
        assert!(wakers.iter().all(|(calls, _)| calls.count() == 1));
    }

    /// Asks for the next call when called.
    struct Again(Arc<Alarm>, Calls);

    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            self.1.add();
            self.0.arm(&Waker::from(Arc::clone(&self)));
        }
    }

    /// Each waiter asks again when it is called early: once, and then the list holds all.
    #[test]
    fn wakers_that_all_wait_do_not_call_each_other_without_end() {
        const BEYOND: usize = ALARM_WAKERS_MAX / 8;
        let alarm = Arc::new(Alarm::new());
        let all: Vec<_> = (0..ALARM_WAKERS_MAX + BEYOND)
            .map(|_| Arc::new(Again(Arc::clone(&alarm), Calls::default())))
            .collect();
        let calls = || all.iter().map(|again| again.1.count()).sum::<usize>();
        for again in &all {
            alarm.arm(&Waker::from(Arc::clone(again)));
        }
        assert_eq!(calls(), BEYOND);
        for _ in 0..3 {
            let before = calls();
            alarm.ring();
            assert_eq!(calls() - before, all.len(), "each once, and none early");
        }
    }

    /// Records in a queue that it was called, like the task of an executor.
    struct Queued(usize, Arc<Mutex<VecDeque<usize>>>);

    impl Wake for Queued {
        fn wake(self: Arc<Self>) {
            lock(&self.1).push_back(self.0);
        }
    }

    /// An executor runs tasks in the order of their calls. So all other early calls come between
    /// the call of a task and its next request.
    #[test]
    fn tasks_that_wait_in_turn_do_not_call_each_other_without_end() {
        const ALL: usize = ALARM_WAKERS_MAX + ALARM_EARLY_KEPT;
        let (alarm, queue) = (Alarm::new(), Arc::default());
        let wakers: Vec<_> =
            (0..ALL).map(|n| Waker::from(Arc::new(Queued(n, Arc::clone(&queue))))).collect();
        wakers.iter().for_each(|waker| alarm.arm(waker));
        let run_next = || {
            let next = lock(&queue).pop_front();
            next.inspect(|n| alarm.arm(&wakers[*n])).is_some()
        };
        let runs = (0..4 * ALL).take_while(|_| run_next()).count();
        assert_eq!(runs, ALARM_EARLY_KEPT, "each called early once");
        alarm.ring();
        assert_eq!(lock(&queue).len(), ALL);
    }

    /// Wakers whose owners are gone do not fill the memory, and none is kept beyond the next ring.
    #[test]
    fn wakers_that_do_not_come_back_stay_within_the_limit() {
        let alarm = Alarm::new();
        let (calls, _) = counting();
        let last = Arc::new(Once(calls));
        for _ in 0..3 * ALARM_WAKERS_MAX {
            alarm.arm(&Waker::from(Arc::new(Once(last.0.clone()))));
        }
        let wakers = lock(&alarm.wakers);
        assert_eq!(wakers.asked.len(), ALARM_WAKERS_MAX);
        assert_eq!(wakers.full.as_ref().unwrap().early.len(), ALARM_EARLY_KEPT);
        drop(wakers);
        assert_eq!(last.0.count(), 2 * ALARM_WAKERS_MAX, "all but the last");
        alarm.ring();
        assert_eq!(last.0.count(), 3 * ALARM_WAKERS_MAX);
        assert_eq!(lock(&alarm.wakers).full.as_ref().unwrap().early.len(), 0);
    }

    /// Does not ask again.
    struct Once(Arc<Calls>);

    impl Wake for Once {
        fn wake(self: Arc<Self>) {
            self.0.add();
        }
    }

    #[test]
    fn a_waker_may_ask_again_at_once() {
        let alarm = Arc::new(Alarm::new());
        let again = Arc::new(Again(Arc::clone(&alarm), Calls::default()));
        alarm.arm(&Waker::from(Arc::clone(&again)));
        alarm.ring();
        assert_eq!(again.1.count(), 1, "what it asks for is the next ring's");
        alarm.ring();
        assert_eq!(again.1.count(), 2);
    }

    #[test]
    fn held_calls_run_when_the_last_hold_is_dropped() {
        let (calls, waker) = counting();
        let alarm = Alarm::new();
        let (outer, inner) = (HeldCalls::new(), HeldCalls::new());
        alarm.arm(&waker);
        alarm.ring();
        drop(inner);
        assert_eq!(calls.count(), 0, "held by the outer one");
        drop(outer);
        assert_eq!(calls.count(), 1);
        alarm.arm(&waker);
        alarm.ring();
        assert_eq!(calls.count(), 2, "no calls are deferred");
    }
}
