//! A call that is asked for once and made once.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// Lets one thread ask to be woken by what others do.
///
/// Ringing an alarm that is not armed costs a fence and a load: what is rung on the hot path does
/// not pay for those who never sleep.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    armed: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Alarm {
    /// Asks for one call. What happened before may give none: look once more after arming.
    pub(crate) fn arm(&self, waker: &Waker) {
        {
            let mut place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *place {
                Some(present) => present.clone_from(waker),
                empty => *empty = Some(waker.clone()),
            }
        }
        self.armed.store(true, Ordering::SeqCst);
        // Pairs with the fence in `ring`: of "armed" here and "happened" there, at least one is
        // seen by the other side.
        fence(Ordering::SeqCst);
    }

    /// No call is wanted any more.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// Something happened.
    #[inline]
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.call();
        }
    }

    #[cold]
    fn call(&self) {
        if self.armed.swap(false, Ordering::AcqRel) {
            let place = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waker) = &*place {
                waker.wake_by_ref();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_armed_alarm_calls_once() {
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(Arc::clone(&calls));
        let alarm = Alarm::default();
        alarm.ring();
        assert_eq!(calls.0.load(Ordering::Relaxed), 0, "nobody asked");
        alarm.arm(&waker);
        alarm.ring();
        alarm.ring();
        assert_eq!(calls.0.load(Ordering::Relaxed), 1);
        alarm.arm(&waker);
        alarm.disarm();
        alarm.ring();
        assert_eq!(calls.0.load(Ordering::Relaxed), 1, "nobody asks any more");
    }
}
