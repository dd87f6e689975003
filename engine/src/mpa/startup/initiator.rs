//! The side that sends the Request.

use super::depth::{self, Depths};
use super::frame_reader::FrameReader;
use super::{
    Framing, MpaStartupError, Negotiated, Offer, PeerDepths, Progress, Retry, Revision, Rtr,
    RtrKind, Setback, StartupConfig, StartupMisuse, fallback, nothing_expected,
};
use crate::wire::mpa::{EnhancedHeader, RtrKinds, StartupFrame, StartupHeader, StartupKind};

/// Sends a Request and waits for the Reply, whichever end opened TCP (RFC 5044 §7.1).
#[derive(Clone, Debug)]
pub struct Initiator {
    config: StartupConfig,
    enhanced: bool,
    offered: Depths,
    /// Private Data of the offer, for another attempt.
    private_data: Vec<u8>,
    reader: FrameReader,
    answered: bool,
}

/// A whole Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// R = 0. Full operation begins; this side sends first.
    Accepted(Negotiated),
    /// R = 1. MPA ends; TCP stays open until the application closes it.
    // RFC 5044 §7.1.2 (3) leaves TCP open. Its §7.1.4.2 says otherwise; the rule wins.
    Rejected(Rejection),
}

/// Contents of a rejecting Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Depths the responder would have needed (RFC 6581 §9.1).
    pub peer_depths: PeerDepths,
    /// The responder's Private Data, without the enhanced word.
    pub private_data: Vec<u8>,
}

impl Initiator {
    /// Also returns the Request. Fails if it cannot express the configuration or the offer.
    pub fn new(
        config: &StartupConfig,
        offer: &Offer<'_>,
    ) -> Result<(Self, Vec<u8>), StartupMisuse> {
        config.check()?;
        // RFC 6581 §10: the enhanced format MUST NOT be used when nothing of it is wanted.
        // spec: MPA2-6-2, MPA2-10-5
        let enhanced =
            config.revision >= Revision::Two && (config.negotiate_depths || config.peer_to_peer);
        offer.check(enhanced)?;
        let header = StartupHeader {
            kind: StartupKind::Request,
            markers: config.markers,
            crc: config.crc,
            // RFC 5044 §7.1.1: R is zero in a Request.
            // spec: MPA-7.1.1-3
            reject: false,
            enhanced,
            immediates: config.immediates,
            revision: config.revision.to_wire(),
        };
        let word = enhanced.then(|| request_word(config, offer));
        let initiator = Self {
            config: *config,
            enhanced,
            offered: Depths { ird: offer.ird, ord: offer.ord },
            private_data: offer.private_data.to_vec(),
            reader: FrameReader::new(StartupKind::Reply, lowest(config)..=config.revision),
            answered: false,
        };
        // spec: MPA-7.1.2-13
        Ok((initiator, super::emit(header, word, offer.private_data)))
    }

    /// Handles bytes from the responder. Fails if the Reply is malformed or its terms cannot be met
    /// (see `MpaStartupError::terminates_in`), or bytes follow a whole Reply.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
    ) -> Result<Progress<ReplyOutcome>, MpaStartupError> {
        if self.answered {
            return nothing_expected(bytes);
        }
        // spec: MPA-7.1.2-6
        let consumed = self.reader.read(bytes)?;
        let Some((reply, revision)) = self.reader.frame() else {
            return Ok(Progress::NeedMore);
        };
        let value = self.conclude(reply, revision)?;
        self.answered = true;
        Ok(Progress::Done { consumed, value })
    }

    /// On a new TCP connection, if the configuration has a fallback that would help.
    #[must_use]
    pub(crate) fn retry(&self, setback: &Setback<'_>) -> Option<Retry> {
        let Depths { ird, ord } = self.offered;
        let startup = fallback::after(&self.config, setback)?;
        Some(Retry { startup, private_data: self.private_data.clone(), ird, ord })
    }

    fn conclude(
        &self,
        reply: StartupFrame<'_>,
        revision: Revision,
    ) -> Result<ReplyOutcome, MpaStartupError> {
        let (word, private_data) = reply.split_private_data();
        let peer_depths = word.as_ref().map(depth::peer_depths).unwrap_or_default();
        let private_data = private_data.to_vec();
        // RFC 5044 §7.1.2 (3), RFC 6581 §9.1: a rejection is valid in either format.
        // spec: MPA-7.1.1-3
        if reply.header.reject {
            // spec: MPA2-9.1-8
            return Ok(ReplyOutcome::Rejected(Rejection { peer_depths, private_data }));
        }
        // RFC 6581 §10: an enhanced Request takes an enhanced Reply, any other a plain one.
        // spec: MPA2-10-1
        if word.is_some() != self.enhanced {
            return Err(MpaStartupError::EnhancedMismatch);
        }
        let framing =
            Framing::agree(&self.config, revision, reply.header.markers, reply.header.crc);
        let (depths, rtr) = match word {
            Some(word) => self.conclude_enhanced(&word, peer_depths, framing)?,
            None => (self.offered, Rtr::None),
        };
        Ok(ReplyOutcome::Accepted(Negotiated {
            framing,
            enhanced: self.enhanced,
            ird: depths.ird,
            ord: depths.ord,
            peer_depths,
            rtr,
            immediates: self.config.immediates && reply.header.immediates,
            private_data,
        }))
    }

    fn conclude_enhanced(
        &self,
        word: &EnhancedHeader,
        peer: PeerDepths,
        framing: Framing,
    ) -> Result<(Depths, Rtr), MpaStartupError> {
        // A responder that answers 0x3FFF with a number breaks RFC 6581 §9.1: its IRD is respected,
        // its ORD ignored. The applications agree on that themselves.
        let ord = if self.config.negotiate_depths { peer.ord } else { None };
        let mut depths = depth::conclude(self.offered, PeerDepths { ord, ..peer })
            // spec: MPA2-9.1-7
            .ok_or(MpaStartupError::InsufficientIrd(framing))?;
        if !self.config.peer_to_peer {
            return Ok((depths, Rtr::None));
        }
        // RFC 6581 §9.2: without a match the initiator MUST end the connection.
        let kind = choose_rtr(self.config.rtr, word, peer.ird)
            // spec: MPA2-9.2-7
            .ok_or(MpaStartupError::NoMatchingRtr(framing))?;
        if kind == RtrKind::ReadZero {
            // RFC 6581 §9.1: the responder raises its IRD for this Read even if no other is wanted.
            depths.ord = depths.ord.max(1);
        }
        Ok((depths, Rtr::Send(kind)))
    }
}

// RFC 5044 Appendix C.2.5: a permissive initiator changes to revision 0 if the Reply has it.
// spec: MPA-C-3, MPA-C-5
const fn lowest(config: &StartupConfig) -> Revision {
    match config.revision {
        Revision::Rdmac => Revision::Rdmac,
        _ if config.permissive => Revision::Rdmac,
        _ => Revision::One,
    }
}

fn request_word(config: &StartupConfig, offer: &Offer<'_>) -> EnhancedHeader {
    let depth =
        |depth| if config.negotiate_depths { depth } else { EnhancedHeader::NOT_NEGOTIATED };
    EnhancedHeader {
        peer_to_peer: config.peer_to_peer,
        // RFC 6581 §9.2: all supported messages MUST be set; none in the client-server model.
        // spec: MPA2-9.2-2, MPA2-9.2-8
        rtr: if config.peer_to_peer { config.rtr } else { RtrKinds::empty() },
        // spec: MPA2-9.1-1
        ird: depth(offer.ird),
        ord: depth(offer.ord),
    }
}

// RFC 6581 §9.2: the initiator MUST send one of the messages whose flag both sides have set. With A
// = 0 in the Reply its flags are ignored.
// spec: MPA2-9.2-6
fn choose_rtr(own: RtrKinds, reply: &EnhancedHeader, peer_ird: Option<u16>) -> Option<RtrKind> {
    let common = if reply.peer_to_peer { own & reply.rtr } else { RtrKinds::empty() };
    // The Write first: it needs no answer. The Read counts against the responder's IRD. The Send
    // last: the RFCs leave open whether it consumes a receive buffer.
    if common.contains(RtrKinds::WRITE) {
        Some(RtrKind::WriteZero)
    } else if common.contains(RtrKinds::READ) && peer_ird != Some(0) {
        Some(RtrKind::ReadZero)
    } else if common.contains(RtrKinds::SEND) {
        Some(RtrKind::SendZero)
    } else {
        None
    }
}
