//! Waking, resizing and discarding, also while others push and poll.

use std::thread;

use urnic_testkit::waker::counting;

use super::*;
use crate::types::WrId;
use crate::verbs::WcOpcode;

fn wc(id: u64, qp: u32) -> Wc {
    Wc::failed(WrId(id), WcStatus::Success, WcOpcode::Recv, QpNum(qp))
}

fn push(cq: &Cq, wc: Wc) -> bool {
    cq.push(wc, &AtomicBool::new(false))
}

fn drained(cq: &Cq) -> Vec<(u64, u32)> {
    std::iter::from_fn(|| cq.poll()).map(|wc| (wc.wr_id.0, wc.qp.0)).collect()
}

// spec: RDMAP-5.3-4
#[test]
fn a_queue_armed_for_solicited_events_is_quiet_until_one_comes() {
    let wc = wc(1, 1);
    let solicited = Wc { solicited: true, ..wc };
    let failed = Wc { status: WcStatus::WrFlushErr, ..wc };
    for wanted in [solicited, failed] {
        let ((calls, waker), cq) = (counting(), Cq::new(8));
        assert!(push(&cq, solicited), "before it is armed");
        cq.req_notify_solicited(&waker);
        assert!(push(&cq, wc) && push(&cq, wc));
        assert_eq!(calls.count(), 0);
        assert!(push(&cq, wanted) && push(&cq, wanted));
        assert_eq!(calls.count(), 1, "once for each request");
        cq.req_notify(&waker);
        assert!(push(&cq, wc));
        assert_eq!(calls.count(), 2, "any completion");
    }
}

#[test]
fn overflow_wakes_all_kinds_of_waiters() {
    let ((calls, waker), cq) = (counting(), Cq::new(1));
    let (lost, lost_waker) = counting();
    assert!(push(&cq, wc(1, 1)));
    cq.req_notify_solicited(&waker);
    cq.req_notify_overflow(&lost_waker);
    assert_eq!(lost.count(), 0, "none is lost yet");
    assert!(!push(&cq, wc(2, 1)) && cq.overflowed());
    assert!(!push(&cq, wc(3, 1)));
    assert_eq!((calls.count(), lost.count()), (1, 1));
    cq.req_notify_overflow(&lost_waker);
    cq.cancel_notify(&lost_waker);
    assert!(!push(&cq, wc(4, 1)));
    assert_eq!(lost.count(), 1, "cancelled");
}

#[test]
fn cancelled_notification_wakes_nobody() {
    let ((calls, waker), cq) = (counting(), Cq::new(1));
    cq.req_notify(&waker);
    cq.req_notify_solicited(&waker);
    cq.req_notify_overflow(&waker);
    cq.cancel_notify(&waker);
    assert!(push(&cq, Wc { solicited: true, ..wc(1, 1) }));
    assert!(!push(&cq, wc(2, 1)));
    assert_eq!(calls.count(), 0);
}

// spec: SEC-C-3
#[test]
fn resize_keeps_at_least_the_waiting_completions() {
    let cq = Cq::new(4);
    for id in 0..3 {
        assert!(push(&cq, wc(id, 1)));
    }
    assert_eq!(cq.resize(2), Err(QueueError::CqWaiting(3)));
    assert_eq!((cq.resize(3), cq.depth(), cq.len()), (Ok(()), 3, 3));
    assert!(!push(&cq, wc(3, 1)));
    assert_eq!(drained(&cq), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn a_resized_queue_keeps_what_waits_in_its_order() {
    let cq = Cq::new(4);
    let clone = cq.clone();
    for id in 0..6 {
        assert!(push(&cq, wc(id, 1)));
        if id < 2 {
            assert!(cq.poll().is_some());
        }
    }
    assert!(!push(&cq, wc(9, 1)), "full, and its ring has turned over");
    assert_eq!(cq.resize(3), Err(QueueError::CqWaiting(4)));
    assert_eq!(cq.resize(0), Err(QueueError::CqDepth(0)));
    assert_eq!(cq.resize(CQ_DEPTH_MAX + 1), Err(QueueError::CqDepth(CQ_DEPTH_MAX + 1)));
    assert_eq!((cq.depth(), cq.len()), (4, 4));
    cq.resize(6).unwrap();
    assert_eq!((clone.depth(), clone.len()), (6, 4));
    assert!(push(&clone, wc(6, 1)) && push(&clone, wc(7, 1)) && !push(&cq, wc(8, 1)));
    assert_eq!(drained(&clone), [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)]);
    cq.resize(1).unwrap();
    assert!(push(&cq, wc(1, 1)) && !push(&cq, wc(2, 1)));
}

#[test]
fn the_completions_of_one_queue_pair_are_discarded() {
    let cq = Cq::new(6);
    for id in 0..6 {
        assert!(push(&cq, wc(id, u32::from(id % 3 == 0))));
    }
    cq.discard(QpNum(1));
    assert_eq!(drained(&cq), [(1, 0), (2, 0), (4, 0), (5, 0)]);
    let silent = AtomicBool::new(true);
    let (calls, waker) = counting();
    cq.req_notify(&waker);
    assert!(cq.push(wc(1, 1), &silent) && cq.is_empty(), "nor does one come later");
    assert_eq!(calls.count(), 0);
}

/// Two queue pairs push while one thread polls and one resizes: each completion arrives once, in
/// order.
#[test]
fn resizing_loses_and_reorders_no_completion() {
    const COUNT: u64 = 20_000;
    let cq = Cq::new(64);
    let (done, mut next, mut polled) = (AtomicBool::new(false), [0; 2], 0);
    thread::scope(|scope| {
        for qp in 0..2 {
            let cq = &cq;
            scope.spawn(move || {
                for id in 0..COUNT {
                    // A full queue loses the completion, so it is pushed again.
                    while !push(cq, wc(id, qp)) {
                        thread::yield_now();
                    }
                }
            });
        }
        let (done, cq) = (&done, &cq);
        scope.spawn(move || {
            let mut depth = 1;
            while !done.load(Ordering::Relaxed) {
                let waiting = cq.resize(depth);
                assert!(matches!(waiting, Ok(()) | Err(QueueError::CqWaiting(_))));
                depth = depth % 200 + 7;
                thread::yield_now();
            }
        });
        while polled < 2 * COUNT {
            let Some(wc) = cq.poll() else {
                thread::yield_now();
                continue;
            };
            let expected = &mut next[wc.qp.0 as usize];
            assert_eq!(wc.wr_id.0, *expected);
            (*expected, polled) = (*expected + 1, polled + 1);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(cq.is_empty());
}

/// Two queue pairs push; the first becomes silent, `end` is called, and `after` checks the
/// completions of the first that are polled then. No completion of the first follows them.
fn end_while_pushing(end: impl Fn(&Cq), after: impl Fn(&[u64])) {
    let of_first = |cq: &Cq| {
        let all = drained(cq).into_iter();
        all.filter(|(_, qp)| *qp == 1).map(|(id, _)| id).collect::<Vec<_>>()
    };
    for _ in 0..500 {
        let (cq, silent) = (Cq::new(256), AtomicBool::new(false));
        thread::scope(|scope| {
            let pusher = scope.spawn(|| {
                for id in 0..100 {
                    assert!(cq.push(wc(id, 1), &silent) && push(&cq, wc(id, 2)));
                }
            });
            thread::yield_now();
            silent.store(true, Ordering::Release);
            end(&cq);
            after(&of_first(&cq));
            pusher.join().unwrap();
            assert_eq!(of_first(&cq), [0; 0]);
        });
    }
}

/// After a discard has returned, no completion of the queue pair is polled, also while another
/// thread pushes.
#[test]
fn a_discard_is_complete_when_it_returns() {
    end_while_pushing(|cq| cq.discard(QpNum(1)), |left| assert_eq!(left, [0; 0]));
}

/// After the end of its completions, a queue pair's waiting completions stay and none follows, also
/// while another thread pushes.
#[test]
fn an_end_of_completions_is_complete_when_it_returns() {
    end_while_pushing(Cq::settle, |left| assert!(left.iter().copied().eq(0..left.len() as u64)));
}
