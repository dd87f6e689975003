//! Startup: the Request and the Reply that turn a TCP stream into an MPA connection. [`Initiator`]
//! and [`Responder`] each own one side of the exchange, over an ordered stream of bytes in pieces
//! of any size. They keep no time: the owner drops a startup that exceeds
//! [`MPA_REQUEST_TIMEOUT_NS`](crate::limits::MPA_REQUEST_TIMEOUT_NS) or
//! [`MPA_REPLY_TIMEOUT_NS`](crate::limits::MPA_REPLY_TIMEOUT_NS). A peer that breaks the rules
//! causes an [`MpaStartupError`]. The startup is then unusable and TCP is closed (RFC 5044 §7.1.2
//! (2), (3)). Only a [`permissive`](StartupConfig::permissive) side also speaks revision 0, of the
//! RDMA Consortium. Drafts 05 to 08 of RFC 5044 are not distinguished: the known differences
//! concern what a sender may do, not the bytes on the wire.

mod depth;
mod fallback;
mod frame_reader;
mod initiator;
mod responder;

pub use crate::wire::mpa::{RtrKinds, StartupFrameError};
pub(crate) use fallback::Setback;
pub use fallback::{Fallback, Retry};
pub use initiator::{Initiator, Rejection, ReplyOutcome};
pub use responder::{PeerRequest, Responder};

use crate::limits::{PRIVATE_DATA_LEN_MAX, READS_OUTSTANDING_MAX};
use crate::wire::ProtocolVersion;
use crate::wire::mpa::{EnhancedHeader, StartupFrame, StartupHeader};

/// A revision of MPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revision {
    /// 0: RDMA Consortium, from before the RFCs (RFC 5044 Appendix C).
    Rdmac,
    /// 1: RFC 5044.
    One,
    /// 2: RFC 6581.
    Two,
}

impl Revision {
    /// The revision with this number on the wire; `None` if the number is unknown.
    #[must_use]
    pub const fn from_wire(rev: u8) -> Option<Self> {
        match rev {
            0 => Some(Self::Rdmac),
            1 => Some(Self::One),
            2 => Some(Self::Two),
            _ => None,
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Rdmac => 0,
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// The version that DDP and RDMAP use with it.
    // RFC 5044 §3: MPA gives DDP the negotiated version; Appendix C.1: versions are never mixed.
    // spec: MPA-3-7, MPA-C-1
    #[must_use]
    pub const fn protocol_version(self) -> ProtocolVersion {
        match self {
            Self::Rdmac => ProtocolVersion::RDMAC,
            Self::One | Self::Two => ProtocolVersion::IETF,
        }
    }
}

/// Settings of one side for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartupConfig {
    /// Ask the peer for markers in what it sends (M). Markers toward the peer are its choice.
    pub markers: bool,
    /// Ask for CRCs (C). They are off only if both sides say so.
    // RFC 5044 §4.4: on, unless the administrator explicitly asks for off.
    pub crc: bool,
    /// As initiator: the revision to speak. As responder: the highest to accept.
    /// [`Rdmac`](Revision::Rdmac) acts as an RNIC of the RDMA Consortium: revision 0 only, with
    /// markers and CRCs.
    pub revision: Revision,
    /// Work with RNICs of the RDMA Consortium too (a "permissive" RNIC of RFC 5044 Appendix C):
    /// with markers in both directions, CRCs, and version 0 of DDP and RDMAP.
    pub permissive: bool,
    /// As initiator with revision 2: announce IRD and ORD to the peer and adapt to the peer's own.
    pub negotiate_depths: bool,
    /// As initiator with revision 2: ask for the peer-to-peer model, in which an RTR message opens
    /// the connection and either side may send first after that.
    // spec: MPA2-5-1
    pub peer_to_peer: bool,
    /// RTR messages this side can send as initiator, or take as responder. Not empty.
    pub rtr: RtrKinds,
    /// As initiator: features to drop in another attempt if a peer lacks them ([`Retry`]).
    pub fallback: Fallback,
    /// As initiator: while the peer has sent nothing since its Reply, repeat an RDMA Write without
    /// payload, first after [`SILENCE_PROBE_AFTER_NS`](crate::limits::SILENCE_PROBE_AFTER_NS), then
    /// at doubled intervals. The Linux driver siw, as responder, needs this: it may leave an FPDU
    /// that follows closely on its Reply unread until more bytes arrive. Its Reply does not
    /// distinguish it; to other peers the Write means nothing (RFC 6581 §9.2 opens connections with
    /// it).
    pub silence_probe: bool,
    /// Send and accept Sends and Writes with immediate data on connections whose peer has this set
    /// too. No RFC defines them. This end announces it by a bit of its startup frame that RFC 5044
    /// §7.1.1 tells senders to leave 0 and receivers not to check: as initiator to every peer, as
    /// responder to a peer that has announced it.
    pub immediates: bool,
}

impl Default for StartupConfig {
    /// Revision 2 with depths negotiated, CRCs, no markers, client-server model, every fallback.
    fn default() -> Self {
        Self {
            markers: false,
            // spec: DDP-3-6, MPA-1.2-1, MPA-4.4-1
            crc: true,
            revision: Revision::Two,
            permissive: false,
            negotiate_depths: true,
            peer_to_peer: false,
            rtr: RtrKinds::WRITE.union(RtrKinds::READ),
            fallback: Fallback::all(),
            silence_probe: false,
            immediates: false,
        }
    }
}

impl StartupConfig {
    fn check(&self) -> Result<(), StartupMisuse> {
        // RFC 5044 Appendix C.1: an RNIC of the RDMA Consortium has markers and CRCs always on.
        if self.revision == Revision::Rdmac && !(self.markers && self.crc) {
            return Err(StartupMisuse::RdmacFraming);
        }
        // RFC 6581 §9.2: an enhanced responder MUST support at least one RTR message.
        // spec: MPA2-9.2-3
        if self.rtr.is_empty() {
            return Err(StartupMisuse::NoRtr);
        }
        if self.peer_to_peer && self.revision < Revision::Two {
            return Err(StartupMisuse::PeerToPeerRevision);
        }
        Ok(())
    }
}

/// Parameters of the application for one connection, at connect or at accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer<'a> {
    /// Private Data for the peer's application: at most 512 bytes, 508 in an enhanced frame.
    pub private_data: &'a [u8],
    /// Inbound RDMA Reads and Atomics to accept at a time: 0 to [`READS_OUTSTANDING_MAX`].
    pub ird: u16,
    /// Outbound Reads and Atomics wanted at a time: 0 to [`READS_OUTSTANDING_MAX`].
    pub ord: u16,
}

impl Offer<'_> {
    fn check(&self, enhanced: bool) -> Result<(), StartupMisuse> {
        // RFC 6581 §9: the enhanced word counts as Private Data.
        // spec: MPA2-6-5
        let word_len = if enhanced { EnhancedHeader::LEN } else { 0 };
        let len_max = PRIVATE_DATA_LEN_MAX - word_len;
        if self.private_data.len() > len_max {
            return Err(StartupMisuse::PrivateDataLen { len: self.private_data.len(), len_max });
        }
        if self.ird > READS_OUTSTANDING_MAX || self.ord > READS_OUTSTANDING_MAX {
            return Err(StartupMisuse::Depth);
        }
        Ok(())
    }
}

/// The terms of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Framing, in both directions.
    pub framing: Framing,
    /// The frames were enhanced (RFC 6581).
    pub enhanced: bool,
    /// Limit of inbound Reads and Atomics at a time.
    pub ird: u16,
    /// Limit of outbound Reads and Atomics outstanding at a time.
    pub ord: u16,
    /// IRD and ORD that the peer announced, for the application.
    // spec: MPA2-9.1-8
    pub peer_depths: PeerDepths,
    /// The first message of the connection.
    pub rtr: Rtr,
    /// Both ends send and take Sends and Writes with immediate data.
    pub immediates: bool,
    /// The peer's Private Data, without the enhanced word.
    pub private_data: Vec<u8>,
}

/// Framing of FPDUs after the startup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Revision both sides use.
    pub revision: Revision,
    /// CRCs are generated and checked.
    pub crc: bool,
    /// This side puts markers into what it sends: the peer's M.
    pub markers_to_peer: bool,
    /// The peer puts markers into what it sends: this side's M.
    pub markers_to_us: bool,
}

impl Framing {
    fn agree(config: &StartupConfig, revision: Revision, markers: bool, crc: bool) -> Self {
        // RFC 5044 Appendix C.2.4, C.2.5: with an RNIC of the RDMA Consortium there are markers in
        // both directions and CRCs, whatever the IETF side has requested.
        if revision == Revision::Rdmac {
            return Self { revision, crc: true, markers_to_peer: true, markers_to_us: true };
        }
        Self {
            revision,
            // RFC 5044 §7.1.1: CRCs are off only if both sides sent C = 0.
            // spec: MPA-4.4-2, MPA-4.4-6
            crc: config.crc || crc,
            // RFC 5044 §7.1.1: M = 1 received: markers MUST be added to what is sent.
            // spec: MPA-4.3-1, MPA-4.3-10, MPA-7.1.1-2
            markers_to_peer: markers,
            markers_to_us: config.markers,
        }
    }
}

/// IRD and ORD in the peer's frame. `None`: not announced; the applications agree on it themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerDepths {
    /// Reads that the peer accepts at a time, 0 to 16382.
    pub ird: Option<u16>,
    /// Reads that the peer wants outstanding at a time, 0 to 16382.
    pub ord: Option<u16>,
}

/// Role of an RTR message on a connection (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// Client-server model: no RTR message. The initiator sends first, whatever message it has.
    None,
    /// Initiator: sends this message before any other.
    Send(RtrKind),
    /// Responder: one of these arrives first.
    Expect(RtrKinds),
}

/// A kind of RTR message: its STag is not 0; no completion (RFC 6581 §4.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtrKind {
    /// A Send without payload.
    SendZero,
    /// An RDMA Write without payload.
    WriteZero,
    /// An RDMA Read of no bytes. It counts against the ORD until it is answered.
    ReadZero,
}

/// Progress in receiving the peer's frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// All bytes were consumed; the frame is not complete.
    NeedMore,
    /// The frame is complete.
    Done {
        /// Further ones are an error of the peer ([`MpaStartupError::EarlyData`]).
        // RFC 5044 §7.1.2 (2), (4): neither side may send between the Request and the Reply, nor
        // the responder between its Reply and the initiator's first FPDU.
        consumed: usize,
        /// Contents of the frame.
        value: T,
    },
}

/// The peer broke the startup protocol, or its terms are not acceptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MpaStartupError {
    /// The frame is malformed.
    #[error(transparent)]
    Frame(#[from] StartupFrameError),
    /// The peer's revision, given here, is not supported by the configuration.
    #[error("MPA revision {0} of the peer is not supported")]
    Revision(u8),
    /// The Reply is enhanced although the Request was not, or the other way round (RFC 6581 §10).
    #[error("the reply does not answer the kind of the request")]
    EnhancedMismatch,
    /// Bytes arrived between the frame and the answer to it.
    #[error("bytes before the peer may send any")]
    EarlyData,
    /// The responder wants more Reads outstanding than this side can serve (RFC 6581 §9.1).
    #[error("the responder wants more outstanding reads than can be served")]
    InsufficientIrd(Framing),
    /// Both sides support no RTR message in common (RFC 6581 §9.2).
    #[error("no ready-to-receive message that both sides support")]
    NoMatchingRtr(Framing),
}

impl MpaStartupError {
    /// Framing of the Terminate before TCP is closed; `None`: closed at once (RFC 5044 §8).
    // RFC 6581 §9.1, §9.2, RFC 5044 §7.1.2 (4): only from an initiator, after a valid Reply.
    // spec: MPA-8-3
    #[must_use]
    pub(crate) const fn terminates_in(&self) -> Option<Framing> {
        match *self {
            Self::InsufficientIrd(framing) | Self::NoMatchingRtr(framing) => Some(framing),
            Self::Frame(_) | Self::Revision(_) | Self::EnhancedMismatch | Self::EarlyData => None,
        }
    }
}

/// Misuse by the caller. Nothing was sent; the call can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartupMisuse {
    /// The Private Data is too long for the frame.
    #[error("private data of {len} bytes, at most {len_max} fit")]
    PrivateDataLen {
        /// Bytes given.
        len: usize,
        /// Bytes that fit.
        len_max: usize,
    },
    /// IRD or ORD is above `READS_OUTSTANDING_MAX`.
    #[error("IRD and ORD are at most {READS_OUTSTANDING_MAX}")]
    Depth,
    /// Revision 0 without markers or without CRCs.
    #[error("MPA revision 0 always has markers and CRCs")]
    RdmacFraming,
    /// No RTR message is configured.
    #[error("at least one kind of ready-to-receive message must be supported")]
    NoRtr,
    /// The peer-to-peer model without revision 2.
    #[error("the peer-to-peer model needs MPA revision 2")]
    PeerToPeerRevision,
    /// There is no Request to answer, or it was answered already.
    #[error("no MPA request waits for an answer")]
    NoRequest,
}

/// Rejects bytes that follow a whole frame before the frame is answered.
// spec: MPA-7.1.2-14
fn nothing_expected<T>(bytes: &[u8]) -> Result<Progress<T>, MpaStartupError> {
    if bytes.is_empty() { Ok(Progress::NeedMore) } else { Err(MpaStartupError::EarlyData) }
}

// spec: MPA-7.1-4
fn emit(header: StartupHeader, word: Option<EnhancedHeader>, private_data: &[u8]) -> Vec<u8> {
    // spec: MPA2-6-1
    let word = word.map(EnhancedHeader::to_bytes);
    let private_data: Vec<u8> = word.iter().flatten().chain(private_data).copied().collect();
    let mut frame = Vec::with_capacity(StartupHeader::LEN + private_data.len());
    StartupFrame { header, private_data: &private_data }.emit(&mut frame);
    frame
}

#[cfg(test)]
mod tests;
