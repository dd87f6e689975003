//! The side that waits for the Request.

use std::ops::RangeInclusive;

use super::depth::{self, Depths};
use super::frame_reader::FrameReader;
use super::{
    Framing, MpaStartupError, Negotiated, Offer, PeerDepths, Progress, Revision, Rtr,
    StartupConfig, StartupMisuse, nothing_expected,
};
use crate::wire::mpa::{EnhancedHeader, RtrKinds, StartupFrame, StartupHeader, StartupKind};

/// Waits for a Request and answers it.
// RFC 5044 §7.1.2 (2): nothing is sent before a whole Request has been received and found good.
#[derive(Clone, Debug)]
pub struct Responder {
    config: StartupConfig,
    reader: FrameReader,
    state: State,
}

/// A whole Request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// The revision that the connection will use: the initiator's.
    pub revision: Revision,
    /// The initiator wants markers in what it receives (M).
    pub markers: bool,
    /// The initiator wants CRCs (C).
    pub crc: bool,
    /// The Request was enhanced (RFC 6581).
    pub enhanced: bool,
    /// The initiator's IRD and ORD.
    pub depths: PeerDepths,
    /// RTR messages the initiator supports; `None` in the client-server model.
    pub peer_to_peer: Option<RtrKinds>,
    /// The initiator sends and takes Sends and Writes with immediate data.
    pub immediates: bool,
    /// The initiator's Private Data, without the enhanced word.
    pub private_data: Vec<u8>,
}

#[derive(Clone, Debug)]
enum State {
    Reading,
    Requested(PeerRequest),
    Answered,
}

impl Responder {
    /// Waits for a Request. Fails if the configuration contradicts itself.
    pub fn new(config: &StartupConfig) -> Result<Self, StartupMisuse> {
        config.check()?;
        let reader = FrameReader::new(StartupKind::Request, acceptable(config));
        Ok(Self { config: *config, reader, state: State::Reading })
    }

    /// Handles bytes from the initiator. Fails if the Request is malformed, or bytes follow a whole
    /// Request: the initiator must wait for the Reply.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Progress<PeerRequest>, MpaStartupError> {
        if !matches!(self.state, State::Reading) {
            return nothing_expected(bytes);
        }
        // spec: MPA-7.1.2-2
        let consumed = self.reader.read(bytes)?;
        let Some((frame, revision)) = self.reader.frame() else {
            return Ok(Progress::NeedMore);
        };
        // RFC 5044 Appendix C.2.5: an RNIC of the RDMA Consortium answers revision 1 with its 0.
        let revision = revision.min(self.config.revision);
        let request = PeerRequest::from_frame(frame, revision);
        self.state = State::Requested(request.clone());
        Ok(Progress::Done { consumed, value: request })
    }

    /// Accepts the Request. Returns the Reply to send, and the terms. All further input is FPDUs.
    /// This side sends nothing but the Reply before the first valid FPDU arrives (RFC 5044 §7.1.2
    /// (4)). Fails if there is no Request to answer, or the offer does not fit a Reply. The call
    /// can be repeated.
    pub fn accept(&mut self, offer: &Offer<'_>) -> Result<(Vec<u8>, Negotiated), StartupMisuse> {
        let request = self.request(offer)?;
        let mut own = Depths { ird: offer.ird, ord: offer.ord };
        let rtr = self.rtr(request);
        // RFC 6581 §9.1: IRD MAY be raised if the model needs it, as for a Read as RTR.
        // spec: MPA2-9.1-4
        if rtr.contains(RtrKinds::READ) {
            own.ird = own.ird.max(1);
        }
        let (depths, said) = depth::respond(own, request.depths);
        // spec: MPA-7.1.2-13
        let reply = self.reply(request, said, false, offer.private_data);
        let negotiated = Negotiated {
            framing: Framing::agree(&self.config, request.revision, request.markers, request.crc),
            enhanced: request.enhanced,
            ird: depths.ird,
            ord: depths.ord,
            peer_depths: request.depths,
            rtr: if rtr.is_empty() { Rtr::None } else { Rtr::Expect(rtr) },
            immediates: self.config.immediates && request.immediates,
            private_data: request.private_data.clone(),
        };
        self.state = State::Answered;
        Ok((reply, negotiated))
    }

    /// Rejects the Request. Returns the Reply to send. MPA then ends; TCP stays open. `offer.ird`
    /// and `offer.ord` tell an enhanced initiator the depths that this side would have needed (RFC
    /// 6581 §9.1). Errors: as [`accept`](Self::accept).
    pub fn reject(&mut self, offer: &Offer<'_>) -> Result<Vec<u8>, StartupMisuse> {
        let request = self.request(offer)?;
        let said = Depths { ird: offer.ird, ord: offer.ord };
        // spec: MPA2-9.1-5
        let reply = self.reply(request, said, true, offer.private_data);
        self.state = State::Answered;
        Ok(reply)
    }

    fn request(&self, offer: &Offer<'_>) -> Result<&PeerRequest, StartupMisuse> {
        let State::Requested(request) = &self.state else {
            return Err(StartupMisuse::NoRequest);
        };
        offer.check(request.enhanced)?;
        Ok(request)
    }

    // RFC 6581 §9.2: the responder SHOULD set those it supports among the requested ones. If it
    // supports none of them, it MUST set one that it supports. In the client-server model none is
    // set.
    // spec: MPA2-9.2-4, MPA2-9.2-5
    fn rtr(&self, request: &PeerRequest) -> RtrKinds {
        match request.peer_to_peer {
            None => RtrKinds::empty(),
            Some(requested) if (self.config.rtr & requested).is_empty() => self.config.rtr,
            Some(requested) => self.config.rtr & requested,
        }
    }

    fn reply(
        &self,
        request: &PeerRequest,
        said: Depths,
        reject: bool,
        private_data: &[u8],
    ) -> Vec<u8> {
        // RFC 5044 Appendix C.2.4: a Request of revision 0 takes a Reply with M = 1 and C = 1.
        // spec: MPA-C-4
        let rdmac = request.revision == Revision::Rdmac;
        let header = StartupHeader {
            kind: StartupKind::Reply,
            markers: self.config.markers || rdmac,
            // RFC 5044 §7.1.1: the Request's C decides. If siw is set to require CRCs, it refuses a
            // Reply with C = 0.
            crc: self.config.crc || request.crc || rdmac,
            reject,
            // RFC 6581 §10: an enhanced Request takes an enhanced Reply, any other a plain one.
            // spec: MPA2-10-1, MPA2-10-2
            enhanced: request.enhanced,
            immediates: self.config.immediates && request.immediates,
            revision: request.revision.to_wire(),
        };
        let word = request.enhanced.then(|| EnhancedHeader {
            // RFC 6581 §9.2: A of the Reply MUST equal A of the Request.
            // spec: MPA2-9.2-1
            peer_to_peer: request.peer_to_peer.is_some(),
            rtr: self.rtr(request),
            ird: said.ird,
            ord: said.ord,
        });
        super::emit(header, word, private_data)
    }
}

// spec: MPA2-10-3
const fn acceptable(config: &StartupConfig) -> RangeInclusive<Revision> {
    match config.revision {
        // RFC 5044 Appendix C.2.5: permissive initiators first send revision 1, to any peer.
        Revision::Rdmac => Revision::Rdmac..=Revision::One,
        // RFC 5044 Appendix C.2.4.
        highest if config.permissive => Revision::Rdmac..=highest,
        // spec: MPA2-6-3
        highest => Revision::One..=highest,
    }
}

impl PeerRequest {
    fn from_frame(frame: StartupFrame<'_>, revision: Revision) -> Self {
        let (word, private_data) = frame.split_private_data();
        Self {
            revision,
            // RFC 5044 §7.1.1: R of a Request is not examined.
            // spec: MPA-7.1.1-3
            markers: frame.header.markers,
            crc: frame.header.crc,
            enhanced: word.is_some(),
            depths: word.as_ref().map(depth::peer_depths).unwrap_or_default(),
            // RFC 6581 §9.2: with A = 0, B, C and D are ignored.
            // spec: MPA2-9.2-8
            peer_to_peer: word.filter(|word| word.peer_to_peer).map(|word| word.rtr),
            immediates: frame.header.immediates,
            private_data: private_data.to_vec(),
        }
    }
}
