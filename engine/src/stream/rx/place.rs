//! Placement: copies a segment's payload to its buffer, in any order (RFC 5041 §5.3, §7.1).

use std::collections::VecDeque;

use crate::ddp::{self, DdpError};
use crate::mem::Access;
use crate::mpa::rx::Ulpdu;
use crate::rdmap::{self, RdmapError};
use crate::stream::error::{StreamError, tagged_refusal};
use crate::stream::rx::{InboundRequest, PlacedSegment, Placer};
use crate::types::QueueNumber;
use crate::verbs::WcStatus;
use crate::wire::ddp::{DdpHeader, TaggedHeader, UntaggedHeader};
use crate::wire::rdmap::{AtomicRequest, AtomicResponse, IMMEDIATE_DATA_LEN, Opcode, ReadRequest};
use crate::wire::terminate::{Terminate, TerminateCode};

impl Placer<'_, '_> {
    // spec: DDP-5.3-3, RDMAP-5.5-3, RDMAP-7.2-1
    #[inline(always)]
    pub(super) fn try_place(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        head: &[u8],
    ) -> Result<PlacedSegment, StreamError> {
        let header = ddp::rx::header(head, self.rx.version)?;
        if let DdpHeader::Untagged(header) = header
            // spec: DDP-7.1-1
            && header.qn.0 > QueueNumber::ATOMIC_RESPONSE.0
        {
            return Err(DdpError::UntaggedQueueNumber.into());
        }
        let opcode = rdmap::rx::opcode(&header, self.rx.version)?;
        // spec: DDP-3-7
        let len = ulpdu.len() - header.len();
        // spec: DDP-4.1-1
        let value = match header {
            DdpHeader::Tagged(header) => {
                self.place_tagged(ulpdu, &header, opcode, len)?;
                0
            }
            DdpHeader::Untagged(header) => {
                self.place_untagged(ulpdu, head, &header, opcode, len)?
            }
        };
        let len = u32::try_from(len).expect("a ULPDU is at most 64768 bytes");
        Ok(PlacedSegment { header, opcode, len, value })
    }

    #[inline(always)]
    pub(super) fn place_tagged(
        &mut self,
        ulpdu: &Ulpdu<'_>,
        header: &TaggedHeader,
        opcode: Opcode,
        len: usize,
    ) -> Result<(), StreamError> {
        // RFC 5041 §5.2: STag and TO of a zero-length message are not checked.
        // spec: DDP-5.2-7
        if len == 0 {
            return Ok(());
        }
        let access = if opcode == Opcode::RdmaWrite {
            self.qp.check_right(Access::REMOTE_WRITE).map_err(tagged_refusal)?;
            Access::REMOTE_WRITE
        } else {
            let requester = &self.messages.requester;
            if let Err(error) = requester.check_placement(header.stag, header.to, len) {
                if requester.awaits_own(header.stag) {
                    return Ok(());
                }
                self.messages.blame_oldest_request();
                return Err(error.into());
            }
            Access::LOCAL_WRITE
        };
        let guard = self.lease.open();
        let grant = guard
            .check(header.stag, header.to, len, access, self.qp.pd, self.qp.number)
            .map_err(|refusal| {
                // Answers a Read of this end, but the application has withdrawn the Read's sink.
                if opcode == Opcode::ReadResponse {
                    self.messages.blame_read(header.stag, header.to, WcStatus::LocProtErr);
                }
                // spec: RDMAP-5.1-5
                tagged_refusal(refusal)
            })?;
        let mut at = 0;
        ulpdu.for_each_chunk(TaggedHeader::LEN, |chunk| {
            // spec: DDP-5.2-5
            grant.place(at, chunk);
            at += chunk.len();
        });
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
                // spec: RDMAP-4.2-1
                let request = match ReadRequest::parse(after_header) {
                    Ok(request) if len == ReadRequest::LEN => InboundRequest::Read(request),
                    _ => return Err(RdmapError::Stream.into()),
                };
                self.place_request(header, request)?;
            }
            Opcode::AtomicRequest => {
                let request = match AtomicRequest::parse(after_header) {
                    // spec: EXT-4.2-1
                    Ok(request) if len == AtomicRequest::LEN => InboundRequest::Atomic(request),
                    _ => return Err(RdmapError::Stream.into()),
                };
                self.place_request(header, request)?;
            }
            Opcode::AtomicResponse => {
                let response = match AtomicResponse::parse(after_header) {
                    Ok(response) if len == AtomicResponse::LEN => response,
                    _ => return Err(RdmapError::Stream.into()),
                };
                // spec: EXT-5.2.2-2
                let room = usize::from(self.rx.ord);
                let index = self.rx.atomic_order.buffer_index(header.msn, room)?;
                put(&mut self.rx.atomic_responses, index, response);
            }
            Opcode::Terminate => {
                // spec: RDMAP-5.4-1
                if self.rx.terminate.is_none() && self.rx.peer_terminate.is_none() {
                    let parsed = Terminate::parse(after_header);
                    // A Terminate too short to contain its reason still ends the stream.
                    self.rx.terminate = Some(Box::new(parsed.map_or_else(
                        |_| Terminate::new(TerminateCode::LOCAL_CATASTROPHIC),
                        |(terminate, _)| terminate,
                    )));
                }
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                // RFC 7306 §6.3: exactly eight bytes.
                // spec: EXT-6.3-2
                let Ok(octets) = <[u8; IMMEDIATE_DATA_LEN]>::try_from(after_header) else {
                    return Err(RdmapError::Stream.into());
                };
                // §6.3: the eight bytes are the whole message; they cannot end a Send.
                if len != IMMEDIATE_DATA_LEN || !header.last || header.mo.0 != 0 {
                    return Err(RdmapError::Stream.into());
                }
                // The eight bytes go into the completion; the buffer's memory is unchanged. So
                // there is no payload to hold if no receive is posted.
                let (at, none) = ((header.msn, header.mo), std::iter::empty());
                let before_max = self.fpdus_before_max;
                let queue = &mut self.rx.receive_queue;
                // spec: EXT-6.3-1
                let _has_receive = queue.place(self.qp, self.lease, at, before_max, 0, none)?;
                return Ok(u64::from_be_bytes(octets));
            }
            Opcode::SendImmediate | Opcode::SendImmediateSolicited if !self.rx.immediates => {
                return Err(RdmapError::UnexpectedOpcode.into());
            }
            _ => {
                let payload = ulpdu.chunks(UntaggedHeader::LEN);
                let at = (header.msn, header.mo);
                let before_max = self.fpdus_before_max;
                let queue = &mut self.rx.receive_queue;
                if queue.place(self.qp, self.lease, at, before_max, len, payload)? {
                    self.rx.count_placed(len as u64);
                } else {
                    let header = DdpHeader::Untagged(*header);
                    let len = u32::try_from(len).expect("a ULPDU is at most 64768 bytes");
                    let segment = PlacedSegment { header, opcode, len, value: 0 };
                    let payload = ulpdu.chunks(UntaggedHeader::LEN);
                    self.rx.receive_queue.hold(segment, at, payload)?;
                }
            }
        }
        Ok(0)
    }

    // spec: RDMAP-5.2.1-1, RDMAP-5.2.2-2, EXT-5.2.1-1, EXT-5.2.2-2
    fn place_request(
        &mut self,
        header: &UntaggedHeader,
        request: InboundRequest,
    ) -> Result<(), StreamError> {
        // RFC 5040 §6.1: at most IRD inbound Reads; §5.2.2: as many buffers on the queue.
        // spec: RDMAP-6.1-3, SEC-R-11, SEC-T-5
        let open = self.messages.responses_unframed() + self.rx.requests_waiting.len();
        let room = usize::from(self.rx.ird).saturating_sub(open);
        let index = self.rx.request_order.buffer_index(header.msn, room)?;
        put(&mut self.rx.requests, index, request);
        Ok(())
    }
}

/// Puts `value` at `index` of a list that is filled in any order and drained from the front.
fn put<T>(list: &mut VecDeque<Option<T>>, index: usize, value: T) {
    while list.len() <= index {
        list.push_back(None);
    }
    list[index] = Some(value);
}
