//! Queue pairs.
#![expect(unsafe_code, reason = "C's pointers to queue pairs")]

pub(crate) mod batch;
pub(crate) mod create;
mod inline;
mod modify;
pub(crate) mod post;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use urnic::{QpConfig, QpState, Wc, WcStatus};

use crate::abi::{
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, ibv_cq,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_srq,
};
use crate::context::Context;
use crate::event_queue::{Unacknowledged, locked};
use crate::object::{CPtr, Object};
use crate::pd::Pd;
use crate::peer::link::Link;
use crate::process::{Process, QueuePair};
use crate::qp::batch::SendSide;
use crate::qp::create::Connects;
use crate::region::Registered;
use crate::section::Section;

pub(crate) struct Qp {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    /// Replaced by a reset.
    inner: RwLock<urnic::Qp>,
    config: QpConfig,
    number: u32,
    pub(crate) c: CPtr<ibv_qp>,
    cqs: [CPtr<ibv_cq>; 2],
    /// NULL if the queue pair has its own receive queue.
    srq: CPtr<ibv_srq>,
    last_wqe_told: AtomicBool,
    cap: ibv_qp_cap,
    connects: Connects,
    /// True if every request is signaled, even if it does not ask for a completion.
    all_signaled: bool,
    told: Mutex<ibv_qp_attr>,
    told_state: AtomicU32,
    send_side: Section<SendSide>,
    /// Posted Atomics, in posting order.
    fetches: Mutex<VecDeque<Fetch>>,
    /// True once an unsignaled Atomic was posted: the application does not get its completion.
    has_quiet_atomics: AtomicBool,
    /// Asynchronous events that C took and has not acknowledged.
    pub(crate) unacknowledged: Unacknowledged,
    id: Mutex<Option<Weak<dyn CarryingId>>>,
    link: Mutex<Option<Arc<Link>>>,
}

/// An rdma_cm id that carries the connection of a queue pair.
pub(crate) trait CarryingId: Send + Sync {
    /// Detaches the queue pair, which is destroyed, and closes the connection in order.
    fn qp_goes(&self, qp: &Arc<Qp>);

    /// Closes the connection in order after the error state: nothing more is sent.
    fn close(&self);
}

/// One Atomic. The engine always completes it: the value is stored at the completion.
#[derive(Debug)]
struct Fetch {
    /// Destination of the fetched value; `None` if the request names no memory that it may use.
    sink: Option<Sink>,
    signaled: bool,
}

/// Destination of eight bytes, valid as long as its region is registered.
#[derive(Debug)]
struct Sink {
    region: Weak<Registered>,
    addr: u64,
}

/// Every queue pair is made as an extended one; C's plain one is its first part.
type QpObject = Object<ibv_qp_ex, Arc<Qp>>;

/// # Safety
/// `qp` was made by this library and not destroyed.
pub(crate) unsafe fn qp<'a>(qp: *mut ibv_qp) -> &'a Arc<Qp> {
    // SAFETY: made in `create`, by this function's contract.
    unsafe { QpObject::of(qp.cast()) }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("number", &self.number()).finish_non_exhaustive()
    }
}

impl QueuePair for Qp {
    fn number(&self) -> u32 {
        self.number
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn inner(&self) -> urnic::Qp {
        self.inner().clone()
    }

    fn link(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.link().map(|link| link as _)
    }

    fn completes_to(&self, cq: *mut ibv_cq) -> bool {
        self.cqs.contains(&CPtr(cq))
    }

    fn receives_from(&self, srq: *mut ibv_srq) -> bool {
        self.srq == CPtr(srq)
    }

    fn store_fetched(&self, wc: &Wc) -> bool {
        self.store_fetched(wc)
    }

    fn tell_last_wqe(&self) {
        self.tell_last_wqe();
    }
}

impl Qp {
    pub(crate) fn by_number(process: &Process, number: u32) -> Option<Arc<Self>> {
        let found = process.with_qp(number, |qp| Arc::clone(qp).as_any())?;
        found.downcast().ok()
    }

    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn inner(&self) -> RwLockReadGuard<'_, urnic::Qp> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if its send or receive CQ holds completions, also those of other queue pairs.
    pub(crate) fn has_completions(&self) -> bool {
        let QpConfig { send_cq, recv_cq, .. } = &self.config;
        !send_cq.is_empty() || !recv_cq.is_empty()
    }

    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        locked(&self.link).clone()
    }

    pub(crate) fn set_id(&self, id: Weak<dyn CarryingId>) {
        *locked(&self.id) = Some(id);
    }

    fn id(&self) -> Option<Arc<dyn CarryingId>> {
        locked(&self.id).as_ref()?.upgrade()
    }

    /// Returns true if the application connects this queue pair, and it is not connected.
    pub(crate) fn may_be_carried(&self) -> bool {
        self.connects == Connects::Program
            && locked(&self.link).is_none()
            && locked(&self.id).as_ref().is_none_or(|id| id.strong_count() == 0)
    }

    /// Reports once that it is in error and has taken its last buffer from a shared queue.
    pub(crate) fn tell_last_wqe(&self) {
        if !self.srq.0.is_null() && !self.last_wqe_told.swap(true, Ordering::Relaxed) {
            self.context.events.of_qp(self.c, IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    fn told_state(&self) -> u32 {
        self.told_state.load(Ordering::Acquire)
    }

    /// State in C's numbers. The connection's state overrides the one that the application set.
    pub(crate) fn state(&self) -> u32 {
        let told = self.told_state();
        match self.inner().state() {
            QpState::Closing | QpState::Error => IBV_QPS_ERR,
            // Only for its own queue pair must the application call `ibv_modify_qp`.
            QpState::Rts if told < IBV_QPS_RTR && self.connects == Connects::Id => IBV_QPS_RTS,
            QpState::Rts | QpState::Init => told,
        }
    }

    /// Returns true from RTS on, and in error.
    fn takes_sends(&self) -> bool {
        let told = self.told_state();
        let is_followed = self.connects == Connects::Id && told < IBV_QPS_RTR;
        told >= IBV_QPS_RTS || (is_followed && self.inner().state() != QpState::Init)
    }

    /// Returns true from INIT on.
    fn takes_receives(&self) -> bool {
        self.told_state() != IBV_QPS_RESET || self.inner().state() != QpState::Init
    }

    /// Returns true if the application sees the completion.
    pub(crate) fn store_fetched(&self, wc: &Wc) -> bool {
        let fetch = locked(&self.fetches).pop_front();
        if wc.status != WcStatus::Success {
            return true;
        }
        let Some(Fetch { sink, signaled }) = fetch else { return true };
        if let Some(sink) = sink
            && let Some(region) = sink.region.upgrade()
        {
            region.store(sink.addr, wc.value);
        }
        signaled
    }
}
