//! The send queue of the engine: requests taken from the application until they complete.

use std::collections::VecDeque;

use crate::mem::SharedSlice;
use crate::mem::region::prefetch::{prefetch, prefetch_front};
use crate::rdmap::read::is_own;
use crate::stream::tx::confirmations::Confirmations;
use crate::types::{Stag, StreamOffset, TaggedOffset};
use crate::verbs::posted::make_room;
use crate::verbs::{QpRules, QpShared, SendOp, SendWr, Wc, WcStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Pending,
    /// All its bytes are before this stream position; done when TCP has acknowledged them.
    Framed(StreamOffset),
    /// Its Requests so far are framed before this position; done when all Responses are delivered.
    AwaitsResponse(StreamOffset),
    /// Completes when everything before it has. The value is the result of an Atomic.
    Done(StreamOffset, u64),
}

#[derive(Debug)]
struct Entry {
    progress: Progress,
    len: u32,
    /// Messages not yet framed to their end or, for Requests, not yet answered.
    messages_left: usize,
    /// The request completes only after the peer has confirmed it.
    confirm: bool,
}

impl Entry {
    fn new(wr: &SendWr, confirms: bool) -> Self {
        Self {
            progress: Progress::Pending,
            len: u32::try_from(wr.len()).expect("checked when posted"),
            messages_left: messages_of(wr),
            confirm: confirms && wr.signaled && wr.op.is_confirmable(),
        }
    }
}

fn messages_of(wr: &SendWr) -> usize {
    match wr.op {
        // One Request for each scatter element. A Read of no bytes is one Request, too.
        // spec: RDMAP-5.2.2-6
        SendOp::RdmaRead { .. } => wr.sges.len().max(1),
        // The Write and its Immediate Data.
        SendOp::RdmaWriteImmediate { .. } => 2,
        _ => 1,
    }
}

/// Limits the time for which a posting thread waits for the lock.
const TAKEN_AT_ONCE: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// Swapped if empty with the deque of posted requests: a request has a third of a KiB.
    requests: VecDeque<SendWr>,
    entries: VecDeque<Entry>,
    base: u64,
    next: u64,
    begun: usize,
    failed: bool,
    /// The request that an error concerns, with the status of its completion.
    fault: Option<(u64, WcStatus)>,
    /// Confirmations by the peer; `None` if none are requested, so that they cost nothing then.
    confirmations: Option<Box<Confirmations>>,
}

impl SendQueue {
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(oldest) = self.requests.front() {
            prefetch(oldest);
        }
        prefetch_front(&self.entries);
    }

    pub(crate) fn peek(&mut self, qp: &QpShared) -> Option<(u64, &SendWr)> {
        if self.failed {
            return None;
        }
        if self.index(self.next) >= self.entries.len() {
            let (before, confirms) = (self.requests.len(), self.confirms());
            qp.sq.take_into(&mut self.requests, TAKEN_AT_ONCE);
            if self.requests.len() == before {
                return None;
            }
            if before == 0 {
                // Resets the deque, so that it uses the beginning of its memory again.
                self.entries.clear();
            }
            let taken = self.requests.range(before..);
            make_room(&mut self.entries, taken.len());
            self.entries.extend(taken.map(|wr| Entry::new(wr, confirms)));
        }
        let index = self.index(self.next);
        Some((self.next, &self.requests[index]))
    }

    pub(crate) const fn begun(&self) -> usize {
        self.begun
    }

    /// A message of the request that `peek` returned. After its last one, `peek` returns the next.
    pub(crate) fn advance(&mut self) {
        self.begun += 1;
        if self.begun >= messages_of(self.request(self.next)) {
            self.begun = 0;
            self.next += 1;
        }
    }

    pub(crate) const fn is_oldest(&self, number: u64) -> bool {
        self.base == number
    }

    pub(crate) fn len_of(&self, number: u64) -> u32 {
        self.entry(number).len
    }

    pub(crate) fn framed(&mut self, number: u64, end: StreamOffset) {
        let index = self.index(number);
        let Some(entry) = self.entries.get_mut(index) else { return };
        if self.requests[index].op.awaits_response() {
            entry.progress = Progress::AwaitsResponse(end);
            return;
        }
        entry.messages_left = entry.messages_left.saturating_sub(1);
        if entry.messages_left == 0 {
            entry.progress = Progress::Framed(end);
            if entry.confirm
                && let Some(confirmations) = &mut self.confirmations
            {
                confirmations.framed(number, end);
            }
        }
    }

    pub(crate) fn confirm(&mut self) {
        self.confirmations = Some(Box::default());
    }

    /// Returns true if some requests may be done because of that.
    pub(crate) fn confirm_no_more(&mut self) -> bool {
        let Some(confirmations) = &mut self.confirmations else { return false };
        !std::mem::replace(&mut confirmations.are_over, true)
    }

    fn confirms(&self) -> bool {
        self.confirmations.as_ref().is_some_and(|confirmations| !confirmations.are_over)
    }

    /// Returns true if a framed request needs a confirmation that was not requested yet.
    #[inline]
    pub(crate) fn awaits_confirmation(&self) -> bool {
        self.confirmations.as_ref().is_some_and(|confirmations| confirmations.are_awaited())
    }

    /// Returns true if so much awaits confirmation that one is requested before more is sent.
    #[inline]
    pub(crate) fn is_confirmation_due(&self) -> bool {
        self.begun == 0
            && self.confirmations.as_ref().is_some_and(|confirmations| confirmations.are_due())
    }

    pub(crate) fn confirmations(&self) -> u64 {
        self.confirmations.as_ref().map_or(0, |confirmations| confirmations.count)
    }

    pub(crate) fn asked(&mut self) {
        if let Some(confirmations) = &mut self.confirmations {
            confirmations.asked(self.next);
        }
    }

    /// Its Response confirms the requests before. None is before a ready-to-receive Read.
    pub(crate) fn asked_behind(&mut self, number: u64) {
        if !is_own(number)
            && let Some(confirmations) = &mut self.confirmations
        {
            confirmations.asked_behind(number);
        }
    }

    pub(crate) fn confirmed(&mut self) {
        if let Some(confirmations) = &mut self.confirmations {
            confirmations.confirmed();
        }
    }

    pub(crate) fn answered(&mut self, number: u64, value: u64) {
        if let Some(confirmations) = &mut self.confirmations {
            confirmations.confirmed_before(number);
        }
        let index = self.index(number);
        let Some(entry) = self.entries.get_mut(index) else { return };
        entry.messages_left = entry.messages_left.saturating_sub(1);
        if let Progress::AwaitsResponse(end) = entry.progress
            && entry.messages_left == 0
        {
            entry.progress = Progress::Done(end, value);
        }
    }

    /// In the order of submission (RFC 5040 §5.5 rule 15). Returns false if a completion was lost.
    // spec: RDMAP-5.5-15
    #[must_use]
    pub(crate) fn complete(&mut self, qp: &QpShared, snd_una: StreamOffset) -> bool {
        let mut kept = true;
        while let Some(entry) = self.entries.front() {
            let value = match entry.progress {
                // spec: DDP-5.4-1, RDMAP-5.5-14
                Progress::Framed(end)
                    if end <= snd_una && !(entry.confirm && self.lacks_confirmation(self.base)) =>
                {
                    0
                }
                // A delivered Response proves that the Request arrived. But the descriptor of the
                // Request refers to this entry until it is acknowledged.
                Progress::Done(end, value) if end <= snd_una => value,
                _ => break,
            };
            // Frees the place first: who has polled a completion may post another request.
            qp.send_completed();
            let len = entry.len;
            if let Some(wr) = self.requests.front() {
                if wr.signaled {
                    kept &= qp.push_send(success(wr, len, qp, value));
                }
                if let Some(confirmations) = &mut self.confirmations {
                    confirmations.completed(self.base, wr, len);
                }
            }
            self.requests.pop_front();
            self.entries.pop_front();
            self.base += 1;
        }
        kept
    }

    /// A Write that raised no completion gets one in error.
    pub(crate) fn refused_at(&mut self, stag: Stag, to: TaggedOffset) {
        if let Some(confirmations) = &mut self.confirmations {
            confirmations.refused_at(stag, to);
        }
    }

    fn lacks_confirmation(&self, number: u64) -> bool {
        self.confirmations.as_ref().is_some_and(|confirmations| confirmations.lack(number))
    }

    pub(crate) fn blame(&mut self, number: u64, status: WcStatus) {
        self.fault.get_or_insert((number, status));
    }

    /// The blamed request gets its own status, the oldest `first`, others are flushed. Their memory
    /// belongs to the application again.
    pub(crate) fn fail(&mut self, qp: &QpShared, first: WcStatus) {
        self.failed = true;
        self.confirm_no_more();
        let mut status = first;
        let refused = self.confirmations.as_mut().and_then(|all| all.take_refused());
        if let Some((id, opcode)) = refused {
            let _lost_is_flagged = qp.push_send(Wc::failed(id, status, opcode, qp.number));
            status = WcStatus::WrFlushErr;
        }
        self.entries.clear();
        for (number, wr) in (self.base..).zip(self.requests.drain(..)) {
            let own = self.fault.filter(|(to_blame, _)| *to_blame == number);
            // The Terminate of RFC 7306 §8.2 does not tell a misaligned Atomic from other errors.
            if status == WcStatus::RemOpErr && qp.rules == QpRules::InfiniBand && is_misaligned(&wr)
            {
                status = WcStatus::RemInvReqErr;
            }
            qp.fail_send(&wr, own.map_or(status, |(_, status)| status));
            status = WcStatus::WrFlushErr;
        }
        qp.flush_posted_sends(status);
    }

    pub(crate) fn has_work(&self, qp: &QpShared) -> bool {
        !self.failed && (self.index(self.next) < self.entries.len() || !qp.sq.is_empty())
    }

    pub(crate) fn is_empty(&self, qp: &QpShared) -> bool {
        self.failed || (self.entries.is_empty() && qp.sq.is_empty())
    }

    /// Calls `each` with the runs of memory of `len` bytes of a request's payload from `offset` on.
    // spec: RDMAP-5.1-4
    pub(crate) fn payload<'a>(
        &'a self,
        number: u64,
        offset: u32,
        len: u32,
        each: &mut impl FnMut(SharedSlice<'a>),
    ) {
        let (mut skip, mut left) = (offset as usize, len as usize);
        for sge in &self.request(number).sges {
            if left == 0 {
                return;
            }
            let run_len = sge.len as usize;
            if skip >= run_len {
                skip -= run_len;
                continue;
            }
            let take = left.min(run_len - skip);
            let run = sge.region.slice(sge.offset + skip, take);
            each(run.expect("a scatter element was checked against its region when made"));
            skip = 0;
            left -= take;
        }
        assert!(left == 0, "payload beyond the request");
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.entries[self.index(number)]
    }

    fn request(&self, number: u64) -> &SendWr {
        &self.requests[self.index(number)]
    }

    fn index(&self, number: u64) -> usize {
        usize::try_from(number - self.base).expect("a queue fits the address space")
    }
}

const fn is_misaligned(wr: &SendWr) -> bool {
    match wr.op {
        SendOp::FetchAdd { remote, .. } | SendOp::CmpSwap { remote, .. } => {
            !remote.to.0.is_multiple_of(8)
        }
        _ => false,
    }
}

fn success(wr: &SendWr, len: u32, qp: &QpShared, value: u64) -> Wc {
    Wc {
        wr_id: wr.id,
        status: WcStatus::Success,
        opcode: wr.op.wc_opcode(),
        qp: qp.number,
        byte_len: len,
        invalidated: None,
        solicited: false,
        value,
    }
}
