//! The receives of a queue pair, and the notification of its stream.

use std::sync::Arc;

use crate::verbs::posted::Posted;
use crate::verbs::sync::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::verbs::{PostError, QpShared, RecvWr, Srq};

/// The receives that a stream may take.
#[derive(Debug)]
pub(crate) struct Receives {
    source: Source,
    /// Messages may wait for receives.
    may_be_late: bool,
    /// Messages wait for receives: the next post must notify the stream.
    awaited: AtomicBool,
}

#[derive(Debug)]
enum Source {
    /// Receives of this queue pair, and the number that have not completed.
    Own { posted: Posted<RecvWr>, outstanding: AtomicUsize },
    /// Receives of a shared queue.
    Shared(Srq),
}

impl Receives {
    pub(super) fn new(depth: usize, srq: Option<Srq>, may_be_late: bool) -> Self {
        let own = || Source::Own { posted: Posted::new(depth), outstanding: AtomicUsize::new(0) };
        let source = srq.map_or_else(own, Source::Shared);
        Self { source, may_be_late, awaited: AtomicBool::new(false) }
    }

    /// Returns true if messages may wait for receives.
    pub(crate) const fn may_be_late(&self) -> bool {
        self.may_be_late
    }

    pub(crate) const fn are_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Posts a receive. Returns true if the stream waits for it and must be notified.
    pub(super) fn post(&self, wr: RecvWr) -> Result<bool, PostError> {
        let Source::Own { posted, outstanding } = &self.source else {
            return Err(PostError::SharedReceives);
        };
        reserve(outstanding, posted.depth())?;
        let pushed = posted.push(wr);
        assert!(pushed.is_ok(), "the queue has room for every reserved place");
        if !self.may_be_late() {
            return Ok(false);
        }
        // Pairs with the fence in `take_or_ask`: this side sees `awaited` or `take_or_ask` the
        // receive.
        fence(Ordering::SeqCst);
        Ok(self.awaited.load(Ordering::Relaxed))
    }

    pub(crate) fn take(&self) -> Option<RecvWr> {
        match &self.source {
            Source::Own { posted, .. } => posted.pop(),
            Source::Shared(srq) => srq.take(),
        }
    }

    /// If there is no receive, the next post notifies `qp`.
    pub(crate) fn take_or_ask(&self, qp: &Arc<QpShared>) -> Option<RecvWr> {
        self.take().or_else(|| {
            let asked_before = self.awaited.swap(true, Ordering::Relaxed);
            match &self.source {
                Source::Own { .. } => fence(Ordering::SeqCst),
                Source::Shared(_) if asked_before => return None,
                Source::Shared(srq) => srq.ask(qp),
            }
            self.take()
        })
    }

    pub(super) fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// The shared queue has reported a receive, once for each request.
    pub(super) fn was_told(&self) {
        self.awaited.store(false, Ordering::Relaxed);
    }

    /// No message waits.
    pub(crate) fn ask_no_more(&self, qp: &QpShared) {
        if self.awaited.swap(false, Ordering::Relaxed)
            && let Source::Shared(srq) = &self.source
        {
            srq.ask_no_more(qp);
        }
    }

    pub(crate) fn completed(&self) {
        if let Source::Own { outstanding, .. } = &self.source {
            outstanding.fetch_sub(1, Ordering::Release);
        }
    }
}

pub(super) fn reserve(outstanding: &AtomicUsize, depth: usize) -> Result<(), PostError> {
    outstanding
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < depth).then_some(n + 1))
        .map(drop)
        .map_err(|_| PostError::Full)
}
