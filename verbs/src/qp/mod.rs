//! Queue pairs.
#![expect(unsafe_code, reason = "C's pointers to queue pairs")]

pub(crate) mod batch;
pub(crate) mod create;
mod inline;
mod modify;
pub(crate) mod post;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use urnic::{QpConfig, QpState, Wc, WcStatus};

use crate::abi::{
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, ibv_cq,
    ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_srq,
};
use crate::cm::id::Id;
use crate::context::Context;
use crate::event_queue::{Unacknowledged, locked};
use crate::mr::Registered;
use crate::object::{CPtr, Object};
use crate::pd::Pd;
use crate::peer::link::Link;
use crate::qp::batch::SendSide;
use crate::qp::create::Connects;
use crate::section::Section;

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    /// The engine's; another one after a reset.
    inner: RwLock<urnic::Qp>,
    /// What that is made with.
    config: QpConfig,
    number: u32,
    pub(crate) c: CPtr<ibv_qp>,
    cqs: [CPtr<ibv_cq>; 2],
    /// The shared queue that it takes receives from, or NULL.
    srq: CPtr<ibv_srq>,
    /// Whether the program was told that no more are taken.
    last_wqe_told: AtomicBool,
    cap: ibv_qp_cap,
    connects: Connects,
    /// Every request completes, whether it asks for that or not.
    all_signaled: bool,
    /// What the program has said by `ibv_modify_qp`.
    told: Mutex<ibv_qp_attr>,
    /// The state that it has come to by that.
    told_state: AtomicU32,
    /// What `ibv_post_send` and `ibv_wr_start` post from.
    send_side: Section<SendSide>,
    /// Atomics that were posted, in their order.
    fetches: Mutex<VecDeque<Fetch>>,
    /// Some of their completions are not for the program.
    has_quiet_atomics: AtomicBool,
    /// Asynchronous events that C has taken.
    pub(crate) unacknowledged: Unacknowledged,
    /// The connection that it belongs to, by rdma_cm.
    pub(crate) id: Mutex<Weak<Id>>,
    /// The connection that it has without rdma_cm.
    link: Mutex<Option<Arc<Link>>>,
}

/// One Atomic: the engine completes it always, since what it has fetched is stored then.
#[derive(Debug)]
struct Fetch {
    /// Where that is stored; `None` for a request that names no memory it may use.
    sink: Option<Sink>,
    /// The program has asked for a completion.
    signaled: bool,
}

/// A place for eight bytes, as long as its region is registered.
#[derive(Debug)]
struct Sink {
    region: Weak<Registered>,
    addr: u64,
}

/// Every queue pair is made as an extended one; C's plain one is its first part.
type QpObject = Object<ibv_qp_ex, Arc<Qp>>;

/// What is behind C's pointer.
///
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

impl Qp {
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// The engine's queue pair, as it is now.
    pub(crate) fn inner(&self) -> RwLockReadGuard<'_, urnic::Qp> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn completes_to(&self, cq: *mut ibv_cq) -> bool {
        self.cqs.contains(&CPtr(cq))
    }

    /// Whether completions wait in a queue of its own or of others too.
    pub(crate) fn has_completions(&self) -> bool {
        let QpConfig { send_cq, recv_cq, .. } = &self.config;
        !send_cq.is_empty() || !recv_cq.is_empty()
    }

    /// Its connection without rdma_cm, if it has come so far.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        locked(&self.link).clone()
    }

    /// Whether an id may carry it: it is the program's to connect, and not connected.
    pub(crate) fn may_be_carried(&self) -> bool {
        self.connects == Connects::Program
            && locked(&self.link).is_none()
            && locked(&self.id).strong_count() == 0
    }

    pub(crate) fn receives_from(&self, srq: *mut ibv_srq) -> bool {
        self.srq == CPtr(srq)
    }

    /// It is in error, and has taken its last buffer from a shared queue: told once.
    pub(crate) fn tell_last_wqe(&self) {
        if !self.srq.0.is_null() && !self.last_wqe_told.swap(true, Ordering::Relaxed) {
            self.context.events.of_qp(self.c, IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    fn told_state(&self) -> u32 {
        self.told_state.load(Ordering::Acquire)
    }

    /// Its state in C's numbers: what happened to the connection counts for more than what was said.
    pub(crate) fn state(&self) -> u32 {
        let told = self.told_state();
        match self.inner().state() {
            QpState::Closing | QpState::Error => IBV_QPS_ERR,
            // Connected by rdma_cm: the program need not say anything, unless it is its own.
            QpState::Rts if told < IBV_QPS_RTR && self.connects == Connects::Id => IBV_QPS_RTS,
            QpState::Rts | QpState::Init => told,
        }
    }

    /// Whether the send queue takes requests: from RTS on, in error too.
    fn takes_sends(&self) -> bool {
        let told = self.told_state();
        let is_followed = self.connects == Connects::Id && told < IBV_QPS_RTR;
        told >= IBV_QPS_RTS || (is_followed && self.inner().state() != QpState::Init)
    }

    /// Whether the receive queue takes buffers: from INIT on.
    fn takes_receives(&self) -> bool {
        self.told_state() != IBV_QPS_RESET || self.inner().state() != QpState::Init
    }

    /// Stores what a completed Atomic has fetched; whether the program is to see its completion.
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
