//! Selection of the next message: Terminate, RTR message, answers to the peer, posted requests.

use crate::mem::{Access, Refusal, SharedSlice, TableLease};
use crate::mpa::startup::RtrKind;
use crate::rdmap::read::{CONFIRMATION, RTR_WORK, Requester, is_own};
use crate::stream::error::StreamError;
use crate::stream::tx::message::{Message, RTR_STAG, Source, rtr_op, untagged};
use crate::stream::tx::responses::{ResponseKind, Responses};
use crate::stream::tx::send_queue::SendQueue;
use crate::types::{Msn, QueueNumber, Stag, StreamOffset, TaggedOffset};
use crate::verbs::{CompletionLevel, QpShared, RemoteBuffer, SendOp, SendWr, Sge, WcStatus};
use crate::wire::rdmap::{Opcode, ReadRequest};
use crate::wire::terminate::Terminate;

#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) send_queue: SendQueue,
    pub(crate) requester: Requester,
    responses: Responses,
    pub(super) snd_una: StreamOffset,
    pub(super) numbers: Numbers,
    rtr: Option<RtrKind>,
    terminate: Option<Box<Terminate>>,
    terminated: bool,
    /// A request was answered since the last [`complete_answered`](Self::complete_answered).
    answered: bool,
    /// The last call of [`next`](Self::next) preferred an answer: the next one prefers a request.
    response_turn: bool,
    /// The last message was a Write with immediate data: that data is next.
    immediate_follows: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// On queue 0: Sends and Immediate Data.
    pub(super) send: Msn,
    /// On queue 1: Read and Atomic Requests (RFC 7306 §5.2.1).
    pub(super) request: Msn,
    /// Identifier of the next Atomic Request.
    pub(super) atomic_id: u32,
}

impl Numbers {
    const fn first() -> Self {
        Self { send: Msn::FIRST, request: Msn::FIRST, atomic_id: 0 }
    }
}

impl Messages {
    pub(crate) fn new(ord: u16) -> Self {
        Self {
            send_queue: SendQueue::default(),
            requester: Requester::new(ord),
            responses: Responses::new(),
            snd_una: StreamOffset::ZERO,
            numbers: Numbers::first(),
            rtr: None,
            terminate: None,
            terminated: false,
            answered: false,
            response_turn: false,
            immediate_follows: false,
        }
    }

    pub(crate) fn confirmations(&self) -> u64 {
        self.send_queue.confirmations()
    }

    #[cfg(test)]
    pub(crate) const fn start_at(&mut self, msn: Msn) {
        self.numbers = Numbers { send: msn, request: msn, ..Numbers::first() };
        self.responses.start_at(msn);
    }

    /// Sends the ready-to-receive message before anything else (RFC 6581 §9.2).
    pub(crate) fn set_rtr(&mut self, kind: RtrKind) {
        self.rtr = Some(kind);
    }

    /// Makes this Terminate the next message, and the last one (RFC 5040 §5.4).
    pub(crate) fn terminate(&mut self, terminate: Box<Terminate>) {
        if !self.terminated && self.terminate.is_none() {
            self.terminate = Some(terminate);
        }
    }

    /// If `qp` wants that and Reads are allowed. `apart`: confirmations have their own unit of ORD.
    pub(crate) fn confirm(&mut self, qp: &QpShared, apart: bool) {
        self.requester.set_place_apart(apart);
        if qp.completion == CompletionLevel::Placed && self.requester.can_confirm() {
            self.send_queue.confirm();
        }
    }

    /// The peer has closed its half. Returns true if the application awaits no Response.
    pub(crate) fn peer_closed(&mut self) -> bool {
        let awaits_none = self.requester.peer_closed();
        if awaits_none {
            self.answered |= self.send_queue.confirm_no_more();
        }
        awaits_none
    }

    pub(crate) fn stop(&mut self) {
        // spec: RDMAP-5.4-2
        self.terminated = true;
        self.terminate = None;
    }

    pub(crate) const fn responses_unframed(&self) -> usize {
        self.responses.unframed()
    }

    pub(crate) fn respond(&mut self, kind: ResponseKind) {
        self.responses.push(kind);
    }

    /// Drops answers to Reads of no bytes when nothing can be sent: the peer does not miss them.
    pub(crate) fn forget_empty_answers(&mut self) {
        self.responses.forget_empty();
    }

    pub(crate) fn has_work(&self, qp: &QpShared) -> bool {
        !self.terminated
            && (self.terminate.is_some()
                || self.rtr.is_some()
                || self.responses.has_next()
                || self.send_queue.has_work(qp)
                || self.may_confirm())
    }

    /// Returns true if all that may become a message are answers to Reads of no bytes.
    pub(crate) fn owes_empty_answers_only(&self, qp: &QpShared) -> bool {
        self.responses.are_empty_ones()
            && !self.terminated
            && self.terminate.is_none()
            && self.rtr.is_none()
            && !self.send_queue.has_work(qp)
            && !self.may_confirm()
    }

    /// Returns true if the peer is owed an answer or a Terminate that is not framed.
    pub(crate) const fn owes(&self) -> bool {
        !self.terminated && (self.responses.unframed() > 0 || self.terminate.is_some())
    }

    pub(crate) fn is_idle(&self, qp: &QpShared) -> bool {
        self.terminated
            || (self.terminate.is_none()
                && self.rtr.is_none()
                && self.responses.unframed() == 0
                && self.requester.is_idle()
                && self.send_queue.is_empty(qp))
    }

    /// The next message to frame, if any may be sent now. Closes the lease while the table changes.
    /// RFC 5040 §5.5 rule 13: messages go to DDP in the order they were posted. Answers to the
    /// peer's Reads are not ordered with them: both alternate. On an error the request whose
    /// message cannot be built is blamed.
    // spec: DDP-5.3-1, RDMAP-5.1-3, RDMAP-5.2.1-2, RDMAP-5.5-13, EXT-5.2.1-2, EXT-6.3-3
    pub(crate) fn next(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
    ) -> Result<Option<Message>, StreamError> {
        if self.terminated {
            return Ok(None);
        }
        if let Some(terminate) = self.terminate.take() {
            self.terminated = true;
            return Ok(Some(terminate_message(&terminate)));
        }
        if self.immediate_follows {
            // Nothing may come between a Write and the Immediate Data that reports it.
            return self.next_work(qp, lease);
        }
        // spec: MPA2-5-2
        if let Some(kind) = self.rtr.take() {
            // RFC 5040 §6.1. The peer's Reply said how many Reads it accepts.
            // spec: MPA2-9.2-11
            if kind == RtrKind::ReadZero && !self.requester.has_place() {
                return Err(StreamError::OrdZero);
            }
            let op = rtr_op(kind);
            return Ok(self.describe(&op, RTR_WORK, 0, RTR_STAG, TaggedOffset(0)));
        }
        self.response_turn = !self.response_turn;
        // The answer to a confirmation completes the peer's Send. It goes before this end's reply
        // to that Send: devices keep this order.
        if (self.response_turn || self.responses.next_is_empty())
            && let Some(response) = self.responses.next()
        {
            return Ok(Some(response));
        }
        if self.send_queue.is_confirmation_due() && self.may_confirm() {
            return Ok(Some(self.confirmation()));
        }
        match self.next_work(qp, lease)? {
            None if self.may_confirm() => Ok(Some(self.confirmation())),
            None if !self.response_turn => Ok(self.responses.next()),
            work => Ok(work),
        }
    }

    /// Returns true if a confirmation is needed, was not requested yet and may be requested now.
    fn may_confirm(&self) -> bool {
        self.send_queue.awaits_confirmation() && self.requester.may_confirm()
    }

    fn next_work(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
    ) -> Result<Option<Message>, StreamError> {
        loop {
            let idle = self.requester.is_clear();
            let room = self.requester.has_room();
            let begun = self.send_queue.begun();
            let Some((number, wr)) = self.send_queue.peek(qp) else { return Ok(None) };
            // RFC 5040 §5.5, Appendix B: a fenced request waits for earlier Reads.
            if wr.fence && !idle && begun == 0 {
                return Ok(None);
            }
            let op = wr.op;
            if op.awaits_response() && !room && self.requester.may_ask() {
                return Ok(None);
            }
            let is_read = matches!(op, SendOp::RdmaRead { .. });
            let is_local = matches!(op, SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. });
            let sink = sink_of(wr, begun);
            // RFC 5040 §7.1 (1): a local error. Without this check of a Read, placement would
            // refuse a valid Response, and the Terminate would blame the peer.
            let failure = if wr.inaccessible || (is_read && !may_be_written(qp, lease, &wr.sges)) {
                Some((WcStatus::LocProtErr, StreamError::LocalProtection))
            } else if op.needs_agreement() && !qp.has_immediates() {
                // Posted before the peer's capabilities were known.
                Some((WcStatus::LocQpOpErr, StreamError::NoImmediates))
            } else if op.awaits_response() && !room {
                // RFC 5040 §6.1: posted before it was known that the ORD is 0.
                Some((WcStatus::LocQpOpErr, StreamError::OrdZero))
            } else if is_local {
                change_table(&op, qp, lease).err()
            } else {
                None
            };
            if let Some((status, error)) = failure {
                // The error ends the stream, so earlier requests complete first (§5.5 rule 15).
                if !self.send_queue.is_oldest(number) {
                    return Ok(None);
                }
                self.send_queue.blame(number, status);
                return Err(error);
            }
            self.send_queue.advance();
            if is_local {
                // Done as soon as every request before it is done.
                self.send_queue.framed(number, StreamOffset::ZERO);
                self.answered = true;
                continue;
            }
            if let SendOp::RdmaRead { remote } = op {
                let to = TaggedOffset(remote.to.0.wrapping_add(sink.before));
                let op = SendOp::RdmaRead { remote: RemoteBuffer { to, ..remote } };
                return Ok(self.describe(&op, number, sink.len, sink.stag, sink.to));
            }
            let len = self.send_queue.len_of(number);
            if let SendOp::RdmaWriteImmediate { remote, immediate, solicited } = op {
                self.immediate_follows = begun == 0;
                return Ok(if begun == 0 {
                    let write = SendOp::RdmaWrite { remote };
                    self.describe(&write, number, len, sink.stag, sink.to)
                } else {
                    Some(self.about_a_write(number, immediate, len, solicited))
                });
            }
            return Ok(self.describe(&op, number, len, sink.stag, sink.to));
        }
    }

    /// Records that `count` FPDUs of `source` were framed; with `end`, its message ends there.
    pub(crate) fn framed(&mut self, source: Source, count: u32, end: Option<StreamOffset>) {
        match source {
            Source::Inline => {}
            Source::Work(number) => {
                if let Some(end) = end {
                    self.send_queue.framed(number, end);
                }
            }
            Source::Response(number) => self.responses.framed(number, count, end.is_some()),
        }
    }

    pub(crate) fn acknowledged(&mut self, source: Source, count: u32) {
        if let Source::Response(number) = source {
            self.responses.acknowledged(number, count);
        }
    }

    /// Blames the oldest request: the peer's answer to it violates the protocol.
    pub(crate) fn blame_oldest_request(&mut self) {
        if let Some(work) = self.requester.oldest() {
            self.blame(work, WcStatus::BadRespErr);
        }
    }

    /// Blames the Read with this sink: its memory is no longer registered.
    pub(crate) fn blame_read(&mut self, stag: Stag, to: TaggedOffset, status: WcStatus) {
        if let Some(work) = self.requester.read_into(stag, to) {
            self.blame(work, status);
        }
    }

    fn blame(&mut self, work: u64, status: WcStatus) {
        if !is_own(work) {
            self.send_queue.blame(work, status);
        }
    }

    pub(crate) fn answered(&mut self, work: u64, value: u64) {
        if work == CONFIRMATION {
            self.send_queue.confirmed();
            self.answered = true;
        // spec: MPA2-9.2-10
        } else if work != RTR_WORK {
            self.send_queue.answered(work, value);
            self.answered = true;
        }
    }

    pub(crate) const fn has_answered(&self) -> bool {
        self.answered
    }

    const fn take_answered(&mut self) -> bool {
        std::mem::replace(&mut self.answered, false)
    }

    /// Requests that are answered or send no message. Returns false if a completion was lost.
    #[must_use]
    #[inline]
    pub(crate) fn complete_answered(&mut self, qp: &QpShared) -> bool {
        !self.take_answered() || self.send_queue.complete(qp, self.snd_una)
    }

    /// Calls `each` with the runs of memory of `len` bytes of payload from `offset` on.
    pub(crate) fn payload<'a>(
        &'a self,
        source: Source,
        offset: u32,
        len: u32,
        mut each: impl FnMut(SharedSlice<'a>),
    ) {
        match source {
            // Responses are not gathered: their payload is kept from framing on.
            Source::Inline | Source::Response(_) => {}
            Source::Work(number) => self.send_queue.payload(number, offset, len, &mut each),
        }
    }

    pub(crate) fn read_request(&self, source: Source) -> Option<(&ReadRequest, Msn)> {
        let Source::Response(number) = source else { return None };
        self.responses.read_request(number)
    }

    /// The `len` bytes of a payload from `offset` on, if they are in one run of memory.
    pub(crate) fn contiguous(
        &self,
        source: Source,
        offset: u32,
        len: u32,
    ) -> Option<SharedSlice<'_>> {
        if len == 0 {
            return None;
        }
        let mut whole = None;
        self.payload(source, offset, len, |run| {
            whole = (run.len() == len as usize).then_some(run);
        });
        whole
    }
}

// spec: RDMAP-5.4-1
fn terminate_message(terminate: &Terminate) -> Message {
    // RFC 5040 §5.4: one Terminate per direction, the first message of its queue.
    let target = untagged(QueueNumber::TERMINATE, Msn::FIRST);
    Message::inline(target, Opcode::Terminate, Source::Inline, &terminate.to_bytes())
}

fn may_be_written(qp: &QpShared, lease: &mut TableLease<'_>, sges: &[Sge]) -> bool {
    let table = lease.open();
    sges.iter().filter(|sge| sge.len > 0).all(|sge| {
        let (len, need) = (sge.len as usize, Access::LOCAL_WRITE);
        table.check(sge.stag, sge.to, len, need, qp.pd, qp.number).is_ok()
    })
}

/// A failed request is retried until everything before it has completed.
#[cold]
fn change_table(
    op: &SendOp,
    qp: &QpShared,
    lease: &mut TableLease<'_>,
) -> Result<(), (WcStatus, StreamError)> {
    lease.close();
    match op {
        SendOp::LocalInvalidate { stag } => {
            match lease.table().invalidate_local(*stag, qp.pd, qp.number) {
                // A tag outside the domain gives no access: what the request asks for.
                Ok(()) | Err(Refusal::InvalidStag | Refusal::NotAssociated) => Ok(()),
                Err(refusal) => Err((WcStatus::LocQpOpErr, StreamError::LocalInvalidate(refusal))),
            }
        }
        SendOp::BindMw { bind } => lease
            .table()
            .bind(bind, qp.pd, qp.number)
            .map_err(|error| (WcStatus::MwBindErr, StreamError::MwBind(error))),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy)]
struct Sink {
    stag: Stag,
    to: TaggedOffset,
    len: u32,
    /// Bytes that the preceding Requests ask for.
    before: u64,
}

/// Sink of message `number` of a request. A Read of no bytes needs none.
fn sink_of(wr: &SendWr, number: usize) -> Sink {
    let before = wr.sges.iter().take(number).map(|sge| u64::from(sge.len)).sum();
    let none = Sink { stag: RTR_STAG, to: TaggedOffset(0), len: 0, before };
    wr.sges.get(number).map_or(none, |&Sge { stag, to, len, .. }| Sink { stag, to, len, before })
}
