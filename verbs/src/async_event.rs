//! Asynchronous events of a device: they report what no completion reports.
#![expect(unsafe_code, reason = "events name C's objects")]

use std::os::fd::RawFd;

use urnic::ConnectionEvent;

use crate::abi::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_SRQ_ERR,
    IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event, ibv_async_event_element, ibv_cq, ibv_qp, ibv_srq,
};
use crate::errno::Errno;
use crate::event_queue::EventQueue;
use crate::object::CPtr;

#[derive(Clone, Copy, Debug)]
pub(crate) enum AsyncEvent {
    Qp(CPtr<ibv_qp>, u32),
    Cq(CPtr<ibv_cq>, u32),
    Srq(CPtr<ibv_srq>, u32),
}

impl AsyncEvent {
    pub(crate) fn of_c(event: &ibv_async_event) -> Self {
        // The kind selects the field of the union; all fields are pointers.
        let of = event.element;
        let kind = event.event_type;
        match kind {
            // SAFETY: an event of a completion queue.
            IBV_EVENT_CQ_ERR => Self::Cq(CPtr(unsafe { of.cq }), kind),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: an event of a shared receive queue.
                Self::Srq(CPtr(unsafe { of.srq }), kind)
            }
            // SAFETY: all others are of queue pairs.
            _ => Self::Qp(CPtr(unsafe { of.qp }), kind),
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

/// An access that this end refused has an event of its own, as on InfiniBand.
pub(crate) fn error_event(event: &ConnectionEvent) -> u32 {
    match event {
        ConnectionEvent::Failed(error) if error.is_access_refusal() => IBV_EVENT_QP_ACCESS_ERR,
        _ => IBV_EVENT_QP_FATAL,
    }
}

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

    /// Waits for an event unless the descriptor is non-blocking. `count` counts it while no other
    /// thread can destroy its object.
    pub(crate) fn take_counted(
        &self,
        count: impl FnMut(&AsyncEvent),
    ) -> Result<ibv_async_event, Errno> {
        Ok(self.0.take(count)?.to_c())
    }

    pub(crate) fn forget_qp(&self, qp: CPtr<ibv_qp>) {
        self.0.remove(|event| matches!(event, AsyncEvent::Qp(of, _) if *of == qp));
    }

    pub(crate) fn forget_cq(&self, cq: CPtr<ibv_cq>) {
        self.0.remove(|event| matches!(event, AsyncEvent::Cq(of, _) if *of == cq));
    }

    pub(crate) fn forget_srq(&self, srq: CPtr<ibv_srq>) {
        self.0.remove(|event| matches!(event, AsyncEvent::Srq(of, _) if *of == srq));
    }
}
