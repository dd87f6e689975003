//! Terms of the two startup frames, and violations in them.

use urnic_engine::mpa::startup::Revision;
use urnic_engine::wire::ProtocolVersion;
use urnic_engine::wire::mpa::{EnhancedHeader, RtrKinds};

use super::ReplayedConnection;
use crate::judge::findings::Kind;
use crate::observe::rtr;
use crate::observe::startup::Frame;
use crate::report::MarkersReport;

impl ReplayedConnection {
    pub(super) fn note_startup(&mut self, request: &Frame, reply: &Frame) {
        for (from, frame) in [("initiator", request), ("responder", reply)] {
            if frame.reserved_is_set {
                self.findings.add(Kind::StartupReserved, from, frame.frame, || {
                    "reserved flags are set in the startup frame".to_owned()
                });
            }
            if Revision::from_wire(frame.header.revision).is_none() {
                self.findings.add(Kind::StartupFrame, from, frame.frame, || {
                    format!("unknown MPA revision {}", frame.header.revision)
                });
            }
        }
        // RFC 6581 §10: the Reply is enhanced if and only if the Request is.
        if request.header.enhanced != reply.header.enhanced && !reply.header.reject {
            self.findings.add(Kind::StartupAnswer, "", reply.frame, || {
                "one of the startup frames is enhanced and the other is not".to_owned()
            });
        }
        if let (Some(wanted), Some(said)) = (request.enhanced, reply.enhanced)
            && !reply.header.reject
        {
            self.note_enhanced(&wanted, &said, reply.frame);
        }
    }

    fn note_enhanced(&mut self, wanted: &EnhancedHeader, said: &EnhancedHeader, frame: u64) {
        let count = |depth| (depth != EnhancedHeader::NOT_NEGOTIATED).then_some(depth);
        // RFC 6581 §9.1: the responder's ORD MUST NOT exceed the initiator's IRD.
        if let (Some(ird), Some(ord)) = (count(wanted.ird), count(said.ord))
            && ord > ird
        {
            self.findings.add(Kind::Depths, "responder", frame, || {
                format!("the responder's ORD of {ord} is above the initiator's IRD of {ird}")
            });
        }
        // RFC 6581 §9.1: if one end leaves a depth to the applications, the other does, too.
        for (what, is_open, answer) in [
            ("ORD", count(wanted.ord).is_none(), count(said.ird)),
            ("IRD", count(wanted.ird).is_none(), count(said.ord)),
        ] {
            if let (true, Some(depth)) = (is_open, answer) {
                self.findings.add(Kind::DepthsOpen, "responder", frame, || {
                    format!(
                        "the initiator leaves its {what} open, and the Reply answers by {depth}"
                    )
                });
            }
        }
        if let (Some(ord), Some(ird)) = (count(wanted.ord), count(said.ird))
            && ord > ird
        {
            self.findings.add(Kind::DepthsLowered, "", frame, || {
                format!(
                    "the initiator asks for an ORD of {ord}, and the responder takes {ird} requests at a time"
                )
            });
        }
        self.note_rtr(wanted, said, frame);
    }

    fn note_rtr(&mut self, wanted: &EnhancedHeader, said: &EnhancedHeader, frame: u64) {
        if !wanted.peer_to_peer {
            if said.peer_to_peer {
                self.findings.add(Kind::RtrUnmatched, "responder", frame, || {
                    "the Reply has the peer-to-peer model, for which the Request does not ask"
                        .to_owned()
                });
            } else if !(wanted.rtr | said.rtr).is_empty() {
                self.findings.add(Kind::RtrIdle, "", frame, || {
                    "RTR messages are named without the peer-to-peer model".to_owned()
                });
            }
            return;
        }
        let common = wanted.rtr & said.rtr;
        if !said.peer_to_peer || common.is_empty() {
            self.findings.add(Kind::RtrUnmatched, "responder", frame, || {
                "peer-to-peer model, but no RTR message that both ends support".to_owned()
            });
            return;
        }
        self.findings.add(Kind::Rtr, "", frame, || {
            format!("peer-to-peer model: the RTR message is a {}", rtr::names(common))
        });
    }
}

#[derive(Clone, Copy)]
pub(super) struct AgreedTerms {
    pub(super) crc: bool,
    pub(super) markers: MarkersReport,
    pub(super) version: ProtocolVersion,
    pub(super) rtr: Option<RtrKinds>,
    /// Read and Atomic Requests that each end accepts at a time: the initiator, the responder.
    pub(super) ird: [Option<u16>; 2],
}

impl AgreedTerms {
    pub(super) fn of(request: &Frame, reply: &Frame) -> Self {
        // RFC 5044 Appendix C: a peer of the RDMA Consortium always has markers and CRCs.
        let revision = Revision::from_wire(reply.header.revision);
        let words = request.enhanced.zip(reply.enhanced);
        let rtr = words.filter(|(wanted, said)| wanted.peer_to_peer && said.peer_to_peer);
        let rtr = rtr.map(|(wanted, said)| wanted.rtr & said.rtr).filter(|kinds| !kinds.is_empty());
        let depth = |ird| (ird != EnhancedHeader::NOT_NEGOTIATED).then_some(ird);
        let ird = words.map_or([None; 2], |(wanted, said)| [depth(wanted.ird), depth(said.ird)]);
        let is_rdmac = revision == Some(Revision::Rdmac);
        Self {
            // RFC 5044 §7.1.1: CRCs are off only if both sides say so; M asks for markers in what
            // its sender receives.
            crc: request.header.crc || reply.header.crc || is_rdmac,
            markers: MarkersReport {
                to_initiator: request.header.markers || is_rdmac,
                to_responder: reply.header.markers || is_rdmac,
            },
            version: revision.map_or(ProtocolVersion::IETF, Revision::protocol_version),
            rtr,
            ird,
        }
    }
}
