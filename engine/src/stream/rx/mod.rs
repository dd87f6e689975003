//! Receive: from a valid FPDU to memory (placement, in any order), then to the application
//! (delivery, in order). A message for which no receive is posted ends the stream or, if its queue
//! pair says so, waits in [`held`] until one is posted. Later Writes are still delivered, but later
//! Sends and, under `QpRules::InfiniBand`, Read and Atomic Requests wait behind it. Placement runs
//! all its checks before it copies the first byte of a segment. Delivery has checks of its own,
//! which need the order: it can refuse a message whose bytes are in memory already.

mod deliver;
mod held;
mod pass_write;
mod place;
mod receive_queue;

use std::collections::VecDeque;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use crate::counters::RdmaRxCounters;
use crate::ddp::tx::Target;
use crate::ddp::untagged::UntaggedQueue;
use crate::limits::FPDUS_AHEAD_MAX;
use crate::mem::{Refusal, TableLease};
use crate::mpa::marker::fpdu_len;
use crate::mpa::rx::{FpduSink, HEAD_LEN, Ulpdu};
use crate::mpa::startup::Rtr;
use crate::stream::error::{StreamError, read_refusal, terminate_about};
use crate::stream::rx::pass_write::write_header;
use crate::stream::rx::receive_queue::{Filled, ReceiveQueue};
use crate::stream::tx::Messages;
use crate::types::{MsgOffset, Msn, QueueNumber, Stag, StreamOffset};
use crate::verbs::{QpShared, RnicShared};
use crate::wire::ProtocolVersion;
use crate::wire::ddp::{DdpHeader, UntaggedHeader};
use crate::wire::mpa::RtrKinds;
use crate::wire::rdmap::{
    ABOUT_A_WRITE, AtomicRequest, AtomicResponse, Control, Opcode, ReadRequest,
};
use crate::wire::terminate::Terminate;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedSegment {
    header: DdpHeader,
    opcode: Opcode,
    len: u32,
    value: u64,
}

impl PlacedSegment {
    /// Immediate Data goes into the completion instead.
    const fn payload_len(&self) -> usize {
        if matches!(self.opcode, Opcode::Immediate | Opcode::ImmediateSolicited) {
            return 0;
        }
        self.len as usize
    }

    const fn mo(&self) -> MsgOffset {
        match self.header {
            DdpHeader::Untagged(header) => header.mo,
            DdpHeader::Tagged(_) => MsgOffset(0),
        }
    }

    const fn invalidate_stag(&self) -> Stag {
        match self.header {
            DdpHeader::Untagged(header) => header.invalidate_stag,
            DdpHeader::Tagged(_) => Stag(0),
        }
    }

    /// Returns the 32 bits of Immediate Data and the length of the Write that it reports, if it
    /// does. `agreed`: both ends have agreed on Writes with immediate data.
    fn about_a_write(&self, agreed: bool) -> Option<(u64, u32)> {
        let is_immediate = matches!(self.opcode, Opcode::Immediate | Opcode::ImmediateSolicited);
        let tells = is_immediate && agreed && self.invalidate_stag() == ABOUT_A_WRITE;
        let len = u32::try_from(self.value & u64::from(u32::MAX)).ok()?;
        tells.then_some((self.value >> 32, len))
    }
}

#[derive(Clone, Copy, Debug)]
enum InboundRequest {
    Read(ReadRequest),
    Atomic(AtomicRequest),
}

/// Length of the last RDMA Write, which Immediate Data may report.
#[derive(Clone, Copy, Debug, Default)]
struct DeliveredWrites {
    len: u32,
    /// More segments of this Write follow.
    amid: bool,
}

impl DeliveredWrites {
    /// A Write of 2³² bytes, which RFC 5041 §5.2 excludes, counts as empty.
    #[inline(always)]
    const fn deliver(&mut self, len: u32, last: bool) {
        let before = if self.amid { self.len } else { 0 };
        *self = Self { len: before.wrapping_add(len), amid: !last };
    }
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct RxState {
    /// Payload bytes of the FPDU placed last, until it is delivered or the next FPDU arrives.
    last_placed: u64,
    writes: DeliveredWrites,
    pub(crate) peer_terminate: Option<Box<Terminate>>,
    version: ProtocolVersion,
    /// The initiator's first FPDU, which may be its ready-to-receive message, is not yet delivered.
    awaits_first: bool,
    immediates: bool,
    /// The stream has failed because the peer accessed memory without permission.
    pub(crate) access_refused: bool,
    ird: u16,
    ord: u16,
    counters: RdmaRxCounters,
    request_order: UntaggedQueue,
    /// Requests placed and not yet delivered, by distance from the one to deliver next.
    requests: VecDeque<Option<InboundRequest>>,
    /// Requests that are next in order and wait behind messages without a receive. With the answers
    /// not yet framed at most IRD.
    requests_waiting: VecDeque<InboundRequest>,
    atomic_order: UntaggedQueue,
    atomic_responses: VecDeque<Option<AtomicResponse>>,
    /// The peer's Terminate, between placement and delivery.
    terminate: Option<Box<Terminate>>,
    /// Terminate to send to the peer about the first error.
    pub(crate) fault: Option<Box<Terminate>>,
    pub(crate) receive_queue: ReceiveQueue,
}

/// The first FPDU shows which of the kinds in the Reply it is (RFC 6581 §9.2).
pub(crate) const fn may_begin_with_send(rtr: &Rtr) -> bool {
    matches!(rtr, Rtr::Expect(kinds) if kinds.contains(RtrKinds::SEND))
}

impl RxState {
    /// Most segments need these: up to the counts of Writes as FPDUs, and as messages.
    pub(crate) const HOT: [Range<usize>; 2] = {
        let counters = offset_of!(Self, counters);
        let fpdus = counters + offset_of!(RdmaRxCounters, fpdus_by_opcode);
        let messages = counters + offset_of!(RdmaRxCounters, messages_by_opcode);
        [0..fpdus + size_of::<u64>(), messages..messages + size_of::<u64>()]
    };
    /// Offset of the last part that most segments need.
    pub(crate) const HOT_FROM: usize = size_of::<Self>() - size_of::<usize>();

    pub(crate) fn new(
        version: ProtocolVersion,
        ird: u16,
        ord: u16,
        rtr: &Rtr,
        immediates: bool,
    ) -> Self {
        let absorb_first = may_begin_with_send(rtr);
        Self {
            receive_queue: ReceiveQueue::new(absorb_first),
            awaits_first: absorb_first,
            version,
            request_order: UntaggedQueue::new(),
            requests: VecDeque::new(),
            requests_waiting: VecDeque::new(),
            ird,
            atomic_order: UntaggedQueue::new(),
            atomic_responses: VecDeque::new(),
            ord,
            immediates,
            access_refused: false,
            writes: DeliveredWrites::default(),
            terminate: None,
            peer_terminate: None,
            fault: None,
            counters: RdmaRxCounters::default(),
            last_placed: 0,
        }
    }

    #[cfg(test)]
    pub(crate) const fn start_at(&mut self, msn: Msn) {
        self.receive_queue.start_at(msn);
        self.request_order = UntaggedQueue::starting_at(msn);
        self.atomic_order = UntaggedQueue::starting_at(msn);
    }

    pub(crate) const fn counters(&self) -> RdmaRxCounters {
        let mut counters = self.counters;
        counters.bytes_placed_out_of_order += self.last_placed;
        let (held, filled) = self.receive_queue.bytes_held();
        counters.bytes_without_receive = held;
        counters.bytes_placed += filled;
        counters
    }

    pub(crate) const fn awaits_first(&self) -> bool {
        self.awaits_first
    }

    /// Adds the header of a Read Request to the Terminate about it (RFC 5040 §7.1 (3)).
    // spec: RDMAP-7.1-4
    fn note_read(&mut self, request: &ReadRequest) {
        if let Some(fault) = self.fault.take() {
            self.fault = Some(Box::new(fault.with_read_request(request.to_bytes())));
        }
    }

    /// Records the Terminate about a delivered Read Request whose `rest` cannot be answered.
    pub(crate) fn note_rest(
        &mut self,
        refusal: Refusal,
        rest: &ReadRequest,
        msn: Msn,
    ) -> StreamError {
        let error = StreamError::from(read_refusal(refusal));
        let qn = QueueNumber::READ_REQUEST;
        let control = Control { version: self.version, opcode: Opcode::ReadRequest }.to_byte();
        let target = Target::Untagged { qn, msn, invalidate_stag: Stag(0) };
        let header = target.segment_header(control, self.version, 0, true);
        let mut front = [0; DdpHeader::LEN_MAX];
        let header_len = header.emit(&mut front);
        if self.fault.is_none()
            && let Some(code) = error.terminate_code()
        {
            let segment_len = header_len + ReadRequest::LEN;
            let about = terminate_about(code, &front[..header_len], segment_len);
            self.fault = Some(Box::new(about));
            self.note_read(rest);
        }
        error
    }

    /// Counts the FPDU placed last as placed out of order if it is not delivered yet: MPA delivers
    /// an FPDU that is in order right after placing it.
    const fn count_ahead(&mut self) {
        self.counters.bytes_placed_out_of_order += self.last_placed;
        self.last_placed = 0;
    }

    #[inline(always)]
    const fn begin_delivery(&mut self, opcode: Opcode, last: bool) {
        self.last_placed = 0;
        self.counters.count(opcode, last);
    }

    #[inline(always)]
    const fn note_first(&mut self) {
        if self.awaits_first {
            self.awaits_first = false;
            self.receive_queue.first_delivered();
        }
    }

    const fn count_placed(&mut self, len: u64) {
        self.counters.bytes_placed += len;
        self.last_placed = len;
    }
}

#[derive(Debug)]
pub(crate) struct Placer<'a, 't> {
    rx: &'a mut RxState,
    messages: &'a mut Messages,
    qp: &'a Arc<QpShared>,
    rnic: &'a RnicShared,
    /// Lease of the steering tag table, open from the first placement on: a revocation returns only
    /// when no placement is in progress (RFC 5040 §8.1.1).
    lease: &'a mut TableLease<'t>,
    /// Limit of the FPDUs between the delivered position and the segment being handled.
    fpdus_before_max: usize,
}

/// Without markers.
const UNTAGGED_FPDU_LEN_MIN: u64 = fpdu_len(UntaggedHeader::LEN) as u64;

impl<'a, 't> Placer<'a, 't> {
    pub(crate) fn new(
        rx: &'a mut RxState,
        messages: &'a mut Messages,
        qp: &'a Arc<QpShared>,
        rnic: &'a RnicShared,
        lease: &'a mut TableLease<'t>,
    ) -> Self {
        Self { rx, messages, qp, rnic, lease, fpdus_before_max: 0 }
    }

    /// Delivers waiting messages into posted receives, and the requests that waited behind them.
    #[cold]
    pub(crate) fn deliver_held(&mut self) -> Result<(), StreamError> {
        loop {
            if let Some(placed) = self.rx.receive_queue.next_request() {
                let delivered = self.deliver_waiting_request(&placed);
                delivered.inspect_err(|error| self.note_placed(*error, &placed))?;
                continue;
            }
            let filled = self.rx.receive_queue.fill_next(self.qp, self.lease);
            let filled = filled.inspect_err(|error| self.note_blamed(*error))?;
            let Some(Filled { last, len }) = filled else { return Ok(()) };
            let attributes = self.attributes(&last);
            let attributes = attributes.inspect_err(|error| self.note_placed(*error, &last))?;
            self.complete_answered()?;
            self.rx.receive_queue.complete(self.qp, len, &attributes)?;
        }
    }

    #[cold]
    fn note_blamed(&mut self, error: StreamError) {
        if let Some(segment) = self.rx.receive_queue.take_blamed() {
            self.note_placed(error, &segment);
        }
    }

    #[cold]
    fn note_refused(&mut self, error: StreamError, ulpdu: &Ulpdu<'_>) {
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        self.note(error, head, ulpdu.len());
    }

    fn note_placed(&mut self, error: StreamError, placed: &PlacedSegment) {
        let mut front = [0; DdpHeader::LEN_MAX];
        let header_len = placed.header.emit(&mut front);
        self.note(error, &front[..header_len], header_len + placed.len as usize);
    }

    /// Records the Terminate for the first error (RFC 5040 §7.1).
    // spec: DDP-7.1-4, RDMAP-7.1-3, RDMAP-7.1-5
    fn note(&mut self, error: StreamError, segment: &[u8], segment_len: usize) {
        if self.rx.fault.is_none()
            && let Some(code) = error.terminate_code()
        {
            self.rx.fault = Some(Box::new(terminate_about(code, segment, segment_len)));
        }
    }
}

impl FpduSink for Placer<'_, '_> {
    type Token = PlacedSegment;
    type Error = StreamError;

    #[inline(always)]
    fn place(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        _at: StreamOffset,
    ) -> Result<PlacedSegment, StreamError> {
        self.rx.count_ahead();
        let mut scratch = [0; HEAD_LEN];
        let head = ulpdu.head(&mut scratch);
        self.try_place(ulpdu, head).inspect_err(|error| {
            self.note_blamed(*error);
            self.note(*error, head, ulpdu.len());
        })
    }

    #[inline(never)]
    fn place_ahead(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        at: StreamOffset,
        gap: u64,
    ) -> Result<PlacedSegment, StreamError> {
        let fpdus = usize::try_from(gap / UNTAGGED_FPDU_LEN_MIN).unwrap_or(usize::MAX);
        self.fpdus_before_max = fpdus.min(FPDUS_AHEAD_MAX);
        let placed = self.place(ulpdu, at);
        self.fpdus_before_max = 0;
        placed
    }

    #[inline(always)]
    fn place_next(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        at: StreamOffset,
    ) -> Result<Option<PlacedSegment>, StreamError> {
        match ulpdu.front().and_then(|front| write_header(front, self.rx.version)) {
            Some(header) => self.pass_write(ulpdu, &header).map(|()| None),
            None => self.place(ulpdu, at).map(Some),
        }
    }

    #[inline(always)]
    fn deliver(&mut self, placed: PlacedSegment) -> Result<(), StreamError> {
        self.rx.begin_delivery(placed.opcode, placed.header.last());
        let delivered = self.try_deliver(&placed);
        self.rx.note_first();
        delivered.inspect_err(|error| self.note_placed(*error, &placed))
    }
}
