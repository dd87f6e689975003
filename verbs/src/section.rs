//! Critical sections that C enters and leaves by separate calls. One thread at a time is inside.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::event_queue::locked;

/// Value for the thread inside. While none is inside, any thread may use it for one call.
#[derive(Debug, Default)]
pub(crate) struct Section<T> {
    state: Mutex<State<T>>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State<T> {
    value: T,
    inside: Option<ThreadMark>,
    waiting: usize,
}

/// Number that no other live thread has: the address of a thread-local value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadMark(usize);

thread_local! {
    static MARK: u8 = const { 0 };
}

impl ThreadMark {
    fn own() -> Self {
        Self(MARK.with(|mark| (&raw const *mark).addr()))
    }
}

impl<T> Section<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { state: Mutex::new(State { value, inside: None, waiting: 0 }), left: Condvar::new() }
    }

    /// Waits until no other thread is inside. A thread that is inside already stays inside.
    pub(crate) fn enter(&self) {
        let own = ThreadMark::own();
        self.free(own).inside = Some(own);
    }

    /// C calls this only between entering and leaving.
    pub(crate) fn inside<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut locked(&self.state).value)
    }

    pub(crate) fn leave(&self) {
        let mut state = locked(&self.state);
        state.inside = None;
        // A wake-up costs a system call.
        if state.waiting > 0 {
            self.left.notify_one();
        }
    }

    /// Uses the value for one call, while no other thread is inside. The second argument of `f` is
    /// true if this thread is.
    pub(crate) fn alone<R>(&self, f: impl FnOnce(&mut T, bool) -> R) -> R {
        let own = ThreadMark::own();
        let mut state = self.free(own);
        let is_inside = state.inside.is_some();
        let done = f(&mut state.value, is_inside);
        // This thread may have consumed the wake-up of one of several waiters: wake the next one.
        if !is_inside && state.waiting > 0 {
            self.left.notify_one();
        }
        done
    }

    /// Waits until no other thread is in the section.
    fn free(&self, own: ThreadMark) -> MutexGuard<'_, State<T>> {
        let mut state = locked(&self.state);
        while state.inside.is_some_and(|inside| inside != own) {
            state.waiting += 1;
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests give another thread time to do wrong")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_thread_is_inside_at_a_time() {
        let section = Section::new(0);
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for index in 0..4 {
                let (section, inside) = (&section, &inside);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        if index == 0 {
                            section.alone(|value, is_inside| {
                                assert_eq!(inside.load(Ordering::SeqCst), 0);
                                assert!(!is_inside);
                                *value += 1;
                            });
                            continue;
                        }
                        section.enter();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        section.inside(|value| *value += 1);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        section.leave();
                    }
                });
            }
        });
        assert_eq!(section.inside(|value| *value), 8000);
    }

    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let section = Section::new(());
        section.enter();
        section.enter();
        section.alone(|(), is_inside| assert!(is_inside));
        let entered = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (section, entered) = (&section, &entered);
            scope.spawn(move || {
                section.enter();
                entered.store(1, Ordering::SeqCst);
                section.leave();
            });
            thread::sleep(Duration::from_millis(10));
            assert_eq!(entered.load(Ordering::SeqCst), 0);
            section.leave();
        });
        section.alone(|(), is_inside| assert!(!is_inside));
    }
}
