//! From a layer's error to what the peer and the application are told.
//!
//! The matches here are exhaustive on purpose: a new error variant does not compile until it has
//! its Terminate code and its completion status.

use crate::ddp::DdpError;
use crate::mpa::MpaError;
use crate::rdmap::RdmapError;
use crate::verbs::WcStatus;
use crate::wire::terminate::TerminateCode;

/// Why a stream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer's FPDUs are not what MPA allows.
    #[error("MPA: {0}")]
    Mpa(#[from] MpaError),
    /// The peer's segments are not what DDP allows.
    #[error("DDP: {0}")]
    Ddp(#[from] DdpError),
    /// The peer's messages are not what RDMAP allows.
    #[error("RDMAP: {0}")]
    Rdmap(#[from] RdmapError),
    /// The connection was lost (RFC 5044 §8, code 1).
    #[error("the connection was lost")]
    ConnectionLost,
    /// The peer ended the stream with a Terminate: nothing behind it counts.
    #[error("the peer terminated the stream")]
    PeerTerminated,
    /// A completion queue overflowed: the stream cannot go on without losing completions.
    #[error("a completion queue overflowed")]
    CompletionQueueOverflow,
    /// RFC 6581 §9.1: the peer needs more inbound Reads than this end can give.
    #[error("the peer needs a larger IRD")]
    InsufficientIrd,
    /// RFC 6581 §9.2: no common kind of ready-to-receive message.
    #[error("no ready-to-receive message that both ends support")]
    NoMatchingRtr,
}

impl StreamError {
    /// The triple of the Terminate message that reports this error; `None` when there is nobody
    /// to tell.
    #[must_use]
    pub const fn terminate_code(self) -> Option<TerminateCode> {
        Some(match self {
            Self::Mpa(error) => mpa_code(error),
            Self::Ddp(error) => ddp_code(error),
            Self::Rdmap(error) => rdmap_code(error),
            Self::ConnectionLost | Self::PeerTerminated => return None,
            Self::CompletionQueueOverflow => TerminateCode::LOCAL_CATASTROPHIC,
            Self::InsufficientIrd => TerminateCode::MPA_INSUFFICIENT_IRD,
            Self::NoMatchingRtr => TerminateCode::MPA_NO_MATCHING_RTR,
        })
    }

    /// The status of the work request that was being served when the peer's error showed.
    #[must_use]
    pub const fn receive_status(self) -> WcStatus {
        match self {
            // RFC 5040 §5.3: a message longer than its buffer is an error to both ends.
            Self::Ddp(DdpError::UntaggedTooLong) => WcStatus::LocLenErr,
            Self::ConnectionLost
            | Self::PeerTerminated
            | Self::Mpa(_)
            | Self::Ddp(_)
            | Self::Rdmap(_)
            | Self::CompletionQueueOverflow
            | Self::InsufficientIrd
            | Self::NoMatchingRtr => WcStatus::WrFlushErr,
        }
    }
}

const fn mpa_code(error: MpaError) -> TerminateCode {
    // RFC 5044 §8, RFC 6580 §3.3.
    match error {
        MpaError::Crc { .. } => TerminateCode::MPA_CRC,
        MpaError::Marker { .. } | MpaError::UlpduLength { .. } => TerminateCode::MPA_MARKER,
    }
}

const fn ddp_code(error: DdpError) -> TerminateCode {
    // RFC 5041 §7.2, RFC 6580 §3.2.
    match error {
        // No code is assigned to a segment shorter than its header. siw reports it as an MPA
        // length error, and so do we.
        DdpError::Short => TerminateCode::MPA_MARKER,
        DdpError::TaggedInvalidStag => TerminateCode::DDP_TAGGED_INVALID_STAG,
        DdpError::TaggedBaseOrBounds => TerminateCode::DDP_TAGGED_BASE_BOUNDS,
        DdpError::TaggedNotAssociated => TerminateCode::DDP_TAGGED_STAG_NOT_ASSOCIATED,
        DdpError::TaggedWrap => TerminateCode::DDP_TAGGED_TO_WRAP,
        DdpError::TaggedVersion => TerminateCode::DDP_TAGGED_INVALID_VERSION,
        DdpError::UntaggedQueueNumber => TerminateCode::DDP_UNTAGGED_INVALID_QN,
        DdpError::UntaggedNoBuffer => TerminateCode::DDP_UNTAGGED_NO_BUFFER,
        DdpError::UntaggedMsnRange => TerminateCode::DDP_UNTAGGED_MSN_RANGE,
        DdpError::UntaggedMsgOffset => TerminateCode::DDP_UNTAGGED_INVALID_MO,
        DdpError::UntaggedTooLong => TerminateCode::DDP_UNTAGGED_TOO_LONG,
        DdpError::UntaggedVersion => TerminateCode::DDP_UNTAGGED_INVALID_VERSION,
    }
}

const fn rdmap_code(error: RdmapError) -> TerminateCode {
    // RFC 5040 §4.8 Figure 10, RFC 6580 §3.1.
    match error {
        RdmapError::InvalidStag => TerminateCode::RDMAP_INVALID_STAG,
        RdmapError::BaseOrBounds => TerminateCode::RDMAP_BASE_BOUNDS,
        RdmapError::AccessRights => TerminateCode::RDMAP_ACCESS_RIGHTS,
        RdmapError::NotAssociated => TerminateCode::RDMAP_STAG_NOT_ASSOCIATED,
        RdmapError::Wrap => TerminateCode::RDMAP_TO_WRAP,
        RdmapError::CannotInvalidate => TerminateCode::RDMAP_CANNOT_INVALIDATE,
        RdmapError::Version => TerminateCode::RDMAP_INVALID_VERSION,
        RdmapError::UnexpectedOpcode => TerminateCode::RDMAP_UNEXPECTED_OPCODE,
        RdmapError::Stream => TerminateCode::RDMAP_CATASTROPHIC_STREAM,
    }
}

/// The status of the oldest unfinished send request when the peer terminates with `code`.
#[must_use]
pub const fn status_of_terminate(code: TerminateCode) -> WcStatus {
    match (code.layer, code.etype) {
        // Remote protection errors of RDMAP, tagged buffer errors of DDP.
        (0 | 1, 1) => WcStatus::RemAccessErr,
        // Remote operation errors; untagged buffer errors.
        (0, 2) => WcStatus::RemOpErr,
        (1, 2) => WcStatus::RemInvReqErr,
        _ => WcStatus::RemOpErr,
    }
}
