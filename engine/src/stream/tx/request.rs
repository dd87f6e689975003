//! The message of a work request (RFC 5040 §5, RFC 7306 §5).

use crate::ddp::tx::Target;
use crate::rdmap::read::{Awaited, CONFIRMATION, RTR_WORK};
use crate::stream::tx::message::{Message, RTR_STAG, Source, untagged};
use crate::stream::tx::turn::Messages;
use crate::types::{Msn, QueueNumber, Stag, TaggedOffset};
use crate::verbs::SendOp;
use crate::wire::rdmap::{ABOUT_A_WRITE, AtomicOpcode, AtomicRequest, Opcode, ReadRequest};

impl Messages {
    /// The sink, if any, is at (`sink`, `sink_to`). `None`: the request sends no message, or two.
    pub(super) fn describe(
        &mut self,
        op: &SendOp,
        number: u64,
        len: u32,
        sink: Stag,
        sink_to: TaggedOffset,
    ) -> Option<Message> {
        let source = if number == RTR_WORK { Source::Inline } else { Source::Work(number) };
        Some(match *op {
            SendOp::Send { invalidate, solicited } => {
                // spec: RDMAP-5.3-1
                let msn = self.next_send_msn();
                // spec: RDMAP-4.1-4
                let invalidate_stag = invalidate.unwrap_or(Stag(0));
                let target = Target::Untagged { qn: QueueNumber::SEND, msn, invalidate_stag };
                Message::gathered(target, send_opcode(invalidate.is_some(), solicited), source, len)
            }
            SendOp::RdmaWrite { remote } => {
                // spec: RDMAP-5.1-2
                let target = Target::Tagged { stag: remote.stag, to: remote.to };
                Message::gathered(target, Opcode::RdmaWrite, source, len)
            }
            SendOp::RdmaRead { remote } => {
                // spec: RDMAP-5.2-1
                let request = ReadRequest {
                    sink_stag: sink,
                    sink_to,
                    size: len,
                    source_stag: remote.stag,
                    source_to: remote.to,
                };
                let awaited = Awaited::Read { stag: sink, to: sink_to, len, delivered_len: 0 };
                self.requester.sent(awaited, number);
                self.send_queue.asked_behind(number);
                let target = untagged(QueueNumber::READ_REQUEST, self.next_request_msn());
                Message::inline(target, Opcode::ReadRequest, source, &request.to_bytes())
            }
            // spec: EXT-6.3-1, EXT-6.3-2
            SendOp::Immediate { value, solicited } => {
                let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
                let target = untagged(QueueNumber::SEND, self.next_send_msn());
                Message::inline(target, opcode, source, &value.to_be_bytes())
            }
            SendOp::FetchAdd { remote, add, mask } => {
                let request = AtomicRequest {
                    opcode: AtomicOpcode::FetchAdd,
                    request_id: self.next_atomic_id(),
                    stag: remote.stag,
                    to: remote.to,
                    data: add,
                    mask,
                    // RFC 7306 §5.2.1: Compare Data is zero, Compare Mask all ones.
                    // spec: EXT-5.2.1-6
                    compare: 0,
                    compare_mask: u64::MAX,
                };
                let target = self.await_atomic(&request, number);
                Message::inline(target, Opcode::AtomicRequest, source, &request.to_bytes())
            }
            SendOp::CmpSwap { remote, compare, compare_mask, swap, swap_mask } => {
                let request = AtomicRequest {
                    opcode: AtomicOpcode::CmpSwap,
                    request_id: self.next_atomic_id(),
                    stag: remote.stag,
                    to: remote.to,
                    data: swap,
                    mask: swap_mask,
                    compare,
                    compare_mask,
                };
                let target = self.await_atomic(&request, number);
                Message::inline(target, Opcode::AtomicRequest, source, &request.to_bytes())
            }
            SendOp::SendImmediate { immediate, solicited } => {
                let opcode =
                    if solicited { Opcode::SendImmediateSolicited } else { Opcode::SendImmediate };
                let (msn, invalidate_stag) = (self.next_send_msn(), Stag(immediate));
                let target = Target::Untagged { qn: QueueNumber::SEND, msn, invalidate_stag };
                Message::gathered(target, opcode, source, len)
            }
            SendOp::LocalInvalidate { .. }
            | SendOp::BindMw { .. }
            | SendOp::RdmaWriteImmediate { .. } => return None,
        })
    }

    pub(super) fn about_a_write(
        &mut self,
        number: u64,
        immediate: u32,
        len: u32,
        solicited: bool,
    ) -> Message {
        let opcode = if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate };
        let (msn, invalidate_stag) = (self.next_send_msn(), ABOUT_A_WRITE);
        let target = Target::Untagged { qn: QueueNumber::SEND, msn, invalidate_stag };
        let value = u64::from(immediate) << 32 | u64::from(len);
        Message::inline(target, opcode, Source::Work(number), &value.to_be_bytes())
    }

    /// A Read Request of size 0, which asks for a confirmation: its Response says that everything
    /// before was delivered (RFC 5040 §5.5 rule 12). §5.2.1: at size 0 the tags are not checked.
    pub(super) fn confirmation(&mut self) -> Message {
        let (stag, to) = (RTR_STAG, TaggedOffset(0));
        let request =
            ReadRequest { sink_stag: stag, sink_to: to, size: 0, source_stag: stag, source_to: to };
        self.requester.sent(Awaited::Read { stag, to, len: 0, delivered_len: 0 }, CONFIRMATION);
        self.send_queue.asked();
        let target = untagged(QueueNumber::READ_REQUEST, self.next_request_msn());
        Message::inline(target, Opcode::ReadRequest, Source::Inline, &request.to_bytes())
    }

    // spec: EXT-5.2.1-1
    fn await_atomic(&mut self, request: &AtomicRequest, number: u64) -> Target {
        self.requester.sent(Awaited::Atomic { request_id: request.request_id }, number);
        self.send_queue.asked_behind(number);
        untagged(QueueNumber::READ_REQUEST, self.next_request_msn())
    }

    const fn next_send_msn(&mut self) -> Msn {
        let msn = self.numbers.send;
        self.numbers.send = msn.next();
        msn
    }

    const fn next_request_msn(&mut self) -> Msn {
        let msn = self.numbers.request;
        self.numbers.request = msn.next();
        msn
    }

    const fn next_atomic_id(&mut self) -> u32 {
        let id = self.numbers.atomic_id;
        self.numbers.atomic_id = id.wrapping_add(1);
        id
    }
}

const fn send_opcode(invalidate: bool, solicited: bool) -> Opcode {
    match (invalidate, solicited) {
        (false, false) => Opcode::Send,
        (true, false) => Opcode::SendInvalidate,
        (false, true) => Opcode::SendSolicited,
        (true, true) => Opcode::SendSolicitedInvalidate,
    }
}
