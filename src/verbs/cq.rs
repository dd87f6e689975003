//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use crossbeam::queue::ArrayQueue;

use crate::verbs::Wc;
use crate::verbs::alarm::Alarm;

#[derive(Debug)]
struct CqShared {
    queue: ArrayQueue<Wc>,
    overflowed: AtomicBool,
    alarm: Alarm,
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
                queue: ArrayQueue::new(depth),
                overflowed: AtomicBool::new(false),
                alarm: Alarm::default(),
            }),
        }
    }

    /// Takes the oldest completion, if there is one.
    #[must_use]
    pub fn poll(&self) -> Option<Wc> {
        self.shared.queue.pop()
    }

    /// Completions waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.queue.len()
    }

    /// Whether no completion waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Completions it can hold.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.queue.capacity()
    }

    /// Whether a completion was ever lost for lack of room. The queue pairs that lost one are in
    /// error (RFC 5042 §6.4.6: overflow harms only the streams of this queue).
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed.load(Ordering::Acquire)
    }

    /// Asks for one call of `waker` at the next completion (`ibv_req_notify_cq`). Poll once more
    /// afterwards: completions that were there before give no call.
    ///
    /// [`CompChannel`](crate::driver::CompChannel) makes a descriptor of it that can be waited on.
    pub fn req_notify(&self, waker: &Waker) {
        self.shared.alarm.arm(waker);
    }

    /// Appends a completion; `false` when it was lost.
    pub(crate) fn push(&self, wc: Wc) -> bool {
        let pushed = self.shared.queue.push(wc).is_ok();
        if !pushed {
            self.shared.overflowed.store(true, Ordering::Release);
        }
        self.shared.alarm.ring();
        pushed
    }
}
