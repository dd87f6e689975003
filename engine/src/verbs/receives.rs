//! The receives of a queue pair: where its stream takes them from, and how it learns of new ones.

use std::sync::Arc;

use crate::verbs::posted::Posted;
use crate::verbs::sync::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::verbs::{PostError, QpShared, RecvWr, Srq};

/// What becomes of a message of the peer for which no receive is posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiverNotReady {
    /// It ends the stream, and the peer gets a Terminate (RFC 5041 §7.1): the receiver is to post
    /// before the peer sends.
    #[default]
    Terminate,
    /// It waits in memory of the engine until a receive is posted, as with a retry count of 7 on
    /// InfiniBand (`rnr_retry`). RDMA Writes, Reads and Atomics behind it go on. When
    /// [`HELD_BYTES_MAX`](crate::limits::HELD_BYTES_MAX) bytes wait the peer's TCP has to wait,
    /// with everything it carries.
    Wait,
}

/// The receives that a stream may take.
#[derive(Debug)]
pub(crate) struct Receives {
    source: Source,
    not_ready: ReceiverNotReady,
    /// Messages wait for receives: the next one that is posted has to be told of.
    awaited: AtomicBool,
}

#[derive(Debug)]
enum Source {
    /// Receives of this queue pair, and how many have not completed.
    Own { posted: Posted<RecvWr>, outstanding: AtomicUsize },
    /// Those of a shared queue.
    Shared(Srq),
}

impl Receives {
    pub(super) fn new(depth: usize, srq: Option<Srq>, not_ready: ReceiverNotReady) -> Self {
        let own = || Source::Own { posted: Posted::new(depth), outstanding: AtomicUsize::new(0) };
        let source = srq.map_or_else(own, Source::Shared);
        Self { source, not_ready, awaited: AtomicBool::new(false) }
    }

    /// Whether messages wait for receives.
    pub(crate) fn may_be_late(&self) -> bool {
        self.not_ready == ReceiverNotReady::Wait
    }

    /// Whether other queue pairs take receives from the same queue.
    pub(crate) const fn are_shared(&self) -> bool {
        matches!(self.source, Source::Shared(_))
    }

    /// Posts one. Whether the stream waits for it, and is to be told.
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
        // Pairs with the fence in `take_or_ask`: of "posted" here and "awaited" there, at least one
        // is seen by the other side.
        fence(Ordering::SeqCst);
        Ok(self.awaited.load(Ordering::Relaxed))
    }

    /// Takes the oldest.
    pub(crate) fn take(&self) -> Option<RecvWr> {
        match &self.source {
            Source::Own { posted, .. } => posted.pop(),
            Source::Shared(srq) => srq.take(),
        }
    }

    /// Takes the oldest; if there is none, the next post tells `qp`, whose receives these are.
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

    /// Whether messages wait for receives now.
    pub(super) fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// The shared queue has told of a receive: it does so once.
    pub(super) fn was_told(&self) {
        self.awaited.store(false, Ordering::Relaxed);
    }

    /// No message waits any more.
    pub(crate) fn ask_no_more(&self, qp: &QpShared) {
        if self.awaited.swap(false, Ordering::Relaxed)
            && let Source::Shared(srq) = &self.source
        {
            srq.ask_no_more(qp);
        }
    }

    /// One has completed: its place is free.
    pub(crate) fn completed(&self) {
        if let Source::Own { outstanding, .. } = &self.source {
            outstanding.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Takes one of `depth` places, or says that there is none.
pub(super) fn reserve(outstanding: &AtomicUsize, depth: usize) -> Result<(), PostError> {
    outstanding
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < depth).then_some(n + 1))
        .map(drop)
        .map_err(|_| PostError::Full)
}
