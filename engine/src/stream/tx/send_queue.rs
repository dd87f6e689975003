//! The send queue as the engine sees it: requests taken from the application, in order, until
//! they complete.

use std::collections::VecDeque;

use crate::mem::SharedSlice;
use crate::mem::region::prefetch::{prefetch, prefetch_front};
use crate::rdmap::read::is_own;
use crate::stream::tx::confirmations::Confirmations;
use crate::types::StreamOffset;
use crate::verbs::posted::make_room;
use crate::verbs::{QpShared, SendOp, SendWr, Wc, WcStatus};

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Not framed to its end yet.
    Pending,
    /// All its bytes are before this point of the stream; done when TCP has acknowledged them.
    Framed(StreamOffset),
    /// Its Requests so far are framed before this point; done when all Responses are delivered.
    AwaitsResponse(StreamOffset),
    /// Done before this point of the stream; completes when everything before it has.
    Done(StreamOffset, u64),
}

/// What is known of a request that was taken.
#[derive(Debug)]
struct Entry {
    progress: Progress,
    len: u32,
    /// Messages that are still to be framed to their end or, of Requests, to be answered.
    messages_left: usize,
    /// It completes when the peer has confirmed it.
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

/// Messages that a request is sent as.
fn messages_of(wr: &SendWr) -> usize {
    match wr.op {
        // A Request for each element. A Read of no bytes is a Request all the same.
        SendOp::RdmaRead { .. } => wr.sges.len().max(1),
        // The Write, and Immediate Data.
        SendOp::RdmaWriteImmediate { .. } => 2,
        _ => 1,
    }
}

/// Requests that are copied from where the application has posted them at a time; a thread that posts waits
/// no longer than that takes.
const TAKEN_AT_ONCE: usize = 16;

/// Requests by number: 0 is the first the stream ever had.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    /// In the memory in which they were posted, if there was none when they were taken: a request is a third
    /// of a KiB, and of many connections each has one at a time.
    requests: VecDeque<SendWr>,
    /// One for each of them.
    entries: VecDeque<Entry>,
    /// Number of the front entry.
    base: u64,
    /// Number of the next entry to be started.
    next: u64,
    /// Messages of that entry that were begun.
    begun: usize,
    failed: bool,
    /// The request that an error is about, and how that is called.
    fault: Option<(u64, WcStatus)>,
    /// What the peer has confirmed; `None` where that is not asked for, so that it costs nothing there.
    confirmations: Option<Box<Confirmations>>,
}

impl SendQueue {
    /// The oldest request, or the place for the next, is needed soon.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(oldest) = self.requests.front() {
            prefetch(oldest);
        }
        prefetch_front(&self.entries);
    }

    /// The next request to start, with its number.
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
                // From the beginning of its memory, not on through all of it.
                self.entries.clear();
            }
            let taken = self.requests.range(before..);
            make_room(&mut self.entries, taken.len());
            self.entries.extend(taken.map(|wr| Entry::new(wr, confirms)));
        }
        let index = self.index(self.next);
        Some((self.next, &self.requests[index]))
    }

    /// Messages of the request that `peek` shows that were begun already.
    pub(crate) const fn begun(&self) -> usize {
        self.begun
    }

    /// A message of the request that `peek` showed begins. With the last of them the next request is next.
    pub(crate) fn advance(&mut self) {
        self.begun += 1;
        if self.begun >= messages_of(self.request(self.next)) {
            self.begun = 0;
            self.next += 1;
        }
    }

    /// Whether every request before this one has completed.
    pub(crate) const fn is_oldest(&self, number: u64) -> bool {
        self.base == number
    }

    /// Bytes of local memory in a request.
    pub(crate) fn len_of(&self, number: u64) -> u32 {
        self.entry(number).len
    }

    /// A whole message of the request is framed; its last byte is before `end`.
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

    /// From now on the peer is to confirm Writes and Sends that raise completions.
    pub(crate) fn confirm(&mut self) {
        self.confirmations = Some(Box::default());
    }

    /// Nothing is confirmed any more: what has waited for that is done. Returns whether there may be
    /// something.
    pub(crate) fn confirm_no_more(&mut self) -> bool {
        let Some(confirmations) = &mut self.confirmations else { return false };
        !std::mem::replace(&mut confirmations.are_over, true)
    }

    fn confirms(&self) -> bool {
        self.confirmations.as_ref().is_some_and(|confirmations| !confirmations.are_over)
    }

    /// Whether a request is framed whose confirmation was not asked for.
    #[inline]
    pub(crate) fn awaits_confirmation(&self) -> bool {
        self.confirmations.as_ref().is_some_and(|confirmations| confirmations.are_awaited())
    }

    /// Whether so much awaits a confirmation that it is asked for before more is sent.
    #[inline]
    pub(crate) fn is_confirmation_due(&self) -> bool {
        self.begun == 0
            && self.confirmations.as_ref().is_some_and(|confirmations| confirmations.are_due())
    }

    /// How often confirmations were asked for.
    pub(crate) fn confirmations(&self) -> u64 {
        self.confirmations.as_ref().map_or(0, |confirmations| confirmations.count)
    }

    /// A confirmation is asked for, of all that was started.
    pub(crate) fn asked(&mut self) {
        if let Some(confirmations) = &mut self.confirmations {
            confirmations.asked(self.next);
        }
    }

    /// Notes that a Read or an Atomic goes out: its Response confirms what is before it. No request is before
    /// a ready-to-receive Read.
    pub(crate) fn asked_behind(&mut self, number: u64) {
        if !is_own(number)
            && let Some(confirmations) = &mut self.confirmations
        {
            confirmations.asked_behind(number);
        }
    }

    /// The confirmation that was asked for is there.
    pub(crate) fn confirmed(&mut self) {
        if let Some(confirmations) = &mut self.confirmations {
            confirmations.confirmed();
        }
    }

    /// A response to a request was delivered, with `value` for an atomic.
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

    /// Raises completions for what is done, in order; `snd_una` is what TCP has acknowledged.
    /// Returns `false` when a completion was lost.
    ///
    /// RFC 5040 §5.5 rule 15: local completions come in the order of submission.
    #[must_use]
    pub(crate) fn complete(&mut self, qp: &QpShared, snd_una: StreamOffset) -> bool {
        let mut kept = true;
        while let Some(entry) = self.entries.front() {
            let value = match entry.progress {
                Progress::Framed(end)
                    if end <= snd_una && !(entry.confirm && self.lacks_confirmation(self.base)) =>
                {
                    0
                }
                // A delivered Response proves that the Request arrived, acknowledged or not; but
                // the descriptor of the Request refers to this entry until it is.
                Progress::Done(end, value) if end <= snd_una => value,
                _ => break,
            };
            // Before its completion can be polled: a program posts as many as it has polled.
            qp.send_completed();
            let len = entry.len;
            if let Some(wr) = self.requests.front().filter(|wr| wr.signaled) {
                kept &= qp.push_send(success(wr, len, qp, value));
            }
            self.requests.pop_front();
            self.entries.pop_front();
            self.base += 1;
        }
        kept
    }

    fn lacks_confirmation(&self, number: u64) -> bool {
        self.confirmations.as_ref().is_some_and(|confirmations| confirmations.lack(number))
    }

    /// The error that is about to end the stream is about this request.
    pub(crate) fn blame(&mut self, number: u64, status: WcStatus) {
        self.fault.get_or_insert((number, status));
    }

    /// Raises an error completion for every request: the one that is to blame gets its status, the
    /// oldest `first`; all others are flushed. Their memory is the
    /// program's again.
    pub(crate) fn fail(&mut self, qp: &QpShared, first: WcStatus) {
        self.failed = true;
        self.confirm_no_more();
        let mut status = first;
        self.entries.clear();
        for (number, wr) in (self.base..).zip(self.requests.drain(..)) {
            let own = self.fault.filter(|(to_blame, _)| *to_blame == number);
            qp.fail_send(&wr, own.map_or(status, |(_, status)| status));
            status = WcStatus::WrFlushErr;
        }
        qp.flush_posted_sends(status);
    }

    /// Whether a request may be started.
    pub(crate) fn has_work(&self, qp: &QpShared) -> bool {
        !self.failed && (self.index(self.next) < self.entries.len() || !qp.sq.is_empty())
    }

    /// Whether every request has completed.
    pub(crate) fn is_empty(&self, qp: &QpShared) -> bool {
        self.failed || (self.entries.is_empty() && qp.sq.is_empty())
    }

    /// Calls `each` with the runs of local memory that hold `len` bytes of a request's payload
    /// from `offset` on.
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
