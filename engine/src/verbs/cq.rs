//! Completion queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;

use crate::limits::CQ_DEPTH_MAX;
use crate::types::QpNum;
use crate::verbs::alarm::Alarm;
use crate::verbs::sync::{Mutex, MutexGuard, lock};
use crate::verbs::{QueueError, Wc, WcStatus};

/// Completions for which a queue has room at first; it has more when more wait at a time, and keeps it. So one
/// that is seldom used is small, however deep it may be. With fewer the same cache line would be written
/// for each of them, and it may have other things in it.
const ROOM_AT_FIRST: usize = 8;

// Two completion queues have no cache line in common.
#[derive(Debug)]
#[repr(align(128))]
struct CqShared {
    /// Nothing is called under the lock.
    waiting: Mutex<Waiting>,
    /// How many wait, so that a program that polls takes no lock to find none.
    len: AtomicUsize,
    overflowed: AtomicBool,
    /// For any completion.
    alarm: Alarm,
    /// For those that the peer asks an event for, and errors.
    solicited: Alarm,
    /// For those that were lost.
    overflow: Alarm,
}

/// Completions that wait to be polled, and how many there may be.
#[derive(Debug)]
struct Waiting {
    completions: VecDeque<Wc>,
    depth: usize,
}

impl Waiting {
    /// Appends one if there is room.
    fn push(&mut self, wc: Wc) -> bool {
        let (len, room) = (self.completions.len(), self.completions.capacity());
        if len >= self.depth {
            return false;
        }
        if len == room {
            let more = room.max(ROOM_AT_FIRST).min(self.depth - len);
            self.completions.reserve_exact(more);
        }
        self.completions.push_back(wc);
        true
    }
}

impl CqShared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// To be called under the lock, after a change.
    fn tell_len(&self, waiting: &Waiting) {
        self.len.store(waiting.completions.len(), Ordering::SeqCst);
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
                waiting: Mutex::new(Waiting { completions: VecDeque::new(), depth }),
                len: AtomicUsize::new(0),
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
        if self.is_empty() {
            return None;
        }
        let mut waiting = self.shared.waiting();
        let wc = waiting.completions.pop_front();
        self.shared.tell_len(&waiting);
        wc
    }

    /// Completions waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.len.load(Ordering::SeqCst)
    }

    /// Whether no completion waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Completions it can hold.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.waiting().depth
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
        let mut waiting = self.shared.waiting();
        let count = waiting.completions.len();
        if count > depth {
            return Err(QueueError::CqWaiting(count));
        }
        waiting.depth = depth;
        Ok(())
    }

    /// Drops the completions of a queue pair that wait. The others stay, in their order.
    pub(crate) fn discard(&self, qp: QpNum) {
        let mut waiting = self.shared.waiting();
        waiting.completions.retain(|wc| wc.qp != qp);
        self.shared.tell_len(&waiting);
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
    /// early.
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
            let mut waiting = self.shared.waiting();
            // Read under the lock: what is pushed before `discard` has the lock is discarded by it, and
            // afterwards the queue pair is seen to be silent.
            if silent.load(Ordering::Relaxed) {
                return true;
            }
            let pushed = waiting.push(wc);
            self.shared.tell_len(&waiting);
            pushed
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
