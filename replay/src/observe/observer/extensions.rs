//! Requests and answers, including the RDMAP extensions (RFC 7306).

use urnic_engine::types::{Msn, QueueNumber};
use urnic_engine::wire::ddp::{DdpHeader, UntaggedHeader};
use urnic_engine::wire::rdmap::{AtomicOpcode, AtomicRequest, AtomicResponse, Opcode, ReadRequest};
use urnic_engine::wire::terminate::Terminate;

use super::{Observer, Part, Request};
use crate::judge::findings::Kind;
use crate::observe::rtr;

/// Returns the finding for an opcode in a wrong place.
pub(super) const fn opcode_kind(opcode: Opcode) -> Kind {
    match opcode {
        Opcode::Immediate
        | Opcode::ImmediateSolicited
        | Opcode::AtomicRequest
        | Opcode::AtomicResponse => Kind::ExtensionOpcode,
        _ => Kind::Opcode,
    }
}

pub(super) fn send_in_error(terminate: &Terminate) -> Option<Msn> {
    match DdpHeader::parse(terminate.ddp_header.as_ref()?).ok()? {
        DdpHeader::Untagged(header) if header.qn == QueueNumber::SEND => Some(header.msn),
        _ => None,
    }
}

impl Observer<'_> {
    /// `message` is the part in the header, of `len` bytes in total; `None` if its form is wrong.
    pub(super) fn request_in(
        &mut self,
        opcode: Opcode,
        header: &UntaggedHeader,
        (message, len): (&[u8], usize),
        frame: u64,
    ) -> Option<Request> {
        // Each message of RFC 7306 is one segment: its §4.2 does not allow several.
        let is_whole = header.last && header.mo.0 == 0;
        let octets_of = |due: usize| message.get(..due).filter(|_| len == due);
        let mut wrong = |kind, due: usize| {
            let split = if is_whole { "" } else { " in one of several segments" };
            self.findings.add(kind, self.from, frame, || {
                format!("{opcode} of {len} bytes{split} instead of {due}")
            });
        };
        match opcode {
            Opcode::ReadRequest => {
                let octets = octets_of(ReadRequest::LEN);
                let request = octets.and_then(|octets| ReadRequest::parse(octets).ok());
                if request.is_none() {
                    wrong(Kind::ReadRequestLength, ReadRequest::LEN);
                }
                request.map(Request::Read)
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                if len != IMMEDIATE_DATA_LEN || !is_whole {
                    wrong(Kind::ImmediateLength, IMMEDIATE_DATA_LEN);
                }
                None
            }
            Opcode::AtomicRequest => {
                let octets = octets_of(AtomicRequest::LEN).filter(|_| is_whole);
                let Some(request) = octets.and_then(|octets| AtomicRequest::parse(octets).ok())
                else {
                    wrong(Kind::AtomicRequestForm, AtomicRequest::LEN);
                    return None;
                };
                if let AtomicOpcode::Reserved(bits) = request.opcode {
                    self.findings.add(Kind::AtomicRequestForm, self.from, frame, || {
                        format!("Atomic Request for operation {bits:#x}, which is not assigned")
                    });
                }
                Some(Request::Atomic(request.request_id))
            }
            Opcode::AtomicResponse => {
                let octets = octets_of(AtomicResponse::LEN).filter(|_| is_whole);
                let response = octets.and_then(|octets| AtomicResponse::parse(octets).ok());
                if response.is_none() {
                    wrong(Kind::AtomicResponseForm, AtomicResponse::LEN);
                }
                response.map(|response| Request::AtomicAnswer(response.request_id))
            }
            _ => None,
        }
    }

    /// `arrived` are its frame and time.
    pub(super) fn ask(&mut self, request: Request, arrived: (u64, u64)) {
        let (from, frame) = (self.from, arrived.0);
        match request {
            Request::Read(request) => {
                self.requested.read(request, from, arrived, self.notes, self.findings);
            }
            Request::Atomic(id) => {
                self.requested.atomic(id, from, frame, self.notes, self.findings);
            }
            Request::AtomicAnswer(id) => {
                self.answered.atomics.response((id, frame), self.notes, self.findings);
            }
        }
    }

    /// RFC 6581 §9.2: in the peer-to-peer model the initiator first sends an RTR message.
    pub(super) fn judge_rtr(&mut self, part: &Part, frame: u64) {
        let Some(kinds) = self.tally.rtr.take() else { return };
        let (opcode, len) = match part {
            Part::Untagged { request: Some(Request::Read(request)), opcode, .. } => {
                (*opcode, u64::from(request.size))
            }
            Part::Tagged { opcode, len, .. } | Part::Untagged { opcode, len, .. } => {
                (*opcode, *len as u64)
            }
            // Another finding describes the error.
            Part::Terminate | Part::Unusable => return,
        };
        if !rtr::is_one(kinds, opcode, len) {
            self.findings.add(Kind::RtrOther, self.from, frame, || {
                format!(
                    "its first FPDU is a {opcode} for {len} bytes; the RTR message agreed on is a {}",
                    rtr::names(kinds)
                )
            });
        }
    }
}

/// Bytes of Immediate Data (RFC 7306 §6.3).
const IMMEDIATE_DATA_LEN: usize = 8;
