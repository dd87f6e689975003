//! Requests that are posted all together or not at all.

use std::sync::Arc;

use super::{PostError, Qp};
use crate::verbs::receives::reserve;
use crate::verbs::{SendWr, WcStatus};

/// Requests for the send queue of one queue pair, posted all together or not at all. Each reserves
/// its place at [`push`](Self::push); dropping the batch releases the places. A reused batch
/// allocates only if it holds more requests than before.
#[derive(Debug)]
pub struct SendBatch {
    qp: Qp,
    requests: Vec<SendWr>,
}

impl Qp {
    /// An empty batch.
    #[must_use]
    pub fn batch(&self) -> SendBatch {
        SendBatch { qp: Self { shared: Arc::clone(&self.shared) }, requests: Vec::new() }
    }
}

impl SendBatch {
    /// Checks a request, reserves its place in the queue, and adds it. On a [`PostError`] the batch
    /// is unchanged.
    pub fn push(&mut self, wr: SendWr) -> Result<(), PostError> {
        let shared = &self.qp.shared;
        self.qp.check_send(&wr)?;
        reserve(&shared.sq_outstanding, shared.sq.depth())?;
        self.requests.push(wr);
        Ok(())
    }

    /// Posts all requests in order; the batch is empty then. If the queue pair is in error by now,
    /// they are flushed.
    pub fn post(&mut self) {
        let shared = &self.qp.shared;
        if self.requests.is_empty() {
            return;
        }
        shared.sq.extend(self.requests.drain(..));
        shared.press();
        // As for single requests: the engine may have flushed before `extend`.
        if shared.is_flushed.load(std::sync::atomic::Ordering::SeqCst) {
            shared.flush_posted_sends(WcStatus::WrFlushErr);
        }
    }

    /// Removes all requests: nothing was posted.
    pub fn clear(&mut self) {
        for _ in self.requests.drain(..) {
            self.qp.shared.send_completed();
        }
    }

    /// Number of requests.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if the batch is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

impl Drop for SendBatch {
    fn drop(&mut self) {
        self.clear();
    }
}
