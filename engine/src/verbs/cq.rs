//! Completion queues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use crossbeam::queue::ArrayQueue;
use crossbeam::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};

use crate::limits::CQ_DEPTH_MAX;
use crate::types::QpNum;
use crate::verbs::alarm::Alarm;
use crate::verbs::{QueueError, Wc, WcStatus};

#[derive(Debug)]
struct CqShared {
    /// Held shared to push and to poll, which then go on side by side as far as the queue lets them,
    /// and alone to put another queue in its place or to take some completions out of it. Nothing is
    /// called under it.
    queue: ShardedLock<ArrayQueue<Wc>>,
    overflowed: AtomicBool,
    /// For any completion.
    alarm: Alarm,
    /// For those that the peer asks an event for, and errors.
    solicited: Alarm,
    /// For those that were lost.
    overflow: Alarm,
}

impl CqShared {
    // A panic of another holder leaves the queue whole: every step on it is one of its own.
    fn shared(&self) -> ShardedLockReadGuard<'_, ArrayQueue<Wc>> {
        self.queue.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> ShardedLockWriteGuard<'_, ArrayQueue<Wc>> {
        self.queue.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A completion queue: finished work requests of one or more queue pairs, in order for each.
///
/// Polling a completion happens after everything the request did to memory (Acquire). A handle is
/// a reference; clones share the queue.
#[derive(Clone, Debug)]
pub struct Cq {
    shared: Arc<CqShared>,
}

impl Cq {
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            shared: Arc::new(CqShared {
                queue: ShardedLock::new(ArrayQueue::new(depth)),
                overflowed: AtomicBool::new(false),
                alarm: Alarm::new(),
                solicited: Alarm::new(),
                overflow: Alarm::new(),
            }),
        }
    }

    /// Takes the oldest completion, if there is one.
    #[must_use]
    pub fn poll(&self) -> Option<Wc> {
        self.shared.shared().pop()
    }

    /// Completions waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.shared().len()
    }

    /// Whether no completion waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.shared().is_empty()
    }

    /// Completions it can hold.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.shared().capacity()
    }

    /// Makes it hold `depth` completions from now on. Those that wait stay, in their order
    /// (`ibv_resize_cq`).
    ///
    /// # Errors
    /// [`QueueError::CqDepth`] when `depth` is 0 or above [`CQ_DEPTH_MAX`], [`QueueError::CqWaiting`] when
    /// more completions wait than that; it keeps its depth then.
    pub fn resize(&self, depth: usize) -> Result<(), QueueError> {
        if !(1..=CQ_DEPTH_MAX).contains(&depth) {
            return Err(QueueError::CqDepth(depth));
        }
        let resized = ArrayQueue::new(depth);
        let mut queue = self.shared.alone();
        if queue.len() > depth {
            return Err(QueueError::CqWaiting(queue.len()));
        }
        while let Some(wc) = queue.pop() {
            let pushed = resized.push(wc);
            assert!(pushed.is_ok(), "there is a place for each that waits");
        }
        *queue = resized;
        Ok(())
    }

    /// Drops the completions of a queue pair that wait. The others stay, in their order.
    pub(crate) fn discard(&self, qp: QpNum) {
        let queue = self.shared.alone();
        for _ in 0..queue.len() {
            if let Some(wc) = queue.pop().filter(|wc| wc.qp != qp) {
                let pushed = queue.push(wc);
                assert!(pushed.is_ok(), "its own place is free");
            }
        }
    }

    /// Waits until what is being pushed just now is in the queue.
    pub(crate) fn settle(&self) {
        drop(self.shared.alone());
    }

    /// Whether a completion was ever lost for lack of room. The queue pairs that lost one are in
    /// error (RFC 5042 §6.4.6: overflow harms only the streams of this queue).
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed.load(Ordering::Acquire)
    }

    /// Asks for one call of `waker` at the next completion (`ibv_req_notify_cq`). Poll once more
    /// afterwards: completions that were there before give no call. All that ask are called, each
    /// once; of more than [`ALARM_WAKERS_MAX`](crate::limits::ALARM_WAKERS_MAX) the first is called
    /// early, and has a place of its own if it asks again. If more than twice that many tasks of one executor
    /// wait, those beyond may be called early again and again until the next completion.
    ///
    /// The call is made by a thread that moves data for queue pairs: it may post, ask again and revoke
    /// memory, but not wait for completions or for an endpoint.
    ///
    /// `CompChannel` of the library makes a descriptor of it that can be waited on.
    pub fn req_notify(&self, waker: &Waker) {
        self.shared.alarm.arm(waker);
    }

    /// The call that `waker` has asked for is wanted no more. It may be on its way.
    pub fn cancel_notify(&self, waker: &Waker) {
        self.shared.alarm.cancel(waker);
        self.shared.solicited.cancel(waker);
        self.shared.overflow.cancel(waker);
    }

    /// As [`req_notify`](Self::req_notify), but for the next completion of a receive that the sender
    /// asked an event for (RFC 5040 §5.3), or of a request that failed (`ibv_req_notify_cq` with
    /// `solicited_only`). The two are apart: each request gives one call.
    pub fn req_notify_solicited(&self, waker: &Waker) {
        self.shared.solicited.arm(waker);
    }

    /// Asks for one call of `waker` at the next completion that is lost for lack of room. Look at
    /// [`overflowed`](Self::overflowed) afterwards. For what the call may do see
    /// [`req_notify`](Self::req_notify).
    pub fn req_notify_overflow(&self, waker: &Waker) {
        self.shared.overflow.arm(waker);
    }

    /// Appends a completion, unless its queue pair raises none any more; `false` when it was lost.
    pub(crate) fn push(&self, wc: Wc, silent: &AtomicBool) -> bool {
        let solicits = wc.solicited || wc.status != WcStatus::Success;
        let pushed = {
            let queue = self.shared.shared();
            // Read under the lock: what is pushed before `discard` or `settle` has the lock is in the queue
            // by then, and afterwards the queue pair is seen to be silent.
            if silent.load(Ordering::Relaxed) {
                return true;
            }
            queue.push(wc).is_ok()
        };
        if !pushed {
            self.shared.overflowed.store(true, Ordering::Release);
            self.shared.overflow.ring();
        }
        self.shared.alarm.ring();
        if solicits || !pushed {
            self.shared.solicited.ring();
        }
        pushed
    }
}

#[cfg(test)]
mod tests;
