//! Asynchronous events of destroyed objects: no event names a destroyed object, and a taken event
//! keeps its object.

use std::sync::mpsc::{RecvTimeoutError, channel};

use super::*;
use crate::abi::{
    IBV_EVENT_QP_FATAL, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_SEND_SOLICITED, ibv_async_event, ibv_srq,
    ibv_srq_init_attr,
};
use crate::async_event::AsyncEvents;
use crate::channel::{self, channel as behind};
use crate::cq::{ibv_ack_cq_events, ibv_destroy_cq, ibv_get_cq_event, req_notify_cq};
use crate::errno::Errno;
use crate::object::CPtr;
use crate::srq::{ibv_create_srq, ibv_destroy_srq};

/// An end, with a shared receive queue that its queue pair does not use.
struct Objects {
    end: End,
    srq: *mut ibv_srq,
}

/// An object of C, by the call that destroys it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Cq,
    Srq,
    Qp,
}

const KINDS: [Kind; 3] = [Kind::Qp, Kind::Cq, Kind::Srq];

impl Objects {
    fn new() -> Self {
        let end = End::new(4);
        let mut attr = ibv_srq_init_attr::zeroed();
        attr.attr.max_wr = 4;
        // SAFETY: a live domain, and attributes.
        let srq = unsafe { ibv_create_srq(end.pd, &raw mut attr) };
        Self { end, srq }
    }

    fn events(&self) -> &AsyncEvents {
        // SAFETY: an open device.
        &unsafe { context(self.end.context) }.events
    }

    /// Pushes two events of the object.
    fn befall(&self, kind: Kind) {
        for _ in 0..2 {
            match kind {
                Kind::Cq => self.events().of_cq(CPtr(self.end.cq), IBV_EVENT_CQ_ERR),
                Kind::Srq => self.events().of_srq(CPtr(self.srq), IBV_EVENT_SRQ_LIMIT_REACHED),
                Kind::Qp => self.events().of_qp(CPtr(self.end.qp), IBV_EVENT_QP_FATAL),
            }
        }
    }

    /// Returns the call that destroys the object.
    fn destroy(&self, kind: Kind) -> impl FnOnce() -> c_int + Send + 'static {
        let (cq, srq, qp) = (CPtr(self.end.cq), CPtr(self.srq), CPtr(self.end.qp));
        move || {
            // The wrappers may go to another thread, their pointers alone may not.
            let (cq, srq, qp) = (&cq, &srq, &qp);
            match kind {
                // SAFETY: live, and not used again.
                Kind::Cq => unsafe { ibv_destroy_cq(cq.0) },
                // SAFETY: as above.
                Kind::Srq => unsafe { ibv_destroy_srq(srq.0) },
                // SAFETY: as above.
                Kind::Qp => unsafe { ibv_destroy_qp(qp.0) },
            }
        }
    }
}

#[test]
fn no_event_names_an_object_that_was_destroyed() {
    let objects = Objects::new();
    let events = objects.events();
    rustix::io::ioctl_fionbio(borrowed(events.fd()), true).unwrap();
    // The queue pair first: it uses the queues.
    for kind in KINDS {
        objects.befall(kind);
        assert_eq!(objects.destroy(kind)(), 0, "{kind:?}");
        assert_eq!(
            events.take().map(|event| event.event_type),
            Err(Errno(libc::EAGAIN)),
            "{kind:?}"
        );
    }
}

#[test]
fn an_object_stays_until_its_events_are_acknowledged() {
    let objects = Objects::new();
    for kind in KINDS {
        objects.befall(kind);
        let taken: [ibv_async_event; 2] = [(); 2].map(|()| objects.events().take().unwrap());
        let (sender, ended) = channel();
        let destroy = objects.destroy(kind);
        let thread = thread::spawn(move || sender.send(destroy()).unwrap());
        for event in taken {
            let still = ended.recv_timeout(Duration::from_millis(50));
            assert_eq!(still, Err(RecvTimeoutError::Timeout), "{kind:?}");
            // SAFETY: taken, and acknowledged once.
            unsafe { AsyncEvents::acknowledge(&event) };
        }
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(0), "{kind:?}");
        thread.join().unwrap();
    }
}

#[test]
fn queues_in_use_stay() {
    let objects = Objects::new();
    assert_eq!(objects.destroy(Kind::Cq)(), libc::EBUSY);
    let mut attr = ibv_qp_init_attr::zeroed();
    (attr.send_cq, attr.recv_cq, attr.qp_type) = (objects.end.cq, objects.end.cq, IBV_QPT_RC);
    attr.srq = objects.srq;
    // SAFETY: live objects.
    let sharing = unsafe { create(objects.end.pd, &mut attr, true, Connects::Id) }.unwrap();
    assert_eq!(objects.destroy(Kind::Srq)(), libc::EBUSY);
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { ibv_destroy_qp(sharing) }, 0);
    assert_eq!(objects.destroy(Kind::Srq)(), 0);
    assert_eq!(objects.destroy(Kind::Cq)(), libc::EBUSY, "the first still uses it");
}

/// Completion events, which come by a channel, follow the same rule.
#[test]
fn a_channel_names_no_queue_that_was_destroyed() {
    let end = End::new(4);
    let of = channel::create(end.context).unwrap();
    // SAFETY: a live channel.
    let events = &unsafe { behind(of) }.events;
    // SAFETY: live objects.
    let make = || unsafe { ibv_create_cq(end.context, 4, ptr::null_mut(), of, 0) };
    let take = || {
        let (mut cq, mut told) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live channel, and memory for the answer.
        let answer = unsafe { ibv_get_cq_event(of, &raw mut cq, &raw mut told) };
        (answer == 0).then_some(cq)
    };
    // Two events, one of them taken.
    let (cq, other) = (make(), make());
    for cq in [cq, other, cq] {
        events.push(CPtr(cq));
    }
    assert_eq!(take(), Some(cq));
    let (sender, ended) = channel();
    let going = CPtr(cq);
    let thread = thread::spawn(move || {
        let going = &going;
        // SAFETY: live, and only used again to acknowledge its event.
        sender.send(unsafe { ibv_destroy_cq(going.0) }).unwrap();
    });
    let still = ended.recv_timeout(Duration::from_millis(50));
    assert_eq!(still, Err(RecvTimeoutError::Timeout));
    // SAFETY: its event was taken: it is live.
    unsafe { ibv_ack_cq_events(cq, 1) };
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(0));
    thread.join().unwrap();
    assert_eq!(take(), Some(other), "the second event went with its queue");
    // SAFETY: as above.
    unsafe { ibv_ack_cq_events(other, 1) };
    rustix::io::ioctl_fionbio(borrowed(events.fd()), true).unwrap();
    assert_eq!(take(), None);
    // SAFETY: live, and not used again.
    assert_eq!(unsafe { ibv_destroy_cq(other) }, 0);
}

/// A queue that is armed for solicited completions creates events for those alone.
#[test]
fn a_queue_armed_for_solicited_completions_is_quiet_until_one_comes() {
    let (a, mut b) = (End::new(16), End::new(16));
    let of = channel::create(b.context).unwrap();
    // SAFETY: live objects.
    b.cq = unsafe { ibv_create_cq(b.context, 16, ptr::null_mut(), of, 0) };
    b.qp = b.make_qp();
    let _connections = connect([&a, &b], false);
    // SAFETY: a live channel.
    let events = &unsafe { behind(of) }.events;
    rustix::io::ioctl_fionbio(borrowed(events.fd()), true).unwrap();
    // SAFETY: a live queue.
    let inner = &unsafe { crate::cq::cq(b.cq) }.inner;
    // SAFETY: as above.
    let arm = |solicited_only| assert_eq!(unsafe { req_notify_cq(b.cq, solicited_only) }, 0);
    let send = |flags| {
        let waiting = inner.len();
        assert_eq!(b.receive(1, &mut []), 0);
        let mut wr = ibv_send_wr::zeroed();
        (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED | flags);
        let mut bad = ptr::null_mut();
        // SAFETY: a live queue pair, and a request.
        assert_eq!(unsafe { post_send(a.qp, &raw mut wr, &raw mut bad) }, 0);
        until(|| inner.len() > waiting);
    };
    arm(1);
    send(0);
    thread::sleep(Duration::from_millis(20));
    assert!(events.take(|_| ()).is_err(), "it was not solicited");
    send(IBV_SEND_SOLICITED);
    until(|| events.take(|_| ()).is_ok());
    // All completions create events again.
    arm(0);
    send(0);
    until(|| events.take(|_| ()).is_ok());
}
