//! Requests that are posted together or not at all.

use std::sync::Arc;

use super::{PostError, Qp};
use crate::verbs::receives::reserve;
use crate::verbs::{SendWr, WcStatus};

/// Requests for the send queue of one queue pair, of which either all are posted or none. Each has its place
/// in the queue from [`push`](Self::push) on; dropped, they leave it.
///
/// It may be used again and again: then it allocates nothing but for more requests than ever before, of
/// which there are never more than the queue holds.
#[derive(Debug)]
pub struct SendBatch {
    qp: Qp,
    requests: Vec<SendWr>,
}

impl Qp {
    /// A batch of no requests yet.
    #[must_use]
    pub fn batch(&self) -> SendBatch {
        SendBatch { qp: Self { shared: Arc::clone(&self.shared) }, requests: Vec::new() }
    }
}

impl SendBatch {
    /// Adds a request, which is checked and has a place in the queue now.
    ///
    /// # Errors
    /// See [`PostError`]; the batch is as it was.
    pub fn push(&mut self, wr: SendWr) -> Result<(), PostError> {
        let shared = &self.qp.shared;
        self.qp.check_send(&wr)?;
        reserve(&shared.sq_outstanding, shared.sq.depth())?;
        self.requests.push(wr);
        Ok(())
    }

    /// Posts all of it, in order; it is empty then. What has changed since they were pushed is told as for
    /// requests posted then: they are flushed when the queue pair is in error by now.
    pub fn post(&mut self) {
        let shared = &self.qp.shared;
        if self.requests.is_empty() {
            return;
        }
        shared.sq.extend(self.requests.drain(..));
        shared.press();
        // As for single requests: there may be no stream left to flush them.
        if shared.is_flushed.load(std::sync::atomic::Ordering::SeqCst) {
            shared.flush_posted_sends(WcStatus::WrFlushErr);
        }
    }

    /// Takes all of it back: nothing was posted.
    pub fn clear(&mut self) {
        for _ in self.requests.drain(..) {
            self.qp.shared.send_completed();
        }
    }

    /// Requests in it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
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
