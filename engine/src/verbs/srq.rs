//! Shared receive queues: receives for the messages of several queue pairs.

use std::sync::{Arc, Weak};
use std::task::Waker;

use crate::limits::QP_DEPTH_MAX;
use crate::types::PdNum;
use crate::verbs::calls;
use crate::verbs::posted::Posted;
use crate::verbs::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, fence, lock};
use crate::verbs::{PostError, QpShared, QueueError, RecvWr};

/// A shared receive queue: buffers for the next messages of all queue pairs that were created with
/// it ([`QpConfig::srq`](crate::verbs::QpConfig::srq)). A message takes the oldest buffer when it
/// begins, which frees a place, and completes to the receive completion queue of its queue pair.
/// Messages of one queue pair complete in order. When a queue pair fails, the buffers that it has
/// taken complete with errors, and the others stay. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Srq {
    shared: Arc<SrqShared>,
}

#[derive(Debug)]
struct SrqShared {
    pd: PdNum,
    posted: Posted<RecvWr>,
    /// Number of buffers below which the application is notified; 0 for never.
    limit: AtomicUsize,
    limit_waker: Mutex<Option<Waker>>,
    /// There are queue pairs in `waiting`; changed only under its lock.
    awaited: AtomicBool,
    waiting: Mutex<Vec<Weak<QpShared>>>,
}

impl Srq {
    pub(crate) fn new(pd: PdNum, depth: usize) -> Result<Self, QueueError> {
        if !(1..=QP_DEPTH_MAX).contains(&depth) {
            return Err(QueueError::SrqDepth(depth));
        }
        Ok(Self {
            shared: Arc::new(SrqShared {
                pd,
                posted: Posted::new(depth),
                limit: AtomicUsize::new(0),
                limit_waker: Mutex::new(None),
                awaited: AtomicBool::new(false),
                waiting: Mutex::new(Vec::new()),
            }),
        })
    }

    /// Posts a buffer for the next message of any of its queue pairs. Errors: see [`PostError`].
    /// Memory registered for one queue pair only is refused.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        if wr.sges.iter().any(|sge| !sge.writable) && !wr.inaccessible {
            return Err(PostError::Scatter);
        }
        if !wr.inaccessible
            && wr.sges.iter().any(|sge| sge.pd != self.shared.pd || sge.only.is_some())
        {
            return Err(PostError::NotAssociated);
        }
        if wr.len() > u64::from(u32::MAX) {
            return Err(PostError::TooLong(wr.len()));
        }
        self.shared.posted.push(wr).map_err(|_| PostError::Full)?;
        // Pairs with the fence in `ask`: this side sees `awaited` or `ask` the posted buffer.
        fence(Ordering::SeqCst);
        if self.shared.awaited.load(Ordering::Relaxed) {
            self.tell_waiting();
        }
        Ok(())
    }

    /// Asks for one call of `waker` when a message takes a buffer and fewer than `limit` are left
    /// (`IBV_SRQ_LIMIT`). It replaces an earlier request; a `limit` of 0 only cancels that. The
    /// caller is as for [`Cq::req_notify`](crate::verbs::Cq::req_notify).
    pub fn arm_limit(&self, limit: usize, waker: &Waker) {
        let _dropped_after_the_lock = {
            let mut armed = lock(&self.shared.limit_waker);
            let before = armed.take();
            *armed = (limit > 0).then(|| waker.clone());
            self.shared.limit.store(limit, Ordering::Relaxed);
            before
        };
    }

    /// Number of buffers below which the application is notified; 0 without a pending request.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.shared.limit.load(Ordering::Relaxed)
    }

    /// Capacity in buffers.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.posted.depth()
    }

    /// Number of buffers that no message has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.posted.len()
    }

    /// Returns true if there is no buffer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.posted.is_empty()
    }

    pub(crate) fn pd(&self) -> PdNum {
        self.shared.pd
    }

    pub(super) fn take(&self) -> Option<RecvWr> {
        let wr = self.shared.posted.pop()?;
        let limit = self.limit();
        if limit > 0 && self.len() < limit {
            self.tell_limit();
        }
        Some(wr)
    }

    #[cold]
    fn tell_limit(&self) {
        let told = {
            let mut armed = lock(&self.shared.limit_waker);
            if self.len() >= self.limit() {
                return;
            }
            self.shared.limit.store(0, Ordering::Relaxed);
            armed.take()
        };
        calls::call(&mut told.into_iter().collect());
    }

    /// Notifies `qp`, not in the list yet, when the next buffer is posted. Check once more
    /// afterwards.
    pub(super) fn ask(&self, qp: &Arc<QpShared>) {
        {
            let mut waiting = lock(&self.shared.waiting);
            if waiting.len() == waiting.capacity() {
                // Before the list grows, remove queue pairs that no longer exist.
                waiting.retain(|qp| qp.strong_count() > 0);
            }
            waiting.push(Arc::downgrade(qp));
            self.shared.awaited.store(true, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// None of the messages of `qp` waits.
    pub(super) fn ask_no_more(&self, qp: &QpShared) {
        let mut waiting = lock(&self.shared.waiting);
        waiting.retain(|asked| !std::ptr::eq(asked.as_ptr(), qp));
        self.shared.awaited.store(!waiting.is_empty(), Ordering::Relaxed);
    }

    /// Notifies all waiting queue pairs: any of them may end before it takes the buffer.
    #[cold]
    fn tell_waiting(&self) {
        let waiting = {
            let mut waiting = lock(&self.shared.waiting);
            self.shared.awaited.store(false, Ordering::Relaxed);
            std::mem::take(&mut *waiting)
        };
        for qp in waiting.iter().filter_map(Weak::upgrade) {
            qp.receives.was_told();
            qp.press();
        }
    }
}
