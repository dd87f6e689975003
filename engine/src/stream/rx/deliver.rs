//! Delivery: messages take effect in stream order (RFC 5040 §5.5, RFC 5041 §5.4).

use crate::mem::{Access, AtomicOp, TableLease};
use crate::rdmap::RdmapError;
use crate::stream::error::{StreamError, invalidate_refusal, read_refusal};
use crate::stream::rx::receive_queue::MessageAttributes;
use crate::stream::rx::{DeliveredWrites, InboundRequest, PlacedSegment, Placer};
use crate::stream::tx::ResponseKind;
use crate::types::Msn;
use crate::verbs::{QpRules, QpShared, RnicShared, WcOpcode};
use crate::wire::ddp::{DdpHeader, TaggedHeader, UntaggedHeader};
use crate::wire::rdmap::{AtomicOpcode, AtomicRequest, AtomicResponse, Opcode, ReadRequest};

impl Placer<'_, '_> {
    #[inline(always)]
    pub(super) fn try_deliver(&mut self, placed: &PlacedSegment) -> Result<(), StreamError> {
        match placed.header {
            DdpHeader::Tagged(header) => self.deliver_tagged(placed, &header),
            DdpHeader::Untagged(header) => self.deliver_untagged(placed, &header),
        }
    }

    #[inline(always)]
    fn deliver_tagged(
        &mut self,
        placed: &PlacedSegment,
        header: &TaggedHeader,
    ) -> Result<(), StreamError> {
        // RFC 5040 §5.1: an RDMA Write is not delivered to the ULP.
        // spec: RDMAP-5.1-1
        if placed.opcode == Opcode::ReadResponse {
            let requester = &mut self.messages.requester;
            let done = requester
                .deliver_read(header.stag, header.to, placed.len, header.last)
                .inspect_err(|_| self.messages.blame_oldest_request())?;
            if let Some((work, _len)) = done {
                // spec: RDMAP-5.2.2-3, RDMAP-5.5-19
                self.messages.answered(work, 0);
            }
        } else {
            self.deliver_write(placed.len, header.last);
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn deliver_write(&mut self, len: u32, last: bool) {
        let begins = !self.rx.writes.amid;
        self.rx.writes.deliver(len, last);
        // An empty Write is usually the RTR message, or a reminder to a silent responder.
        if len > 0 || !begins {
            self.qp.note_write(last);
        }
    }

    #[inline(never)]
    fn deliver_untagged(
        &mut self,
        placed: &PlacedSegment,
        header: &UntaggedHeader,
    ) -> Result<(), StreamError> {
        let &PlacedSegment { opcode, len, value: _, header: _ } = placed;
        let UntaggedHeader { msn, mo, last, .. } = *header;
        let len = len as usize;
        match opcode {
            Opcode::ReadRequest | Opcode::AtomicRequest => {
                let whole = self.rx.request_order.deliver(msn, mo, len, last)?;
                // RFC 5040 §4.4: a Read Request is a message of one segment.
                if whole.is_none() {
                    return Err(RdmapError::Stream.into());
                }
                // spec: RDMAP-5.2.1-2, RDMAP-5.5-12, RDMAP-5.5-17
                let request = self.rx.requests.pop_front().flatten();
                let Some(request) = request else { return Err(RdmapError::Stream.into()) };
                // On InfiniBand a message without a receive blocks everything behind it: an answer
                // says that everything sent before its request is delivered, and answers come in
                // the order of requests (RFC 5040 §5.5 rules 12 and 20).
                let waits = self.qp.rules == QpRules::InfiniBand;
                if waits && self.rx.receive_queue.wait_request(placed) {
                    self.rx.requests_waiting.push_back(request);
                    return Ok(());
                }
                self.deliver_request(request, placed, msn)
            }
            Opcode::AtomicResponse => {
                let whole = self.rx.atomic_order.deliver(msn, mo, len, last)?;
                let response = self.rx.atomic_responses.pop_front().flatten();
                let (Some(_), Some(response)) = (whole, response) else {
                    return Err(RdmapError::Stream.into());
                };
                let requester = &mut self.messages.requester;
                let work = requester
                    .deliver_atomic(response.request_id)
                    .inspect_err(|_| self.messages.blame_oldest_request())?;
                self.messages.answered(work, response.original);
                Ok(())
            }
            Opcode::Terminate => {
                self.rx.peer_terminate = self.rx.terminate.take();
                // RFC 5040 §5.4: nothing may follow a Terminate on its stream.
                Err(StreamError::PeerTerminated)
            }
            // spec: EXT-6.4-1
            _ => self.deliver_send(placed, header),
        }
    }

    fn deliver_send(
        &mut self,
        placed: &PlacedSegment,
        header: &UntaggedHeader,
    ) -> Result<(), StreamError> {
        self.complete_answered()?;
        if let Some((_, len)) = placed.about_a_write(self.rx.immediates) {
            // The length reported to the application must be the length that was written.
            let DeliveredWrites { len: written_len, amid } = self.rx.writes;
            if amid || written_len != len {
                return Err(RdmapError::Stream.into());
            }
        }
        let Self { rx, qp, rnic, lease, .. } = self;
        let at = (header.msn, header.mo);
        let immediates = rx.immediates;
        let attributes = || attributes(placed, immediates, qp, rnic, lease);
        rx.receive_queue.deliver(qp, placed, at, attributes)
    }

    /// Requests answered before complete first: the message may be the peer's reply.
    #[inline]
    pub(super) fn complete_answered(&mut self) -> Result<(), StreamError> {
        let kept = self.messages.complete_answered(self.qp);
        if kept { Ok(()) } else { Err(StreamError::CompletionQueueOverflow) }
    }

    pub(super) fn attributes(
        &mut self,
        last: &PlacedSegment,
    ) -> Result<MessageAttributes, StreamError> {
        attributes(last, self.rx.immediates, self.qp, self.rnic, self.lease)
    }

    fn deliver_request(
        &mut self,
        request: InboundRequest,
        placed: &PlacedSegment,
        msn: Msn,
    ) -> Result<(), StreamError> {
        match request {
            InboundRequest::Read(request) => {
                self.deliver_read_request(request, msn).inspect_err(|error| {
                    self.note_placed(*error, placed);
                    self.rx.note_read(&request);
                })
            }
            // spec: EXT-5.2.1-2, EXT-5.4-3, EXT-5.4-5, EXT-8.1-2
            InboundRequest::Atomic(request) => self.deliver_atomic_request(&request),
        }
    }

    pub(super) fn deliver_waiting_request(
        &mut self,
        placed: &PlacedSegment,
    ) -> Result<(), StreamError> {
        let request = self.rx.requests_waiting.pop_front();
        let (Some(request), DdpHeader::Untagged(header)) = (request, placed.header) else {
            return Err(RdmapError::Stream.into());
        };
        self.deliver_request(request, placed, header.msn)
    }

    fn deliver_read_request(&mut self, request: ReadRequest, msn: Msn) -> Result<(), StreamError> {
        // spec: RDMAP-4.4-2, RDMAP-5.2.1-3
        let ReadRequest { size, source_stag, source_to, .. } = request;
        // RFC 5040 §5.2.1: the source of a Read of size 0 is not checked; it is answered.
        // spec: RDMAP-5.2.1-6, SEC-R-16
        if size > 0 {
            self.qp.check_right(Access::REMOTE_READ).map_err(read_refusal)?;
            let guard = self.lease.open();
            let (pd, number) = (self.qp.pd, self.qp.number);
            guard
                // spec: RDMAP-5.2.1-5, RDMAP-7.2-3
                .check(source_stag, source_to, size as usize, Access::REMOTE_READ, pd, number)
                .map_err(read_refusal)?;
        }
        // spec: RDMAP-5.2.1-4
        self.messages.respond(ResponseKind::Read { request, msn });
        Ok(())
    }

    fn deliver_atomic_request(&mut self, request: &AtomicRequest) -> Result<(), StreamError> {
        self.qp.check_right(Access::REMOTE_ATOMIC).map_err(read_refusal)?;
        let guard = self.lease.open();
        let (pd, number) = (self.qp.pd, self.qp.number);
        let need = match self.qp.rules {
            QpRules::Iwarp | QpRules::IwarpWait => Access::FOR_ATOMIC,
            // On InfiniBand the right to atomics neither needs nor gives those to read and to write.
            QpRules::InfiniBand => Access::REMOTE_ATOMIC,
        };
        // RFC 7306 §8.2, and RFC 5040 §7.2 for the checks that RFC 7306 leaves out.
        let grant = guard
            // spec: EXT-8.2-3
            .check(request.stag, request.to, 8, need, pd, number)
            .map_err(read_refusal)?;
        let &AtomicRequest { data, mask, compare, compare_mask, .. } = request;
        // spec: EXT-1.1-1, EXT-5.2.1-4
        let op = match request.opcode {
            AtomicOpcode::FetchAdd => AtomicOp::FetchAdd { add: data, mask },
            AtomicOpcode::CmpSwap => {
                AtomicOp::CmpSwap { compare, compare_mask, swap: data, swap_mask: mask }
            }
            _ => return Err(RdmapError::UnexpectedOpcode.into()),
        };
        // RFC 7306 §5.1: a misaligned address leaves memory unchanged and ends the stream.
        // spec: EXT-5.4-8, EXT-8.2-2
        let original = grant.execute(op).map_err(|_| RdmapError::Stream)?;
        let request_id = request.request_id;
        // spec: EXT-5.2.1-3, EXT-5.2.1-7
        self.messages.respond(ResponseKind::Atomic(AtomicResponse { request_id, original }));
        Ok(())
    }
}

/// `last` is the last segment of the message.
fn attributes(
    last: &PlacedSegment,
    immediates: bool,
    qp: &QpShared,
    rnic: &RnicShared,
    lease: &mut TableLease<'_>,
) -> Result<MessageAttributes, StreamError> {
    let opcode = last.opcode;
    let mut invalidated = None;
    // spec: RDMAP-4.1-4
    if opcode.invalidates() {
        // spec: DDP-4.2-2
        let invalidate_stag = last.invalidate_stag();
        // RFC 5040 §5.3: invalidated at delivery, after all earlier Writes were placed.
        // spec: RDMAP-5.3-5, RDMAP-5.3-6
        lease.close();
        let done = rnic.table.invalidate_remote(invalidate_stag, qp.pd, qp.number);
        done.map_err(invalidate_refusal)?;
        invalidated = Some(invalidate_stag);
    }
    let (kind, value, byte_len) = match opcode {
        Opcode::Immediate | Opcode::ImmediateSolicited => match last.about_a_write(immediates) {
            Some((immediate, len)) => (WcOpcode::RecvWriteImmediate, immediate, Some(len)),
            // spec: EXT-6.1-1
            None => (WcOpcode::RecvImmediate, last.value, Some(8)),
        },
        Opcode::SendImmediate | Opcode::SendImmediateSolicited => {
            (WcOpcode::RecvSendImmediate, last.invalidate_stag().0.into(), None)
        }
        _ => (WcOpcode::Recv, 0, None),
    };
    let solicited = opcode.solicits_event();
    Ok(MessageAttributes { opcode: kind, value, byte_len, invalidated, solicited })
}
