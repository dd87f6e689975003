//! A call that is asked for once and made once.

use std::task::Waker;

use crate::limits::ALARM_WAKERS_MAX;
use crate::verbs::calls;
use crate::verbs::sync::{AtomicBool, Mutex, Ordering, fence, lock};

/// Lets threads and tasks ask to be woken by what others do: all that have asked are called at the
/// next ring.
///
/// Ringing an alarm that is not armed costs a fence and a load: a completion on
/// the hot path costs no more while no thread waits for it.
#[derive(Debug)]
pub struct Alarm {
    /// Whether there is a waker; changed only under the lock.
    armed: AtomicBool,
    wakers: Mutex<Wakers>,
}

#[derive(Debug)]
struct Wakers {
    /// In the order in which they asked, each once.
    asked: Vec<Waker>,
    /// An empty list whose allocation is used again.
    spare: Vec<Waker>,
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

impl Alarm {
    /// An alarm that nothing has asked of yet.
    #[must_use]
    pub fn new() -> Self {
        let wakers = Mutex::new(Wakers { asked: Vec::new(), spare: Vec::new() });
        Self { armed: AtomicBool::new(false), wakers }
    }

    /// Asks for one call. What happened before may give none: look once more after arming.
    ///
    /// Of more than [`ALARM_WAKERS_MAX`] the one that has waited longest is called early.
    pub fn arm(&self, waker: &Waker) {
        let mut early = None;
        {
            let mut wakers = lock(&self.wakers);
            if !wakers.asked.iter().any(|asked| asked.will_wake(waker)) {
                if wakers.asked.len() >= ALARM_WAKERS_MAX {
                    early = Some(wakers.asked.remove(0));
                }
                wakers.asked.push(waker.clone());
            }
            self.armed.store(true, Ordering::Relaxed);
        }
        // Pairs with the fence in `ring`: of "armed" here and "happened" there, at least one is
        // seen by the other side.
        fence(Ordering::SeqCst);
        if let Some(early) = early {
            early.wake();
        }
    }

    /// The call that `waker` has asked for is wanted no more.
    pub fn cancel(&self, waker: &Waker) {
        let _dropped_after_the_lock = {
            let mut wakers = lock(&self.wakers);
            let place = wakers.asked.iter().position(|asked| asked.will_wake(waker));
            let cancelled = place.map(|place| wakers.asked.remove(place));
            self.armed.store(!wakers.asked.is_empty(), Ordering::Relaxed);
            cancelled
        };
    }

    /// Something happened.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.call();
        }
    }

    /// Calls all that have asked, without any lock: a waker may ask again at once.
    #[cold]
    fn call(&self) {
        let mut called = {
            let mut wakers = lock(&self.wakers);
            self.armed.store(false, Ordering::Relaxed);
            let spare = std::mem::take(&mut wakers.spare);
            std::mem::replace(&mut wakers.asked, spare)
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
        assert_eq!(calls.count(), 2, "not wanted any more");
    }

    #[test]
    fn every_waker_that_asked_is_called() {
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

    /// Asks for the next call when it is called.
    struct Again(Arc<Alarm>, Calls);

    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            self.1.add();
            self.0.arm(&Waker::from(Arc::clone(&self)));
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
    fn held_calls_are_made_when_the_last_hold_goes() {
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
        assert_eq!(calls.count(), 2, "nothing is held any more");
    }
}
