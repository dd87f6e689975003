//! Shared receive queues: receives that the messages of several queue pairs take.

use std::sync::{Arc, Weak};
use std::task::Waker;

use crate::limits::QP_DEPTH_MAX;
use crate::types::PdNum;
use crate::verbs::calls;
use crate::verbs::posted::Posted;
use crate::verbs::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, fence, lock};
use crate::verbs::{PostError, QpShared, QueueError, RecvWr};

/// A shared receive queue: buffers for the next messages of all queue pairs that were made with it
/// ([`QpConfig::srq`](crate::verbs::QpConfig::srq)).
///
/// A message takes the oldest buffer when it begins, and completes to the receive queue of its queue
/// pair, which the completion names; messages of one queue pair complete in their order. A place is
/// free when its buffer is taken. When a queue pair fails, the buffers that it has taken complete with
/// errors, and the others stay. A handle is a reference; clones share the queue.
#[derive(Clone, Debug)]
pub struct Srq {
    shared: Arc<SrqShared>,
}

#[derive(Debug)]
struct SrqShared {
    pd: PdNum,
    posted: Posted<RecvWr>,
    /// Below how many buffers the program is to be told; 0 for never.
    limit: AtomicUsize,
    limit_waker: Mutex<Option<Waker>>,
    /// Whether there are queue pairs in `waiting`; changed only under its lock.
    awaited: AtomicBool,
    /// Queue pairs whose messages wait for a buffer, each once.
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

    /// Posts a buffer for the next message of any of its queue pairs.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted. Memory that was registered for one queue pair only is
    /// refused: any of them may take it.
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
        // Pairs with the fence in `ask`: of "posted" here and "awaited" there, at least one is seen by
        // the other side.
        fence(Ordering::SeqCst);
        if self.shared.awaited.load(Ordering::Relaxed) {
            self.tell_waiting();
        }
        Ok(())
    }

    /// Asks for one call of `waker` when a message takes a buffer and fewer than `limit` are left
    /// (`IBV_SRQ_LIMIT`). It takes the place of an earlier request; a `limit` of 0 only takes that
    /// back.
    ///
    /// The call is made by a thread that moves data for queue pairs, as those of
    /// [`Cq::req_notify`](crate::verbs::Cq::req_notify) are.
    pub fn arm_limit(&self, limit: usize, waker: &Waker) {
        let _dropped_after_the_lock = {
            let mut armed = lock(&self.shared.limit_waker);
            let before = armed.take();
            *armed = (limit > 0).then(|| waker.clone());
            self.shared.limit.store(limit, Ordering::Relaxed);
            before
        };
    }

    /// Below how many buffers the program is to be told; 0 when it was told, or has not asked.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.shared.limit.load(Ordering::Relaxed)
    }

    /// Buffers it can hold.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.posted.depth()
    }

    /// Buffers that no message has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.posted.len()
    }

    /// Whether there is no buffer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.posted.is_empty()
    }

    pub(crate) fn pd(&self) -> PdNum {
        self.shared.pd
    }

    /// Takes the oldest buffer.
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

    /// The next buffer that is posted is to be told to `qp`, which does not stand in the list yet. Look
    /// once more afterwards.
    pub(super) fn ask(&self, qp: &Arc<QpShared>) {
        {
            let mut waiting = lock(&self.shared.waiting);
            if waiting.len() == waiting.capacity() {
                // Before it grows: those of queue pairs that are no more.
                waiting.retain(|qp| qp.strong_count() > 0);
            }
            waiting.push(Arc::downgrade(qp));
            self.shared.awaited.store(true, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// No message of `qp` waits any more.
    pub(super) fn ask_no_more(&self, qp: &QpShared) {
        let mut waiting = lock(&self.shared.waiting);
        waiting.retain(|asked| !std::ptr::eq(asked.as_ptr(), qp));
        self.shared.awaited.store(!waiting.is_empty(), Ordering::Relaxed);
    }

    /// Tells all: any of them may be gone before it takes the buffer.
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
