//! Chooses the next RDMA message to send and describes it.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::ddp::tx::Target;
use crate::mem::{HeldSlice, SharedSlice};
use crate::rdmap::read::{Awaited, Requester};
use crate::stream::fpdus::{Head, Source};
use crate::stream::send_queue::SendQueue;
use crate::types::{Msn, QueueNumber, Stag, StreamOffset, TaggedOffset};
use crate::verbs::{QpShared, RnicShared, SendOp, SendWr};
use crate::wire::ProtocolVersion;
use crate::wire::rdmap::{
    AtomicOpcode, AtomicRequest, AtomicResponse, Control, Opcode, ReadRequest,
};
use crate::wire::terminate::Terminate;

/// The number that stands for the ready-to-receive message where a work request's would.
pub(crate) const RTR_WORK: u64 = u64::MAX;

/// Octets after the DDP header that are not gathered from registered memory.
pub(crate) type Inline = ArrayVec<u8, 52>;

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) target: Target,
    pub(crate) opcode: Opcode,
    /// Octets that follow the DDP header of the only segment; empty when payload is gathered.
    pub(crate) inline: Inline,
    pub(crate) source: Source,
    /// Octets to gather.
    pub(crate) len: u32,
    /// Octets already framed.
    pub(crate) framed_len: u32,
}

impl Message {
    /// Octets of a ULPDU of this message with `payload_len` gathered octets.
    pub(crate) const fn ulpdu_len(&self, payload_len: u32) -> usize {
        self.target.header_len() + self.inline.len() + payload_len as usize
    }

    /// What its segments have in common.
    pub(crate) fn head(&self, version: ProtocolVersion) -> Head {
        let control = Control { version, opcode: self.opcode }.to_byte();
        Head { target: self.target, control, version, inline: self.inline.clone() }
    }
}

/// An answer to an inbound Read or Atomic, waiting to be sent or to be acknowledged.
#[derive(Debug)]
pub(crate) struct Response {
    kind: ResponseKind,
    /// FPDUs framed from it that are not acknowledged.
    unacknowledged: u32,
    framed: bool,
}

#[derive(Debug)]
pub(crate) enum ResponseKind {
    /// An RDMA Read Response.
    Read { sink: Stag, to: TaggedOffset, source: Option<HeldSlice>, len: u32 },
    /// An Atomic Response.
    Atomic(AtomicResponse),
}

/// Everything that can become a message, and the counters that number messages.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) send_queue: SendQueue,
    pub(crate) requester: Requester,
    responses: VecDeque<Response>,
    responses_base: u64,
    responses_next: u64,
    responses_unframed: usize,
    send_msn: Msn,
    request_msn: Msn,
    atomic_response_msn: Msn,
    atomic_request_id: u32,
    rtr: Option<SendOp>,
    terminate: Option<Terminate>,
    terminated: bool,
    /// A request was answered since the last look.
    answered: bool,
    /// Whose turn it is when both an answer and a request wait.
    response_turn: bool,
}

impl Messages {
    pub(crate) fn new(send_depth: usize, ord: u16, ird: u16) -> Self {
        Self {
            send_queue: SendQueue::with_capacity(send_depth),
            requester: Requester::new(ord),
            responses: VecDeque::with_capacity(usize::from(ird)),
            responses_base: 0,
            responses_next: 0,
            responses_unframed: 0,
            send_msn: Msn::FIRST,
            request_msn: Msn::FIRST,
            atomic_response_msn: Msn::FIRST,
            atomic_request_id: 0,
            rtr: None,
            terminate: None,
            terminated: false,
            answered: false,
            response_turn: false,
        }
    }

    /// The ready-to-receive message goes out before anything else (RFC 6581 §9.2).
    pub(crate) fn set_rtr(&mut self, op: SendOp) {
        self.rtr = Some(op);
    }

    /// The next message is this Terminate, and none follows it (RFC 5040 §5.4).
    pub(crate) fn terminate(&mut self, terminate: Terminate) {
        if !self.terminated && self.terminate.is_none() {
            self.terminate = Some(terminate);
        }
    }

    /// Nothing more is sent.
    pub(crate) fn stop(&mut self) {
        self.terminated = true;
        self.terminate = None;
    }

    /// Answers not yet framed to their end, for the bound on inbound Reads.
    pub(crate) const fn responses_unframed(&self) -> usize {
        self.responses_unframed
    }

    pub(crate) fn respond(&mut self, kind: ResponseKind) {
        self.responses.push_back(Response { kind, unacknowledged: 0, framed: false });
        self.responses_unframed += 1;
    }

    /// Whether something may wait to become a message.
    pub(crate) fn has_work(&self, qp: &QpShared) -> bool {
        !self.terminated
            && (self.terminate.is_some()
                || self.rtr.is_some()
                || self.response_index(self.responses_next) < self.responses.len()
                || self.send_queue.has_work(qp))
    }

    /// Whether nothing waits to become a message.
    pub(crate) fn is_idle(&self, qp: &QpShared) -> bool {
        self.terminated
            || (self.terminate.is_none()
                && self.rtr.is_none()
                && self.responses_unframed == 0
                && self.requester.is_idle()
                && self.send_queue.is_empty(qp))
    }

    /// The next message to frame, if any may go now.
    ///
    /// RFC 5040 §5.5 rule 13: messages go to DDP in the order they were posted. Answers to the
    /// peer's Reads are not ordered with them; the two take turns.
    pub(crate) fn next(&mut self, qp: &QpShared, rnic: &RnicShared) -> Option<Message> {
        if self.terminated {
            return None;
        }
        if let Some(terminate) = self.terminate.take() {
            self.terminated = true;
            return Some(terminate_message(&terminate));
        }
        if let Some(op) = self.rtr.take() {
            return Some(self.describe(&op, RTR_WORK, 0, Stag(1), TaggedOffset(0)));
        }
        self.response_turn = !self.response_turn;
        if self.response_turn {
            self.next_response().or_else(|| self.next_work(qp, rnic))
        } else {
            self.next_work(qp, rnic).or_else(|| self.next_response())
        }
    }

    fn next_response(&mut self) -> Option<Message> {
        let number = self.responses_next;
        let index = self.response_index(number);
        let response = self.responses.get(index)?;
        self.responses_next += 1;
        Some(match &response.kind {
            &ResponseKind::Read { sink, to, source: _, len } => Message {
                // RFC 5040 §4.4: the sink's STag and TO are copied uninterpreted.
                target: Target::Tagged { stag: sink, to },
                opcode: Opcode::ReadResponse,
                inline: Inline::new(),
                source: Source::Response(number),
                len,
                framed_len: 0,
            },
            ResponseKind::Atomic(answer) => {
                let msn = self.atomic_response_msn;
                self.atomic_response_msn = msn.next();
                Message {
                    target: untagged(QueueNumber::ATOMIC_RESPONSE, msn),
                    opcode: Opcode::AtomicResponse,
                    inline: inline(&answer.to_bytes()),
                    source: Source::Response(number),
                    len: 0,
                    framed_len: 0,
                }
            }
        })
    }

    fn next_work(&mut self, qp: &QpShared, rnic: &RnicShared) -> Option<Message> {
        loop {
            let idle = self.requester.is_idle();
            let room = self.requester.has_room();
            let (number, wr) = self.send_queue.peek(qp)?;
            // RFC 5040 §5.5, Appendix B: a fence waits for earlier Reads.
            if wr.fence && !idle {
                return None;
            }
            let op = wr.op;
            let awaits_response = matches!(
                op,
                SendOp::RdmaRead { .. } | SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. }
            );
            if awaits_response && !room {
                return None;
            }
            let (stag, to) = sink_of(wr);
            self.send_queue.advance();
            if let SendOp::LocalInvalidate { stag } = op {
                // A tag that is not (or no longer) the domain's own opens nothing, which is what was
                // asked for.
                let _nothing_to_revoke = rnic.table.invalidate_local(stag, qp.pd);
                // Done as soon as everything before it is.
                self.send_queue.framed(number, StreamOffset::ZERO);
                self.answered = true;
                continue;
            }
            let len = self.send_queue.len_of(number);
            return Some(self.describe(&op, number, len, stag, to));
        }
    }

    /// The message of a work request.
    fn describe(
        &mut self,
        op: &SendOp,
        number: u64,
        len: u32,
        sink: Stag,
        sink_to: TaggedOffset,
    ) -> Message {
        let source = if number == RTR_WORK { Source::Inline } else { Source::Work(number) };
        let gathered = |target, opcode| Message {
            target,
            opcode,
            inline: Inline::new(),
            source,
            len,
            framed_len: 0,
        };
        let whole = |target, opcode, octets: &[u8]| Message {
            target,
            opcode,
            inline: inline(octets),
            source,
            len: 0,
            framed_len: 0,
        };
        match *op {
            SendOp::Send { invalidate, solicited } => {
                let msn = self.send_msn;
                self.send_msn = msn.next();
                let invalidate_stag = invalidate.unwrap_or(Stag(0));
                let target = Target::Untagged { qn: QueueNumber::SEND, msn, invalidate_stag };
                gathered(target, send_opcode(invalidate.is_some(), solicited))
            }
            SendOp::RdmaWrite { remote } => {
                gathered(Target::Tagged { stag: remote.stag, to: remote.to }, Opcode::RdmaWrite)
            }
            SendOp::RdmaRead { remote } => {
                let request = ReadRequest {
                    sink_stag: sink,
                    sink_to,
                    size: len,
                    source_stag: remote.stag,
                    source_to: remote.to,
                };
                let awaited = Awaited::Read { stag: sink, to: sink_to, len, delivered_len: 0 };
                self.requester.sent(awaited, number);
                let msn = self.next_request_msn();
                let target = untagged(QueueNumber::READ_REQUEST, msn);
                whole(target, Opcode::ReadRequest, &request.to_bytes())
            }
            SendOp::Immediate { value, solicited } => {
                let msn = self.send_msn;
                self.send_msn = msn.next();
                let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
                whole(untagged(QueueNumber::SEND, msn), opcode, &value.to_be_bytes())
            }
            SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. } => {
                let request = self.atomic_request(op);
                let awaited = Awaited::Atomic { request_id: request.request_id };
                self.requester.sent(awaited, number);
                let msn = self.next_request_msn();
                let target = untagged(QueueNumber::READ_REQUEST, msn);
                whole(target, Opcode::AtomicRequest, &request.to_bytes())
            }
            SendOp::LocalInvalidate { .. } => unreachable!("invalidation sends no message"),
        }
    }

    fn next_request_msn(&mut self) -> Msn {
        // RFC 7306 §5.2.1: Atomic Requests share the sequence of Read Requests.
        let msn = self.request_msn;
        self.request_msn = msn.next();
        msn
    }

    fn atomic_request(&mut self, op: &SendOp) -> AtomicRequest {
        let request_id = self.atomic_request_id;
        self.atomic_request_id = request_id.wrapping_add(1);
        match *op {
            SendOp::FetchAdd { remote, add, mask } => AtomicRequest {
                opcode: AtomicOpcode::FetchAdd,
                request_id,
                stag: remote.stag,
                to: remote.to,
                data: add,
                mask,
                // RFC 7306 §5.2.1: Compare Data is zero, Compare Mask all ones.
                compare: 0,
                compare_mask: u64::MAX,
            },
            SendOp::CmpSwap { remote, compare, compare_mask, swap, swap_mask } => AtomicRequest {
                opcode: AtomicOpcode::CmpSwap,
                request_id,
                stag: remote.stag,
                to: remote.to,
                data: swap,
                mask: swap_mask,
                compare,
                compare_mask,
            },
            _ => unreachable!("only atomics are asked for"),
        }
    }

    /// `count` FPDUs of `source` were framed; with `end`, the last ends its message there.
    pub(crate) fn framed(&mut self, source: Source, count: u32, end: Option<StreamOffset>) {
        match source {
            Source::Inline => {}
            Source::Work(number) => {
                if let Some(end) = end {
                    self.send_queue.framed(number, end);
                }
            }
            Source::Response(number) => {
                let index = self.response_index(number);
                let response = &mut self.responses[index];
                response.unacknowledged += count;
                if end.is_some() {
                    response.framed = true;
                    self.responses_unframed -= 1;
                }
            }
        }
    }

    /// `count` FPDUs of `source` were acknowledged.
    pub(crate) fn acknowledged(&mut self, source: Source, count: u32) {
        let Source::Response(number) = source else { return };
        let index = self.response_index(number);
        self.responses[index].unacknowledged -= count;
        while self.responses.front().is_some_and(|r| r.framed && r.unacknowledged == 0) {
            self.responses.pop_front();
            self.responses_base += 1;
        }
    }

    /// The response to the request with this number was delivered, with `value` for an atomic.
    pub(crate) fn answered(&mut self, work: u64, value: u64) {
        if work != RTR_WORK {
            self.send_queue.answered(work, value);
            self.answered = true;
        }
    }

    /// Whether a request was answered, or done without any message, since the last call.
    pub(crate) const fn take_answered(&mut self) -> bool {
        std::mem::replace(&mut self.answered, false)
    }

    /// Calls `each` with the runs of registered memory that hold `len` octets of payload from
    /// `offset` on.
    pub(crate) fn payload<'a>(
        &'a self,
        source: Source,
        offset: u32,
        len: u32,
        mut each: impl FnMut(SharedSlice<'a>),
    ) {
        match source {
            Source::Inline => {}
            Source::Work(number) => self.send_queue.payload(number, offset, len, &mut each),
            Source::Response(number) => {
                let response = &self.responses[self.response_index(number)];
                if let ResponseKind::Read { source: Some(held), .. } = &response.kind {
                    each(held.slice().part(offset as usize, len as usize));
                }
            }
        }
    }

    /// The `len` octets of a payload from `offset` on, if they are one run of memory.
    pub(crate) fn contiguous(
        &self,
        source: Source,
        offset: u32,
        len: u32,
    ) -> Option<SharedSlice<'_>> {
        let mut whole = None;
        self.payload(source, offset, len, |run| {
            whole = (run.len() == len as usize).then_some(run);
        });
        whole
    }

    fn response_index(&self, number: u64) -> usize {
        usize::try_from(number - self.responses_base).expect("a queue fits the address space")
    }
}

fn untagged(qn: QueueNumber, msn: Msn) -> Target {
    Target::Untagged { qn, msn, invalidate_stag: Stag(0) }
}

fn inline(octets: &[u8]) -> Inline {
    octets.iter().copied().collect()
}

fn sink_of(wr: &SendWr) -> (Stag, TaggedOffset) {
    wr.sges.first().map_or((Stag(0), TaggedOffset(0)), |sge| (sge.stag, sge.to))
}

const fn send_opcode(invalidate: bool, solicited: bool) -> Opcode {
    match (invalidate, solicited) {
        (false, false) => Opcode::Send,
        (true, false) => Opcode::SendInvalidate,
        (false, true) => Opcode::SendSolicited,
        (true, true) => Opcode::SendSolicitedInvalidate,
    }
}

fn terminate_message(terminate: &Terminate) -> Message {
    Message {
        // RFC 5040 §5.4: one Terminate per direction, the first message of its queue.
        target: untagged(QueueNumber::TERMINATE, Msn::FIRST),
        opcode: Opcode::Terminate,
        inline: inline(&terminate.to_bytes()),
        source: Source::Inline,
        len: 0,
        framed_len: 0,
    }
}
