//! Receive: from a valid FPDU to memory (placement), then to the application (delivery).
//!
//! ```text
//! mpa::rx ─ FPDU, in any order ─→ place: DDP header, opcode, buffer, copy
//!         └ FPDUs, in order ────→ deliver: completion, Response, invalidation, Terminate
//! ```
//!
//! Every check that can refuse a segment runs before its first octet is copied.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::counters::RdmaRxCounters;
use crate::ddp::untagged::UntaggedQueue;
use crate::ddp::{self, DdpError};
use crate::mem::{Access, AtomicOp, Refusal, TableLease};
use crate::mpa::rx::{FpduSink, HEAD_LEN, Ulpdu};
use crate::rdmap::{self, RdmapError};
use crate::stream::error::StreamError;
use crate::stream::messages::{Messages, ResponseKind};
use crate::stream::receive_queue::{Brings, ReceiveQueue};
use crate::types::{QueueNumber, StreamOffset};
use crate::verbs::{QpShared, RnicShared};
use crate::wire::ProtocolVersion;
use crate::wire::ddp::{DdpHeader, TaggedHeader, UntaggedHeader};
use crate::wire::rdmap::{
    AtomicOpcode, AtomicRequest, AtomicResponse, IMMEDIATE_DATA_LEN, Opcode, ReadRequest,
};
use crate::wire::terminate::{Terminate, TerminateCode};

/// What delivery has to know of a segment that was placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    header: DdpHeader,
    opcode: Opcode,
    /// Octets after the DDP header.
    len: u32,
    /// The eight octets of Immediate Data.
    value: u64,
}

/// A request of the peer that was placed and waits for its delivery.
#[derive(Clone, Copy, Debug)]
enum PeerRequest {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// The receive side of an RDMAP stream in full operation.
#[derive(Debug)]
pub(crate) struct RxState {
    pub(crate) receive_queue: ReceiveQueue,
    version: ProtocolVersion,
    /// Order of Read and Atomic Requests (queue number 1).
    request_order: UntaggedQueue,
    /// Requests placed ahead of delivery, by distance from the next one.
    requests: VecDeque<Option<PeerRequest>>,
    ird: u16,
    /// Order of Atomic Responses (queue number 3).
    atomic_order: UntaggedQueue,
    atomic_responses: VecDeque<Option<AtomicResponse>>,
    ord: u16,
    /// The peer's Terminate, placed; then delivered.
    terminate: Option<Terminate>,
    pub(crate) peer_terminate: Option<Terminate>,
    /// What to tell the peer about the first error.
    pub(crate) fault: Option<Terminate>,
    counters: RdmaRxCounters,
    /// Octets of the last FPDU placed, until it is delivered or another is placed.
    last_placed: u64,
}

impl RxState {
    pub(crate) fn new(
        version: ProtocolVersion,
        ird: u16,
        ord: u16,
        recv_depth: usize,
        absorb_rtr_send: bool,
    ) -> Self {
        Self {
            receive_queue: ReceiveQueue::with_capacity(recv_depth, absorb_rtr_send),
            version,
            request_order: UntaggedQueue::new(),
            requests: VecDeque::with_capacity(usize::from(ird)),
            ird,
            atomic_order: UntaggedQueue::new(),
            atomic_responses: VecDeque::with_capacity(usize::from(ord)),
            ord,
            terminate: None,
            peer_terminate: None,
            fault: None,
            counters: RdmaRxCounters::default(),
            last_placed: 0,
        }
    }

    pub(crate) const fn counters(&self) -> RdmaRxCounters {
        let mut counters = self.counters;
        counters.bytes_placed_out_of_order += self.last_placed;
        counters
    }

    /// An FPDU comes. MPA delivers one that is in order right after it was placed, so the one
    /// before, if still undelivered, was ahead.
    const fn count_ahead(&mut self) {
        self.counters.bytes_placed_out_of_order += self.last_placed;
        self.last_placed = 0;
    }

    /// The payload of the FPDU was placed.
    const fn count_placed(&mut self, len: u64) {
        self.counters.bytes_placed += len;
        self.last_placed = len;
    }
}

/// The receive side together with what it acts on, while one segment is handled.
#[derive(Debug)]
pub(crate) struct Placer<'a, 't> {
    rx: &'a mut RxState,
    messages: &'a mut Messages,
    qp: &'a Arc<QpShared>,
    rnic: &'a RnicShared,
    /// Open from the first placement on, so that a revocation returns only when no placement is
    /// under way (RFC 5040 §8.1.1).
    lease: &'a mut TableLease<'t>,
}

impl<'a, 't> Placer<'a, 't> {
    pub(crate) fn new(
        rx: &'a mut RxState,
        messages: &'a mut Messages,
        qp: &'a Arc<QpShared>,
        rnic: &'a RnicShared,
        lease: &'a mut TableLease<'t>,
    ) -> Self {
        Self { rx, messages, qp, rnic, lease }
    }

    #[inline(always)]
    fn try_place(&mut self, ulpdu: &Ulpdu<'_>, head: &[u8]) -> Result<Placed, StreamError> {
        let header = ddp::rx::header(head, self.rx.version)?;
        if let DdpHeader::Untagged(header) = header
            && header.qn.0 > QueueNumber::ATOMIC_RESPONSE.0
        {
            return Err(DdpError::UntaggedQueueNumber.into());
        }
        let opcode = rdmap::rx::opcode(&header, self.rx.version)?;
        let len = ulpdu.len() - header.len();
        let value = match header {
            DdpHeader::Tagged(header) => {
                self.place_tagged(ulpdu, &header, opcode, len)?;
                0
            }
            DdpHeader::Untagged(header) => {
                self.place_untagged(ulpdu, head, &header, opcode, len)?
            }
        };
        let len = u32::try_from(len).expect("a ULPDU is at most 64768 octets");
        Ok(Placed { header, opcode, len, value })
    }

    #[inline(always)]
    fn place_tagged(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        header: &TaggedHeader,
        opcode: Opcode,
        len: usize,
    ) -> Result<(), StreamError> {
        // RFC 5041 §5.2: STag and TO of a zero-length message are not checked.
        if len == 0 {
            return Ok(());
        }
        let access = if opcode == Opcode::RdmaWrite {
            Access::REMOTE_WRITE
        } else {
            self.messages.requester.check_placement(header.stag, header.to, len)?;
            Access::LOCAL_WRITE
        };
        let guard = self.lease.open();
        let grant = guard
            .check(header.stag, header.to, len, access, self.qp.pd, self.qp.number)
            .map_err(tagged_refusal)?;
        let mut at = 0;
        for chunk in ulpdu.chunks(TaggedHeader::LEN) {
            grant.place(at, chunk);
            at += chunk.len();
        }
        self.rx.count_placed(len as u64);
        Ok(())
    }

    #[inline(never)]
    fn place_untagged(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        head: &[u8],
        header: &UntaggedHeader,
        opcode: Opcode,
        len: usize,
    ) -> Result<u64, StreamError> {
        let after_header = head.get(UntaggedHeader::LEN..).unwrap_or_default();
        let after_header = after_header.get(..len).unwrap_or(after_header);
        match opcode {
            Opcode::ReadRequest => {
                // RFC 5040 §4.2: a Read Request carries no payload.
                let request = match ReadRequest::parse(after_header) {
                    Ok(request) if len == ReadRequest::LEN => PeerRequest::Read(request),
                    _ => return Err(RdmapError::Stream.into()),
                };
                self.place_request(header, request)?;
            }
            Opcode::AtomicRequest => {
                let request = match AtomicRequest::parse(after_header) {
                    Ok(request) if len == AtomicRequest::LEN => PeerRequest::Atomic(request),
                    _ => return Err(RdmapError::Stream.into()),
                };
                self.place_request(header, request)?;
            }
            Opcode::AtomicResponse => {
                let response = match AtomicResponse::parse(after_header) {
                    Ok(response) if len == AtomicResponse::LEN => response,
                    _ => return Err(RdmapError::Stream.into()),
                };
                let room = usize::from(self.rx.ord);
                let index = self.rx.atomic_order.buffer_index(header.msn, room)?;
                put(&mut self.rx.atomic_responses, index, response);
            }
            Opcode::Terminate => {
                if self.rx.terminate.is_none() && self.rx.peer_terminate.is_none() {
                    let parsed = Terminate::parse(after_header);
                    // A Terminate too short to say why still ends the stream.
                    self.rx.terminate = Some(parsed.map_or_else(
                        |_| Terminate::new(TerminateCode::LOCAL_CATASTROPHIC),
                        |(terminate, _)| terminate,
                    ));
                }
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                // RFC 7306 §6.3: exactly eight octets.
                let Ok(octets) = <[u8; IMMEDIATE_DATA_LEN]>::try_from(after_header) else {
                    return Err(RdmapError::Stream.into());
                };
                if len != IMMEDIATE_DATA_LEN {
                    return Err(RdmapError::Stream.into());
                }
                // They go into the completion; the buffer's memory stays as it is.
                let none = std::iter::empty();
                self.rx.receive_queue.place(self.qp, header.msn, header.mo, 0, none)?;
                return Ok(u64::from_be_bytes(octets));
            }
            _ => {
                let payload = ulpdu.chunks(UntaggedHeader::LEN);
                self.rx.receive_queue.place(self.qp, header.msn, header.mo, len, payload)?;
                self.rx.count_placed(len as u64);
            }
        }
        Ok(0)
    }

    fn place_request(
        &mut self,
        header: &UntaggedHeader,
        request: PeerRequest,
    ) -> Result<(), StreamError> {
        // RFC 5040 §6.1: no more inbound Reads than IRD; §5.2.2: as many buffers on the queue.
        let room = usize::from(self.rx.ird).saturating_sub(self.messages.responses_unframed());
        let index = self.rx.request_order.buffer_index(header.msn, room)?;
        put(&mut self.rx.requests, index, request);
        Ok(())
    }

    #[inline(always)]
    fn try_deliver(&mut self, placed: &Placed) -> Result<(), StreamError> {
        match placed.header {
            DdpHeader::Tagged(header) => self.deliver_tagged(placed, &header),
            DdpHeader::Untagged(header) => self.deliver_untagged(placed, &header),
        }
    }

    #[inline(always)]
    fn deliver_tagged(
        &mut self,
        placed: &Placed,
        header: &TaggedHeader,
    ) -> Result<(), StreamError> {
        // RFC 5040 §5.1: an RDMA Write is not delivered to the ULP.
        if placed.opcode == Opcode::ReadResponse {
            let requester = &mut self.messages.requester;
            let done = requester.deliver_read(header.stag, header.to, placed.len, header.last)?;
            if let Some((work, _len)) = done {
                self.messages.answered(work, 0);
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn deliver_untagged(
        &mut self,
        placed: &Placed,
        header: &UntaggedHeader,
    ) -> Result<(), StreamError> {
        let &Placed { opcode, len, value, header: _ } = placed;
        let UntaggedHeader { msn, mo, last, .. } = *header;
        let len = len as usize;
        match opcode {
            Opcode::ReadRequest | Opcode::AtomicRequest => {
                let whole = self.rx.request_order.deliver(msn, mo, len, last)?;
                // RFC 5040 §4.4: a Read Request is a message of one segment.
                if whole.is_none() {
                    return Err(RdmapError::Stream.into());
                }
                match self.rx.requests.pop_front().flatten() {
                    Some(PeerRequest::Read(request)) => {
                        self.deliver_read_request(&request).inspect_err(|error| {
                            self.note_read(*error, placed, &request);
                        })
                    }
                    Some(PeerRequest::Atomic(request)) => self.deliver_atomic_request(&request),
                    None => Err(RdmapError::Stream.into()),
                }
            }
            Opcode::AtomicResponse => {
                let whole = self.rx.atomic_order.deliver(msn, mo, len, last)?;
                let response = self.rx.atomic_responses.pop_front().flatten();
                let (Some(_), Some(response)) = (whole, response) else {
                    return Err(RdmapError::Stream.into());
                };
                let work = self.messages.requester.deliver_atomic(response.request_id)?;
                self.messages.answered(work, response.original);
                Ok(())
            }
            Opcode::Terminate => {
                self.rx.peer_terminate = self.rx.terminate.take();
                // RFC 5040 §5.4: nothing may follow a Terminate on its stream.
                Err(StreamError::PeerTerminated)
            }
            _ => self.deliver_send(opcode, header, len, value),
        }
    }

    fn deliver_send(
        &mut self,
        opcode: Opcode,
        header: &UntaggedHeader,
        len: usize,
        value: u64,
    ) -> Result<(), StreamError> {
        let UntaggedHeader { msn, mo, last, invalidate_stag, .. } = *header;
        let immediate = matches!(opcode, Opcode::Immediate | Opcode::ImmediateSolicited);
        let mut invalidated = None;
        if last && opcode.invalidates() {
            // RFC 5040 §5.3: invalidated at delivery, after all earlier Writes were placed.
            self.lease.close();
            let (pd, number) = (self.qp.pd, self.qp.number);
            self.rnic
                .table
                .invalidate_remote(invalidate_stag, pd, number)
                .map_err(invalidate_refusal)?;
            invalidated = Some(invalidate_stag);
        }
        let brings = || Brings {
            invalidated,
            solicited: opcode.solicits_event(),
            immediate: immediate.then_some(value),
        };
        let len = if immediate { 0 } else { len };
        let kept = self.rx.receive_queue.deliver(self.qp, msn, mo, len, last, brings)?;
        if kept { Ok(()) } else { Err(StreamError::CompletionQueueOverflow) }
    }

    fn deliver_read_request(&mut self, request: &ReadRequest) -> Result<(), StreamError> {
        let &ReadRequest { sink_stag, sink_to, size, source_stag, source_to } = request;
        // RFC 5040 §5.2.1: the source of a Read of size 0 is not checked; it is answered.
        let source = if size == 0 {
            None
        } else {
            let guard = self.lease.open();
            let (pd, number) = (self.qp.pd, self.qp.number);
            let grant = guard
                .check(source_stag, source_to, size as usize, Access::REMOTE_READ, pd, number)
                .map_err(read_refusal)?;
            Some(grant.retain())
        };
        let kind = ResponseKind::Read { sink: sink_stag, to: sink_to, source, len: size };
        self.messages.respond(kind);
        Ok(())
    }

    fn deliver_atomic_request(&mut self, request: &AtomicRequest) -> Result<(), StreamError> {
        let guard = self.lease.open();
        let (pd, number) = (self.qp.pd, self.qp.number);
        // RFC 7306 §8.2, and RFC 5040 §7.2 for what it leaves out.
        let grant = guard
            .check(request.stag, request.to, 8, Access::FOR_ATOMIC, pd, number)
            .map_err(read_refusal)?;
        let &AtomicRequest { data, mask, compare, compare_mask, .. } = request;
        let op = match request.opcode {
            AtomicOpcode::FetchAdd => AtomicOp::FetchAdd { add: data, mask },
            AtomicOpcode::CmpSwap => {
                AtomicOp::CmpSwap { compare, compare_mask, swap: data, swap_mask: mask }
            }
            _ => return Err(RdmapError::UnexpectedOpcode.into()),
        };
        // RFC 7306 §5.1: a misaligned address leaves memory unchanged and ends the stream.
        let original = grant.execute(op).map_err(|_| RdmapError::Stream)?;
        let request_id = request.request_id;
        self.messages.respond(ResponseKind::Atomic(AtomicResponse { request_id, original }));
        Ok(())
    }

    /// Remembers what to tell the peer about a Read Request.
    fn note_read(&mut self, error: StreamError, placed: &Placed, request: &ReadRequest) {
        self.note_placed(error, placed);
        // RFC 5040 §7.1 (3): an inbound Read Request in error comes back with its RDMAP header.
        if let Some(fault) = self.rx.fault.take() {
            self.rx.fault = Some(fault.with_read_request(request.to_bytes()));
        }
    }

    fn note_placed(&mut self, error: StreamError, placed: &Placed) {
        let mut front = [0; DdpHeader::LEN_MAX];
        let header_len = placed.header.emit(&mut front);
        self.note(error, &front[..header_len], header_len + placed.len as usize);
    }

    /// Remembers what to tell the peer; the first error counts (RFC 5040 §7.1).
    fn note(&mut self, error: StreamError, segment: &[u8], segment_len: usize) {
        if self.rx.fault.is_none()
            && let Some(code) = error.terminate_code()
        {
            self.rx.fault = Some(terminate_about(code, segment, segment_len));
        }
    }
}

impl FpduSink for Placer<'_, '_> {
    type Token = Placed;
    type Error = StreamError;

    #[inline(always)]
    fn place(&mut self, ulpdu: &Ulpdu<'_>, _at: StreamOffset) -> Result<Placed, StreamError> {
        self.rx.count_ahead();
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        self.try_place(ulpdu, head).inspect_err(|error| self.note(*error, head, ulpdu.len()))
    }

    #[inline(always)]
    fn deliver(&mut self, placed: Placed) -> Result<(), StreamError> {
        self.rx.last_placed = 0;
        self.rx.counters.count(placed.opcode, placed.header.last());
        self.try_deliver(&placed).inspect_err(|error| self.note_placed(*error, &placed))
    }
}

/// A Terminate with as much about the offending segment as the kind of error calls for.
fn terminate_about(code: TerminateCode, segment: &[u8], segment_len: usize) -> Terminate {
    // RFC 5040 §4.8 Figure 10: RDMAP and DDP errors carry the header of the segment; local
    // catastrophic and LLP errors carry none.
    let local_or_llp = code.layer == 2 || (code.layer == 0 && code.etype == 0);
    match u16::try_from(segment_len) {
        Ok(len) if !local_or_llp => Terminate::about_segment(code, segment, len),
        _ => Terminate::new(code),
    }
}

/// Puts `value` at `index` of a list that is filled in any order and emptied from the front.
fn put<T>(list: &mut VecDeque<Option<T>>, index: usize, value: T) {
    while list.len() <= index {
        list.push_back(None);
    }
    list[index] = Some(value);
}

/// RFC 5041 §7.2.
const fn tagged_refusal(refusal: Refusal) -> DdpError {
    match refusal {
        // No DDP code says "no permission": siw and we use the invalid STag's.
        Refusal::InvalidStag | Refusal::AccessRights | Refusal::CannotInvalidate => {
            DdpError::TaggedInvalidStag
        }
        Refusal::BaseOrBounds => DdpError::TaggedBaseOrBounds,
        Refusal::NotAssociated => DdpError::TaggedNotAssociated,
        Refusal::TaggedOffsetWrap => DdpError::TaggedWrap,
    }
}

/// RFC 5040 §4.8 Figure 10, for the source of a Read and the target of an Atomic.
const fn read_refusal(refusal: Refusal) -> RdmapError {
    match refusal {
        Refusal::InvalidStag => RdmapError::InvalidStag,
        Refusal::AccessRights | Refusal::CannotInvalidate => RdmapError::AccessRights,
        Refusal::BaseOrBounds => RdmapError::BaseOrBounds,
        Refusal::NotAssociated => RdmapError::NotAssociated,
        Refusal::TaggedOffsetWrap => RdmapError::Wrap,
    }
}

/// RFC 5040 §4.8 Figure 10, for Send with Invalidate.
const fn invalidate_refusal(refusal: Refusal) -> RdmapError {
    match refusal {
        // RFC 5040 names 0/1/00 and 0/1/09 for a tag that is not valid. One code for all tells a
        // peer that guesses the least.
        Refusal::InvalidStag
        | Refusal::AccessRights
        | Refusal::CannotInvalidate
        | Refusal::BaseOrBounds
        | Refusal::NotAssociated
        | Refusal::TaggedOffsetWrap => RdmapError::CannotInvalidate,
    }
}
