//! Posting rules by state, and places in queues.

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::limits::CQ_DEPTH_MAX;
use crate::types::WrId;
use crate::verbs::{Rnic, RnicConfig};

fn qp() -> Qp {
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let (send_cq, recv_cq) = (rnic.create_cq(1).unwrap(), rnic.create_cq(1).unwrap());
    // As with `ibv_create_qp`: the application decides about the depth of completion queues.
    let config = QpConfig::with_cqs(send_cq, recv_cq);
    rnic.alloc_pd().create_qp(config).unwrap()
}

#[test]
fn a_queue_pair_is_claimed_once() {
    let qp = qp();
    assert!(qp.shared.claim());
    assert!(!qp.shared.claim());
    qp.shared.release_claim();
    assert!(qp.shared.claim(), "an attempt that came to nothing leaves it free");
    qp.shared.release_claim();
    qp.shared.set_state(QpState::Error);
    assert!(!qp.shared.claim(), "one that was used is of no use");
}

#[test]
fn depths_that_no_queue_has_are_refused() {
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    for depth in [0, CQ_DEPTH_MAX + 1, usize::MAX] {
        assert_eq!(rnic.create_cq(depth).err(), Some(QueueError::CqDepth(depth)));
    }
    for depth in [1, CQ_DEPTH_MAX] {
        assert_eq!(rnic.create_cq(depth).map(|cq| cq.depth()), Ok(depth));
    }
    let cq = rnic.create_cq(1).unwrap();
    for depth in [0, QP_DEPTH_MAX + 1, usize::MAX] {
        for (send_depth, recv_depth) in [(depth, 1), (1, depth)] {
            let config = QpConfig { send_depth, recv_depth, ..QpConfig::new(&cq) };
            let refused = rnic.alloc_pd().create_qp(config).err();
            assert_eq!(refused, Some(QueueError::QpDepth(depth)));
        }
    }
}

/// Posts again as soon as a completion notifies it.
struct PostAgain {
    qp: Qp,
    posted: AtomicUsize,
}

impl std::task::Wake for PostAgain {
    fn wake(self: Arc<Self>) {
        let receives = self.qp.post_recv(RecvWr::new(WrId(2), [])).is_ok();
        let sends = self.qp.post_send(SendWr::send(WrId(2), [])).is_ok();
        self.posted.fetch_add(usize::from(receives) + usize::from(sends), Ordering::Relaxed);
    }
}

#[test]
fn polled_request_has_freed_its_queue_slot() {
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let cq = rnic.create_cq(4).unwrap();
    let config = QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(&cq) };
    let qp = rnic.alloc_pd().create_qp(config).unwrap();
    qp.shared.set_state(QpState::Rts);
    qp.post_recv(RecvWr::new(WrId(1), [])).unwrap();
    qp.post_send(SendWr::send(WrId(1), [])).unwrap();
    let again = Arc::new(PostAgain { qp: qp.clone(), posted: AtomicUsize::new(0) });
    let waker = std::task::Waker::from(Arc::clone(&again));
    cq.req_notify(&waker);
    let receive = qp.shared.receives.take().unwrap();
    qp.shared.fail_receive(&receive, WcStatus::LocLenErr);
    assert_eq!(again.posted.load(Ordering::Relaxed), 1, "a receive");
    cq.req_notify(&waker);
    let send = qp.shared.sq.pop().unwrap();
    qp.shared.fail_send(&send, WcStatus::LocProtErr);
    assert_eq!(again.posted.load(Ordering::Relaxed), 2, "and a send");
}

#[test]
fn concurrent_claims_succeed_once() {
    for _ in 0..200 {
        let (qp, start) = (qp(), std::sync::Barrier::new(2));
        let claim = || {
            start.wait();
            usize::from(qp.shared.claim())
        };
        let claimed = std::thread::scope(|scope| {
            let other = scope.spawn(claim);
            claim() + other.join().unwrap()
        });
        assert_eq!(claimed, 1);
    }
}

// spec: DDP-5.2-2
#[test]
fn a_message_of_four_gibibytes_is_refused_and_one_byte_less_is_not() {
    const GIBIBYTE: usize = 1 << 30;
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(4).unwrap());
    let qp = pd.create_qp(QpConfig::new(&cq)).unwrap();
    qp.shared.set_state(QpState::Rts);
    // The memory is mapped, and never touched.
    let mr = pd.reg_mr(GIBIBYTE, Access::LOCAL_WRITE).unwrap();
    let sges = |last: usize| [GIBIBYTE, GIBIBYTE, GIBIBYTE, last].map(|len| mr.sge(0..len));
    let too_long = Err(PostError::TooLong(1 << 32));
    assert_eq!(qp.post_send(SendWr::send(WrId(1), sges(GIBIBYTE))), too_long);
    assert_eq!(qp.post_recv(RecvWr::new(WrId(1), sges(GIBIBYTE))), too_long);
    assert_eq!(qp.post_send(SendWr::send(WrId(2), sges(GIBIBYTE - 1))), Ok(()));
    assert_eq!(qp.post_recv(RecvWr::new(WrId(2), sges(GIBIBYTE - 1))), Ok(()));
}
