//! Asynchronous events of a device: what befell an object without a completion.
#![expect(unsafe_code, reason = "events name C's objects")]

use std::os::fd::RawFd;

use crate::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event,
    ibv_async_event_element, ibv_cq, ibv_qp, ibv_srq,
};
use crate::cq::cq;
use crate::errno::Errno;
use crate::event_queue::{EventQueue, Unacknowledged};
use crate::object::CPtr;
use crate::qp::qp;
use crate::srq::srq;

/// One event, to be told to C.
#[derive(Clone, Copy, Debug)]
enum AsyncEvent {
    /// Something of a queue pair.
    Qp(CPtr<ibv_qp>, u32),
    /// Something of a completion queue.
    Cq(CPtr<ibv_cq>, u32),
    /// Something of a shared receive queue.
    Srq(CPtr<ibv_srq>, u32),
}

impl AsyncEvent {
    /// The count of its object. An object takes its events out of the queue when it is destroyed, and
    /// waits for those that were taken: it is live.
    fn unacknowledged<'a>(&self) -> &'a Unacknowledged {
        match self {
            // SAFETY: live, as above.
            Self::Qp(of, _) => unsafe { &qp(of.0).unacknowledged },
            // SAFETY: live, as above.
            Self::Cq(of, _) => unsafe { &cq(of.0).async_unacknowledged },
            // SAFETY: live, as above.
            Self::Srq(of, _) => unsafe { &srq(of.0).unacknowledged },
        }
    }

    const fn to_c(self) -> ibv_async_event {
        let (element, event_type) = match self {
            Self::Qp(CPtr(qp), kind) => (ibv_async_event_element { qp }, kind),
            Self::Cq(CPtr(cq), kind) => (ibv_async_event_element { cq }, kind),
            Self::Srq(CPtr(srq), kind) => (ibv_async_event_element { srq }, kind),
        };
        ibv_async_event { element, event_type }
    }
}

/// The events of an open device.
#[derive(Debug)]
pub(crate) struct AsyncEvents(EventQueue<AsyncEvent>);

impl AsyncEvents {
    pub(crate) fn new() -> Result<Self, Errno> {
        EventQueue::new().map(Self)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.fd()
    }

    pub(crate) fn of_qp(&self, qp: CPtr<ibv_qp>, kind: u32) {
        self.0.push(AsyncEvent::Qp(qp, kind));
    }

    pub(crate) fn of_cq(&self, cq: CPtr<ibv_cq>, kind: u32) {
        self.0.push(AsyncEvent::Cq(cq, kind));
    }

    pub(crate) fn of_srq(&self, srq: CPtr<ibv_srq>, kind: u32) {
        self.0.push(AsyncEvent::Srq(srq, kind));
    }

    pub(crate) fn take(&self) -> Result<ibv_async_event, Errno> {
        Ok(self.0.take(|event| event.unacknowledged().taken())?.to_c())
    }

    /// C has looked at an event.
    ///
    /// # Safety
    /// It was taken, and is acknowledged once.
    pub(crate) unsafe fn acknowledge(event: &ibv_async_event) {
        // The kind says which field of the union there is; all are pointers.
        let of = event.element;
        let kind = event.event_type;
        let event = match kind {
            // SAFETY: an event of a completion queue.
            IBV_EVENT_CQ_ERR => AsyncEvent::Cq(CPtr(unsafe { of.cq }), kind),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: an event of a shared receive queue.
                AsyncEvent::Srq(CPtr(unsafe { of.srq }), kind)
            }
            // SAFETY: all others are of queue pairs.
            _ => AsyncEvent::Qp(CPtr(unsafe { of.qp }), kind),
        };
        event.unacknowledged().acknowledged(1);
    }

    /// A queue pair goes, and with it the events that were not taken.
    pub(crate) fn forget_qp(&self, qp: CPtr<ibv_qp>) {
        self.0.remove(|event| matches!(event, AsyncEvent::Qp(of, _) if *of == qp));
    }

    /// A completion queue goes, and with it the events that were not taken.
    pub(crate) fn forget_cq(&self, cq: CPtr<ibv_cq>) {
        self.0.remove(|event| matches!(event, AsyncEvent::Cq(of, _) if *of == cq));
    }

    /// The same for a shared receive queue.
    pub(crate) fn forget_srq(&self, srq: CPtr<ibv_srq>) {
        self.0.remove(|event| matches!(event, AsyncEvent::Srq(of, _) if *of == srq));
    }
}
