//! Completion queues.
//!
//! 1. A port or a posting thread pushes a completion under the shared lock, then rings the alarms.
//! 2. Applications poll under the shared lock: pushes and polls run concurrently.
//! 3. An application that is about to sleep arms an alarm, and polls once more.
//! 4. Resizing, discarding a queue pair's completions and `settle` hold the lock exclusively.
//!
//! Racy cases:
//!
//! - *A completion is pushed while an application goes to sleep.* The poll of step 3 finds it, or
//!   the ring wakes the application (`alarm`).
//! - *A queue pair ends while its completions are pushed.* `settle` waits for the pushes, so that
//!   `discard` finds all of them.
//! - *The queue is full.* The completion is lost, `overflowed` is set before the alarm rings, and
//!   the queue pair fails.
//!
//! No loom model: the queue and its lock are those of crossbeam, which loom cannot replace here. The
//! alarm has a model.

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
    /// Shared to push and to poll; exclusive to replace or remove. No waker is called under it.
    queue: ShardedLock<ArrayQueue<Wc>>,
    overflowed: AtomicBool,
    alarm: Alarm,
    solicited: Alarm,
    overflow: Alarm,
}

impl CqShared {
    // A panic of another holder leaves the queue consistent: every step on it is atomic.
    fn shared(&self) -> ShardedLockReadGuard<'_, ArrayQueue<Wc>> {
        self.queue.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> ShardedLockWriteGuard<'_, ArrayQueue<Wc>> {
        self.queue.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A completion queue: finished work requests of queue pairs, in order for each. A polled
/// completion is ordered after all memory accesses of its request (Acquire). Clones share the
/// queue.
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

    /// Number of waiting completions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.shared().len()
    }

    /// Returns true if no completion waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.shared().is_empty()
    }

    /// Capacity in completions.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.shared().capacity()
    }

    /// Changes the capacity to `depth` completions. Waiting completions stay, in their order
    /// (`ibv_resize_cq`). Errors: [`QueueError::CqDepth`] if `depth` is 0 or above
    /// [`CQ_DEPTH_MAX`], [`QueueError::CqWaiting`] if more completions wait.
    // spec: SEC-C-3
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

    pub(crate) fn discard(&self, qp: QpNum) {
        let queue = self.shared.alone();
        for _ in 0..queue.len() {
            if let Some(wc) = queue.pop().filter(|wc| wc.qp != qp) {
                let pushed = queue.push(wc);
                assert!(pushed.is_ok(), "its own place is free");
            }
        }
    }

    pub(crate) fn settle(&self) {
        drop(self.shared.alone());
    }

    /// Returns true if a completion was ever lost for lack of room. Only the queue pairs that lost
    /// one are in error (RFC 5042 §6.4.6).
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed.load(Ordering::Acquire)
    }

    /// Asks for one call of `waker` at the next completion (`ibv_req_notify_cq`). Poll once more
    /// afterwards: earlier completions cause no call. If more than
    /// [`ALARM_WAKERS_MAX`](crate::limits::ALARM_WAKERS_MAX) wait, the first is called early, and
    /// gets a place of its own if it asks again. If more than twice that many tasks of one executor
    /// wait, the excess tasks may be called early repeatedly.
    ///
    /// A thread that moves data for queue pairs makes the call: it may post, ask again and revoke
    /// memory, but must not wait for completions or for an endpoint.
    pub fn req_notify(&self, waker: &Waker) {
        self.shared.alarm.arm(waker);
    }

    /// Cancels the requests of `waker`. A call may already be on its way.
    pub fn cancel_notify(&self, waker: &Waker) {
        self.shared.alarm.cancel(waker);
        self.shared.solicited.cancel(waker);
        self.shared.overflow.cancel(waker);
    }

    /// Like [`req_notify`](Self::req_notify), for the next completion of a receive whose sender
    /// asked for an event (RFC 5040 §5.3), or of a failed request (`solicited_only`). Each kind
    /// causes one call.
    pub fn req_notify_solicited(&self, waker: &Waker) {
        self.shared.solicited.arm(waker);
    }

    /// Asks for one call of `waker`, like [`req_notify`](Self::req_notify), at the next completion
    /// that is lost for lack of room. Check [`overflowed`](Self::overflowed) afterwards.
    pub fn req_notify_overflow(&self, waker: &Waker) {
        self.shared.overflow.arm(waker);
    }

    /// Returns false if the completion was lost; a silent queue pair raises none.
    pub(crate) fn push(&self, wc: Wc, silent: &AtomicBool) -> bool {
        // spec: RDMAP-5.3-4
        let solicits = wc.solicited || wc.status != WcStatus::Success;
        let pushed = {
            let queue = self.shared.shared();
            // Read under the lock: `discard` and `settle` find completions pushed before they take
            // it, and later pushes see that the queue pair is silent.
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
