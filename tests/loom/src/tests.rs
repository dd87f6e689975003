//! Threads that ring, and threads that poll and sleep.

use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::types::PdNum;
use crate::verbs::alarm::Alarm;
use crate::verbs::doorbell::{Doorbell, DoorbellButton};
use crate::verbs::stand_in::posted;
use crate::verbs::{QpShared, RecvWr, Srq};

/// Tries every order with at most `preemptions` preemptions: more find nothing new and take
/// minutes.
fn model(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// A wake-up like the eventfd of a worker or of a channel: stays signaled until it is cleared.
struct Wakeup {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl Wakeup {
    fn new() -> Arc<Self> {
        Arc::new(Self { is_rung: Mutex::new(false), rung: Condvar::new() })
    }

    fn wait(&self) {
        let mut is_rung = self.is_rung.lock().unwrap();
        while !*is_rung {
            is_rung = self.rung.wait(is_rung).unwrap();
        }
    }

    fn clear(&self) {
        *self.is_rung.lock().unwrap() = false;
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        *self.is_rung.lock().unwrap() = true;
        self.rung.notify_all();
    }
}

/// Waits as an application waits at a completion queue.
fn wait_for(alarm: &Alarm, is_done: impl Fn() -> bool) {
    let wakeup = Wakeup::new();
    let waker = Waker::from(Arc::clone(&wakeup));
    while !is_done() {
        alarm.arm(&waker);
        if !is_done() {
            wakeup.wait();
        }
        alarm.cancel(&waker);
        wakeup.clear();
    }
}

#[test]
fn event_is_seen_or_wakes_the_waiter() {
    model(3, || {
        let alarm = Arc::new(Alarm::new());
        let happened = Arc::new(AtomicBool::new(false));
        let other = {
            let (alarm, happened) = (Arc::clone(&alarm), Arc::clone(&happened));
            thread::spawn(move || {
                happened.store(true, Ordering::Relaxed);
                alarm.ring();
            })
        };
        wait_for(&alarm, || happened.load(Ordering::Relaxed));
        other.join().unwrap();
    });
}

#[test]
fn each_of_two_waiters_is_called() {
    model(2, || {
        let alarm = Arc::new(Alarm::new());
        let count = Arc::new(AtomicUsize::new(0));
        // Each waiter takes one.
        let waiter = |least: usize| {
            let (alarm, count) = (Arc::clone(&alarm), Arc::clone(&count));
            move || wait_for(&alarm, || count.load(Ordering::Relaxed) >= least)
        };
        let other = thread::spawn(waiter(2));
        let ringer = {
            let (alarm, count) = (Arc::clone(&alarm), Arc::clone(&count));
            thread::spawn(move || {
                for _ in 0..2 {
                    count.fetch_add(1, Ordering::Relaxed);
                    alarm.ring();
                }
            })
        };
        waiter(1)();
        other.join().unwrap();
        ringer.join().unwrap();
    });
}

/// Does the work of the port's worker: serves the doorbells that have rung, and sleeps if none has.
fn serve(
    doorbell: &Doorbell,
    bells: &[Arc<DoorbellButton>],
    posted: &[Arc<AtomicUsize>],
    all: usize,
) {
    let wakeup = Wakeup::new();
    let waker = Waker::from(Arc::clone(&wakeup));
    let mut seen = vec![0; bells.len()];
    let look = |slot: usize, seen: &mut Vec<usize>| {
        bells[slot].release();
        seen[slot] = posted[slot].load(Ordering::Relaxed);
    };
    loop {
        while let Some(slot) = doorbell.next() {
            look(slot as usize, &mut seen);
        }
        if doorbell.take_missed() {
            (0..bells.len()).for_each(|slot| look(slot, &mut seen));
        }
        if seen.iter().sum::<usize>() == all {
            return;
        }
        doorbell.arm(&waker);
        if !doorbell.has_rung() {
            wakeup.wait();
        }
        doorbell.disarm(&waker);
        wakeup.clear();
    }
}

#[test]
fn posted_work_is_served() {
    model(3, || {
        let doorbell = Doorbell::new();
        let button = Arc::new(DoorbellButton::new(Arc::clone(&doorbell), 0));
        let posted = Arc::new(AtomicUsize::new(0));
        let poster = {
            let (button, posted) = (Arc::clone(&button), Arc::clone(&posted));
            thread::spawn(move || {
                for _ in 0..2 {
                    posted.fetch_add(1, Ordering::Relaxed);
                    button.press();
                }
            })
        };
        serve(&doorbell, &[button], &[posted], 2);
        poster.join().unwrap();
    });
}

#[test]
fn posted_work_beyond_the_doorbell_capacity_is_served() {
    model(2, || {
        // Two queue pairs, and one place in the doorbell.
        let doorbell = Doorbell::new();
        let bells: Vec<_> =
            (0..2).map(|slot| Arc::new(DoorbellButton::new(Arc::clone(&doorbell), slot))).collect();
        let posted: Vec<_> = (0..2).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let posters: Vec<_> = bells
            .iter()
            .zip(&posted)
            .map(|(button, posted)| {
                let (button, posted) = (Arc::clone(button), Arc::clone(posted));
                thread::spawn(move || {
                    posted.fetch_add(1, Ordering::Relaxed);
                    button.press();
                })
            })
            .collect();
        serve(&doorbell, &bells, &posted, 2);
        for poster in posters {
            poster.join().unwrap();
        }
    });
}

/// Acts like the port's worker with a waiting message: takes a receive for it, and sleeps while
/// there is none.
fn deliver(doorbell: &Doorbell, qp: &Arc<QpShared>) {
    let wakeup = Wakeup::new();
    let waker = Waker::from(Arc::clone(&wakeup));
    loop {
        while doorbell.next().is_some() {
            qp.button.release();
        }
        if qp.receives.take_or_ask(qp).is_some() {
            qp.receives.ask_no_more(qp);
            return;
        }
        doorbell.arm(&waker);
        if !doorbell.has_rung() {
            wakeup.wait();
        }
        doorbell.disarm(&waker);
        wakeup.clear();
    }
}

#[test]
fn a_message_that_waits_gets_the_receive_that_is_posted() {
    model(3, || {
        let doorbell = Doorbell::new();
        let qp = QpShared::waiting(&doorbell, None);
        let poster = {
            let qp = Arc::clone(&qp);
            thread::spawn(move || qp.post())
        };
        deliver(&doorbell, &qp);
        poster.join().unwrap();
    });
}

#[test]
fn a_message_that_waits_gets_the_receive_that_is_posted_to_a_shared_queue() {
    model(3, || {
        let srq = Srq::new(PdNum(1), 2).unwrap();
        let doorbell = Doorbell::new();
        let qp = QpShared::waiting(&doorbell, Some(srq.clone()));
        let poster = thread::spawn(move || srq.post_recv(RecvWr::default()).unwrap());
        deliver(&doorbell, &qp);
        poster.join().unwrap();
    });
}

/// One receive each: a queue pair that finds none after its wake-up asks again.
#[test]
fn messages_of_two_queue_pairs_get_the_receives_of_a_shared_queue() {
    model(2, || {
        let srq = Srq::new(PdNum(1), 2).unwrap();
        let ends: Vec<_> = (0..2)
            .map(|_| {
                let doorbell = Doorbell::new();
                let qp = QpShared::waiting(&doorbell, Some(srq.clone()));
                (doorbell, qp)
            })
            .collect();
        let [one, other]: [_; 2] = ends.try_into().unwrap();
        let worker = thread::spawn(move || deliver(&other.0, &other.1));
        let poster = thread::spawn(move || {
            for _ in 0..2 {
                srq.post_recv(RecvWr::default()).unwrap();
            }
        });
        deliver(&one.0, &one.1);
        worker.join().unwrap();
        poster.join().unwrap();
    });
}

/// The count of requests that is read without the lock is never stale for good.
#[test]
fn posted_requests_are_taken() {
    model(3, || {
        let (posted, post) = posted();
        let poster = {
            let posted = Arc::clone(&posted);
            thread::spawn(move || (0..2).for_each(|_| post(&posted)))
        };
        let mut taken = std::collections::VecDeque::new();
        posted.take_into(&mut taken, 1);
        poster.join().unwrap();
        posted.take_into(&mut taken, 1);
        posted.take_into(&mut taken, 1);
        assert_eq!((taken.len(), posted.is_empty()), (2, true));
    });
}
