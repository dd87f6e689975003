//! The receive queue of the engine: buffers taken from the application until a message has been
//! delivered into them. Messages without a buffer wait, if the queue pair allows that.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::ddp::DdpError;
use crate::ddp::untagged::UntaggedQueue;
use crate::limits::SGE_MAX;
use crate::mem::{Access, Grant, Refusal, SharedSlice, TableGuard, TableLease};
use crate::stream::error::StreamError;
use crate::stream::rx::PlacedSegment;
use crate::stream::rx::held::{HeldMessages, HeldSegment};
use crate::types::{MsgOffset, Msn, Stag, TaggedOffset};
use crate::verbs::posted::make_room;
use crate::verbs::{QpShared, RecvWr, Wc, WcOpcode, WcStatus};

/// Buffers for Sends (queue number 0), oldest first. While messages wait for receives, the oldest
/// one has no buffer: the queue is empty.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ReceiveQueue {
    posted: VecDeque<RecvWr>,
    order: UntaggedQueue,
    /// The first FPDU may be a ready-to-receive Send, which consumes message number 1 but no posted
    /// buffer (RFC 6581 §9.2).
    absorb_first: bool,
    /// The buffer that an error concerns, counted from the oldest.
    fault: Option<usize>,
    /// The segment that an error concerns, if it is not the last one handled.
    blamed: Option<PlacedSegment>,
    held: HeldMessages,
}

enum Buffer {
    Posted(usize),
    /// The message is a ready-to-receive Send: it must be empty and takes no buffer.
    NoneNeeded,
    /// No buffer is posted, and the message may wait for one.
    Missing,
}

pub(super) struct Filled {
    pub(super) last: PlacedSegment,
    pub(super) len: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageAttributes {
    pub(crate) opcode: WcOpcode,
    pub(crate) value: u64,
    pub(crate) byte_len: Option<u32>,
    pub(crate) invalidated: Option<Stag>,
    pub(crate) solicited: bool,
}

impl ReceiveQueue {
    pub(crate) fn new(absorb_first: bool) -> Self {
        Self {
            posted: VecDeque::new(),
            order: UntaggedQueue::new(),
            absorb_first,
            fault: None,
            held: HeldMessages::default(),
            blamed: None,
        }
    }

    #[cfg(test)]
    pub(crate) const fn start_at(&mut self, msn: Msn) {
        self.order = UntaggedQueue::starting_at(msn);
    }

    /// No later FPDU can be a ready-to-receive Send.
    pub(crate) const fn first_delivered(&mut self) {
        self.absorb_first = false;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.held.is_waiting()
    }

    pub(crate) fn room(&self) -> Option<usize> {
        self.is_waiting().then(|| self.held.room())
    }

    /// Bytes of payload that were held, and how many of them have found a receive.
    pub(super) const fn bytes_held(&self) -> (u64, u64) {
        (self.held.held, self.held.filled)
    }

    pub(super) const fn take_blamed(&mut self) -> Option<PlacedSegment> {
        self.blamed.take()
    }

    /// Copies a segment's payload into the buffer of its message, at any position in the order.
    /// Returns false if there is no buffer: [hold](Self::hold) the segment then. At most
    /// `before_max` FPDUs are between the delivered position and the segment. RFC 5041 §7.1: the
    /// buffer, then the offset, then the length are checked before placement.
    pub(crate) fn place<'p>(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
        (msn, mo): (Msn, MsgOffset),
        before_max: usize,
        len: usize,
        payload: impl Iterator<Item = SharedSlice<'p>>,
    ) -> Result<bool, StreamError> {
        match self.buffer(qp, lease, msn, before_max)? {
            Buffer::Posted(index) => self.copy(qp, lease, index, mo, len, payload)?,
            Buffer::NoneNeeded => UntaggedQueue::check_extent(mo, len, 0)?,
            Buffer::Missing => return Ok(false),
        }
        Ok(true)
    }

    #[cold]
    pub(super) fn hold<'p>(
        &mut self,
        segment: PlacedSegment,
        at: (Msn, MsgOffset),
        payload: impl Iterator<Item = SharedSlice<'p>>,
    ) -> Result<(), StreamError> {
        Ok(self.held.hold(segment, at, payload)?)
    }

    fn copy<'p>(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
        index: usize,
        mo: MsgOffset,
        len: usize,
        payload: impl Iterator<Item = SharedSlice<'p>>,
    ) -> Result<(), StreamError> {
        let wr = &self.posted[index];
        if wr.inaccessible {
            // The error is reported at delivery: the buffers before this one are filled first.
            return Ok(());
        }
        if let Err(error) = UntaggedQueue::check_extent(mo, len, wr.len()) {
            self.fault = Some(index);
            return Err(error.into());
        }
        if len == 0 {
            return Ok(());
        }
        match writable(qp, lease.open(), wr, u64::from(mo.0), len) {
            Ok(grants) => scatter(&grants, payload),
            Err(_revoked) => {
                self.fault = Some(index);
                return Err(StreamError::LocalProtection);
            }
        }
        Ok(())
    }

    fn buffer(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
        msn: Msn,
        before_max: usize,
    ) -> Result<Buffer, StreamError> {
        if self.held.is_waiting() {
            // The next receive is for the message that has waited longest.
            return self.missing(msn);
        }
        let absorbed = usize::from(self.absorb_first);
        loop {
            match self.order.buffer_index(msn, self.posted.len() + absorbed) {
                Ok(0) if self.absorb_first => return Ok(Buffer::NoneNeeded),
                Ok(index) => return Ok(Buffer::Posted(index - absorbed)),
                Err(error) if self.is_too_far(qp, msn, before_max) => {
                    return self.refuse(qp, msn, error);
                }
                Err(error) => match qp.receives.take() {
                    Some(wr) => {
                        make_room(&mut self.posted, 1);
                        self.posted.push_back(wr);
                        self.fill_from_ahead(qp, lease)?;
                    }
                    None => return self.refuse(qp, msn, error),
                },
            }
        }
    }

    /// Returns true if buffers for this message and all before it must not be taken from a shared
    /// queue: one wrong number of a peer must not empty a queue that other connections share (RFC
    /// 5042 §6.4.3.1). Each message before this one ends in an FPDU between the delivered position
    /// and this segment: at most `before_max`. A message that may wait takes no buffer before the
    /// messages before it have theirs.
    // spec: SEC-T-4
    fn is_too_far(&self, qp: &QpShared, msn: Msn, before_max: usize) -> bool {
        if !qp.receives.are_shared() {
            return false;
        }
        let ahead = msn.distance_from(self.order.msn()) as usize;
        let taken = self.posted.len() + usize::from(self.absorb_first);
        ahead > before_max || (qp.receives.may_be_late() && ahead > taken)
    }

    /// Decides about message `msn`, which has no buffer: it is held if it may wait.
    fn refuse(&self, qp: &QpShared, msn: Msn, error: DdpError) -> Result<Buffer, StreamError> {
        if qp.receives.may_be_late() { self.missing(msn) } else { Err(error.into()) }
    }

    /// A delivered message is an error. Delivery detects a number that is too far ahead.
    fn missing(&self, msn: Msn) -> Result<Buffer, StreamError> {
        let is_ahead = msn.distance_from(self.order.msn()).cast_signed() >= 0;
        if is_ahead { Ok(Buffer::Missing) } else { Err(DdpError::UntaggedMsnRange.into()) }
    }

    /// Copies held segments into the last buffer, if they belong to its message.
    fn fill_from_ahead(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
    ) -> Result<(), StreamError> {
        let index = self.posted.len() - 1;
        // The index is at most the depth of a queue, far below 2³².
        #[expect(clippy::cast_possible_truncation, reason = "QP_DEPTH_MAX")]
        let msn = Msn(self.order.msn().0.wrapping_add(index as u32));
        while let Some(segment) = self.held.next_ahead(msn) {
            self.fill(qp, lease, index, &segment)?;
        }
        Ok(())
    }

    fn fill(
        &mut self,
        qp: &QpShared,
        lease: &mut TableLease<'_>,
        index: usize,
        held: &HeldSegment,
    ) -> Result<u64, StreamError> {
        let HeldSegment { segment, payload } = held;
        let mo = segment.mo();
        let len = payload.len();
        let payload = std::iter::once(SharedSlice::from_bytes(payload));
        if let Err(error) = self.copy(qp, lease, index, mo, len, payload) {
            self.blamed = Some(*segment);
            return Err(error);
        }
        self.held.filled += len as u64;
        Ok(u64::from(mo.0) + len as u64)
    }

    /// Lets the segment of a Read or Atomic Request wait behind the waiting messages, if possible.
    pub(super) fn wait_request(&mut self, segment: &PlacedSegment) -> bool {
        self.held.wait_request(*segment)
    }

    /// Takes the segment of the request that has waited longest, if no message is before it.
    pub(super) fn next_request(&mut self) -> Option<PlacedSegment> {
        self.held.next_request()
    }

    /// Copies the message that has waited longest into the next receive. Returns the message when
    /// it is whole; [complete](Self::complete) it then.
    pub(super) fn fill_next(
        &mut self,
        qp: &Arc<QpShared>,
        lease: &mut TableLease<'_>,
    ) -> Result<Option<Filled>, StreamError> {
        if !self.held.is_waiting() {
            qp.receives.ask_no_more(qp);
            return Ok(None);
        }
        let Some(wr) = qp.receives.take_or_ask(qp) else { return Ok(None) };
        make_room(&mut self.posted, 1);
        self.posted.push_back(wr);
        while let Some(held) = self.held.next() {
            let end = self.fill(qp, lease, 0, &held)?;
            if held.segment.header.last() {
                // RFC 5041 §5.4: the last segment's offset plus its payload. Delivery has checked it.
                let len = u32::try_from(end).map_err(|_| DdpError::UntaggedTooLong)?;
                return Ok(Some(Filled { last: held.segment, len }));
            }
        }
        // The rest of the message has not arrived. It will be placed directly into the buffer.
        qp.receives.ask_no_more(qp);
        self.fill_from_ahead(qp, lease)?;
        Ok(None)
    }

    /// Delivers a segment in stream order. At the end of a message, `attributes` performs its other
    /// effects and can fail; then the completion is raised.
    pub(crate) fn deliver(
        &mut self,
        qp: &QpShared,
        segment: &PlacedSegment,
        (msn, mo): (Msn, MsgOffset),
        attributes: impl FnOnce() -> Result<MessageAttributes, StreamError>,
    ) -> Result<(), StreamError> {
        // RFC 5040 §5.3, RFC 5041 §5.4: a message out of order has no effect.
        let (len, last) = (segment.payload_len(), segment.header.last());
        let message = self.order.deliver(msn, mo, len, last)?;
        if self.posted.is_empty() && !self.absorb_first {
            return Ok(self.held.wait(*segment, (msn, mo))?);
        }
        let Some(message) = message else { return Ok(()) };
        let attributes = attributes()?;
        if self.absorb_first {
            self.absorb_first = false;
            return Ok(());
        }
        self.complete(qp, message.len, &attributes)
    }

    /// Raises the completion of the oldest buffer, into which its message was delivered.
    pub(super) fn complete(
        &mut self,
        qp: &QpShared,
        len: u32,
        attributes: &MessageAttributes,
    ) -> Result<(), StreamError> {
        let &MessageAttributes { opcode, value, byte_len, invalidated, solicited } = attributes;
        if len > 0 && self.posted.front().is_some_and(|wr| wr.inaccessible) {
            self.fault = Some(0);
            return Err(StreamError::LocalProtection);
        }
        let wr = self.posted.pop_front().expect("a placed message has its buffer");
        // Frees the place first: who has polled a completion may post another request.
        qp.receives.completed();
        // spec: RDMAP-3.2-1
        let kept = qp.push_receive(Wc {
            wr_id: wr.id,
            status: WcStatus::Success,
            opcode,
            qp: qp.number,
            byte_len: byte_len.unwrap_or(len),
            invalidated,
            solicited,
            value,
        });
        // spec: SEC-R-10
        if kept { Ok(()) } else { Err(StreamError::CompletionQueueOverflow) }
    }

    /// Raises an error completion for every buffer: `status` for the one that the error concerns;
    /// the rest is flushed. Drops the messages that wait.
    pub(crate) fn fail(&mut self, qp: &QpShared, status: WcStatus) {
        self.held.clear();
        qp.receives.ask_no_more(qp);
        let fault = self.fault.take();
        let mut index = 0;
        let mut status_of_next = || {
            index += 1;
            if Some(index - 1) == fault { status } else { WcStatus::WrFlushErr }
        };
        while let Some(wr) = self.posted.pop_front() {
            qp.fail_receive(&wr, status_of_next());
        }
        qp.flush_posted_receives(status_of_next());
    }
}

/// Grants to write `len` bytes of the scatter list, from byte `skip` on. RFC 5040 §8.1.1 (6): no
/// packet changes memory whose steering tag was revoked, even if the buffer was posted before.
// spec: SEC-R-6
fn writable<'g>(
    qp: &QpShared,
    table: &'g TableGuard<'_>,
    wr: &RecvWr,
    mut skip: u64,
    len: usize,
) -> Result<ArrayVec<Grant<'g>, SGE_MAX>, Refusal> {
    let (mut grants, mut left) = (ArrayVec::new(), len);
    for sge in &wr.sges {
        if left == 0 {
            break;
        }
        let Some(room) = u64::from(sge.len).checked_sub(skip).filter(|room| *room > 0) else {
            skip -= u64::from(sge.len);
            continue;
        };
        let take = usize::try_from(room).map_or(left, |room| left.min(room));
        // No wrap: the range was inside the registration when the element was made.
        let to = TaggedOffset(sge.to.0.wrapping_add(skip));
        // The domain was checked when the buffer was posted: a shared queue may have another one.
        grants.push(table.check(sge.stag, to, take, Access::LOCAL_WRITE, sge.pd, qp.number)?);
        left -= take;
        skip = 0;
    }
    Ok(grants)
}

/// Copies `payload` to the granted bytes, which have the same total length.
fn scatter<'p>(grants: &[Grant<'_>], payload: impl Iterator<Item = SharedSlice<'p>>) {
    let mut grants = grants.iter();
    let mut grant = grants.next();
    let mut at = 0;
    for chunk in payload {
        let mut done = 0;
        while done < chunk.len() {
            let to = grant.expect("the grants have the length of the payload");
            let take = (chunk.len() - done).min(to.len() - at);
            to.place(at, chunk.part(done, take));
            done += take;
            at += take;
            if at == to.len() {
                (grant, at) = (grants.next(), 0);
            }
        }
    }
}
