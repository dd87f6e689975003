//! Maps a refusal or a layer's error to what the peer and the application receive. The matches are
//! exhaustive on purpose: a new variant needs its Terminate code and its completion status.

use crate::ddp::DdpError;
use crate::mem::{BindError, Refusal};
use crate::mpa::{MpaError, MpaFault, MpaStartupError};
use crate::rdmap::RdmapError;
use crate::verbs::WcStatus;
use crate::wire::terminate::{ErrorType, Terminate, TerminateCode};

/// Reason for the failure of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer's FPDUs violate MPA.
    #[error("MPA: {0}")]
    Mpa(#[from] MpaError),
    /// The peer's segments violate DDP.
    #[error("DDP: {0}")]
    Ddp(#[from] DdpError),
    /// The peer's messages violate RDMAP.
    #[error("RDMAP: {0}")]
    Rdmap(#[from] RdmapError),
    /// The connection was lost (RFC 5044 §8, code 1).
    #[error("the connection was lost")]
    ConnectionLost,
    /// The peer ended the stream with a Terminate: nothing after it counts.
    #[error("the peer terminated the stream")]
    PeerTerminated,
    /// A completion queue overflowed: the stream cannot continue without losing completions.
    #[error("a completion queue overflowed")]
    CompletionQueueOverflow,
    /// Memory of a posted request is not, or no longer, registered for the request's access.
    #[error("memory of a posted request is not registered for what the request asks")]
    LocalProtection,
    /// A Read or an Atomic posted before the connection, which allows none, was established.
    #[error("the connection allows no outstanding Reads and Atomics (its ORD is 0)")]
    OrdZero,
    /// A Send or Write with immediate data posted before the connection, which lacks them.
    #[error("the connection has not agreed on Sends and Writes with immediate data")]
    NoImmediates,
    /// A memory window could not be bound as a request asked.
    #[error("a memory window was not bound: {0}")]
    MwBind(BindError),
    /// A request could not invalidate a local steering tag: the tag stays valid.
    #[error("a local steering tag was not invalidated: {0}")]
    LocalInvalidate(Refusal),
}

impl StreamError {
    /// `None` if the peer cannot receive a Terminate, or has sent one itself.
    #[must_use]
    pub const fn terminate_code(self) -> Option<TerminateCode> {
        Some(match self {
            Self::Mpa(error) => mpa_code(error),
            Self::Ddp(error) => ddp_code(error),
            Self::Rdmap(error) => rdmap_code(error),
            Self::ConnectionLost | Self::PeerTerminated => return None,
            // RFC 5040 §4.8, §7.1 (1): the error is local; it concerns no segment header.
            Self::CompletionQueueOverflow
            | Self::LocalProtection
            | Self::OrdZero
            | Self::NoImmediates
            | Self::MwBind(_)
            | Self::LocalInvalidate(_) => TerminateCode::LOCAL_CATASTROPHIC,
        })
    }

    /// Returns true if the peer accessed memory without permission: a guessed or revoked steering
    /// tag, an offset outside the buffer, a right that was not granted (RFC 5042 §6.2).
    // spec: SEC-R-20, SEC-T-1
    #[must_use]
    pub const fn is_access_refusal(self) -> bool {
        matches!(
            self,
            Self::Ddp(
                DdpError::TaggedInvalidStag
                    | DdpError::TaggedBaseOrBounds
                    | DdpError::TaggedNotAssociated
                    | DdpError::TaggedWrap
            ) | Self::Rdmap(
                RdmapError::InvalidStag
                    | RdmapError::BaseOrBounds
                    | RdmapError::AccessRights
                    | RdmapError::NotAssociated
                    | RdmapError::Wrap
                    | RdmapError::CannotInvalidate
            )
        )
    }

    /// Status of the receive that was being served when the peer's error was found.
    #[must_use]
    pub(crate) const fn receive_status(self) -> WcStatus {
        match self {
            // RFC 5040 §5.3: a message longer than its buffer is an error at both ends.
            // spec: RDMAP-5.3-2
            Self::Ddp(DdpError::UntaggedTooLong) => WcStatus::LocLenErr,
            Self::LocalProtection => WcStatus::LocProtErr,
            Self::ConnectionLost
            | Self::PeerTerminated
            | Self::Mpa(_)
            | Self::Ddp(_)
            | Self::Rdmap(_)
            | Self::OrdZero
            | Self::NoImmediates
            | Self::MwBind(_)
            | Self::LocalInvalidate(_)
            | Self::CompletionQueueOverflow => WcStatus::WrFlushErr,
        }
    }
}

// spec: MPA-8-1
const fn mpa_code(error: MpaError) -> TerminateCode {
    // RFC 5044 §8, RFC 6580 §3.3.
    match error.fault {
        MpaFault::Crc => TerminateCode::MPA_CRC,
        // §8 gives an impossible length no code; siw and this engine report it as code 3.
        MpaFault::Marker | MpaFault::UlpduLength => TerminateCode::MPA_MARKER,
    }
}

// spec: DDP-7.2-1
const fn ddp_code(error: DdpError) -> TerminateCode {
    // RFC 5041 §7.2, RFC 6580 §3.2.
    match error {
        // No code is assigned to a segment shorter than its header: as siw, an MPA length error.
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

/// Status of the oldest unfinished send request if the peer terminates with `code`.
#[must_use]
pub(crate) const fn status_of_terminate(code: TerminateCode) -> WcStatus {
    match code.error_type() {
        ErrorType::RemoteProtection | ErrorType::TaggedBuffer => WcStatus::RemAccessErr,
        ErrorType::UntaggedBuffer => WcStatus::RemInvReqErr,
        ErrorType::RemoteOperation
        | ErrorType::LocalCatastrophic
        | ErrorType::DdpLocalCatastrophic
        | ErrorType::Llp
        | ErrorType::Unassigned => WcStatus::RemOpErr,
    }
}

/// A Terminate about the segment that begins with `segment`, with its header if RFC 5040 wants it.
pub(super) fn terminate_about(
    code: TerminateCode,
    segment: &[u8],
    segment_len: usize,
) -> Terminate {
    // RFC 5040 §4.8 Figure 10: RDMAP and DDP errors carry the header of the segment; local
    // catastrophic and LLP errors carry none.
    // spec: RDMAP-4.8-4
    let carries_header = match code.error_type() {
        ErrorType::LocalCatastrophic | ErrorType::Llp => false,
        ErrorType::RemoteProtection
        | ErrorType::RemoteOperation
        | ErrorType::DdpLocalCatastrophic
        | ErrorType::TaggedBuffer
        | ErrorType::UntaggedBuffer
        | ErrorType::Unassigned => true,
    };
    match u16::try_from(segment_len) {
        Ok(len) if carries_header => Terminate::about_segment(code, segment, len),
        _ => Terminate::new(code),
    }
}

/// RFC 5044 §8, RFC 6581 §9. Sent only if [`MpaStartupError::terminates_in`] gives a framing.
// spec: MPA-8-1
#[must_use]
pub(crate) const fn startup_code(error: MpaStartupError) -> TerminateCode {
    match error {
        MpaStartupError::InsufficientIrd(_) => TerminateCode::MPA_INSUFFICIENT_IRD,
        MpaStartupError::NoMatchingRtr(_) => TerminateCode::MPA_NO_MATCHING_RTR,
        MpaStartupError::Frame(_)
        | MpaStartupError::Revision(_)
        | MpaStartupError::EnhancedMismatch
        | MpaStartupError::EarlyData => TerminateCode::MPA_STARTUP_FRAME,
    }
}

/// RFC 5041 §7.2.
pub(super) const fn tagged_refusal(refusal: Refusal) -> DdpError {
    match refusal {
        // No DDP code means "no permission": siw and this engine use the code of an invalid STag.
        Refusal::InvalidStag
        | Refusal::AccessRights
        | Refusal::CannotInvalidate
        | Refusal::WindowsBound
        | Refusal::WindowOfTypeOne => DdpError::TaggedInvalidStag,
        Refusal::BaseOrBounds => DdpError::TaggedBaseOrBounds,
        Refusal::NotAssociated => DdpError::TaggedNotAssociated,
        Refusal::TaggedOffsetWrap => DdpError::TaggedWrap,
    }
}

/// RFC 5040 §4.8 Figure 10.
pub(super) const fn read_refusal(refusal: Refusal) -> RdmapError {
    match refusal {
        Refusal::InvalidStag => RdmapError::InvalidStag,
        Refusal::AccessRights
        | Refusal::CannotInvalidate
        | Refusal::WindowsBound
        | Refusal::WindowOfTypeOne => RdmapError::AccessRights,
        Refusal::BaseOrBounds => RdmapError::BaseOrBounds,
        Refusal::NotAssociated => RdmapError::NotAssociated,
        Refusal::TaggedOffsetWrap => RdmapError::Wrap,
    }
}

/// RFC 5040 §4.8 Figure 10.
// spec: SEC-T-1
pub(super) const fn invalidate_refusal(refusal: Refusal) -> RdmapError {
    match refusal {
        // Not 0/1/00 and 0/1/09: one code reveals least to a peer that guesses tags.
        Refusal::InvalidStag
        | Refusal::AccessRights
        | Refusal::CannotInvalidate
        | Refusal::WindowsBound
        | Refusal::WindowOfTypeOne
        | Refusal::BaseOrBounds
        | Refusal::NotAssociated
        | Refusal::TaggedOffsetWrap => RdmapError::CannotInvalidate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpa::startup::{Framing, Revision};

    /// Layer, type and code that RFC 5040, RFC 5041, RFC 5044 and RFC 6581 assign.
    // spec: DDP-7.2-1, MPA-8-1
    #[test]
    fn every_error_has_the_code_that_the_rfcs_assign() {
        let mpa = |fault| StreamError::from(MpaError { fault, droppable: false });
        let expected: [(StreamError, Option<&str>); 32] = [
            (mpa(MpaFault::Crc), Some("2/0/02")),
            (mpa(MpaFault::Marker), Some("2/0/03")),
            (mpa(MpaFault::UlpduLength), Some("2/0/03")),
            (DdpError::Short.into(), Some("2/0/03")),
            (DdpError::TaggedInvalidStag.into(), Some("1/1/00")),
            (DdpError::TaggedBaseOrBounds.into(), Some("1/1/01")),
            (DdpError::TaggedNotAssociated.into(), Some("1/1/02")),
            (DdpError::TaggedWrap.into(), Some("1/1/03")),
            (DdpError::TaggedVersion.into(), Some("1/1/04")),
            (DdpError::UntaggedQueueNumber.into(), Some("1/2/01")),
            (DdpError::UntaggedNoBuffer.into(), Some("1/2/02")),
            (DdpError::UntaggedMsnRange.into(), Some("1/2/03")),
            (DdpError::UntaggedMsgOffset.into(), Some("1/2/04")),
            (DdpError::UntaggedTooLong.into(), Some("1/2/05")),
            (DdpError::UntaggedVersion.into(), Some("1/2/06")),
            (RdmapError::InvalidStag.into(), Some("0/1/00")),
            (RdmapError::BaseOrBounds.into(), Some("0/1/01")),
            (RdmapError::AccessRights.into(), Some("0/1/02")),
            (RdmapError::NotAssociated.into(), Some("0/1/03")),
            (RdmapError::Wrap.into(), Some("0/1/04")),
            (RdmapError::CannotInvalidate.into(), Some("0/1/09")),
            (RdmapError::Version.into(), Some("0/2/05")),
            (RdmapError::UnexpectedOpcode.into(), Some("0/2/06")),
            (RdmapError::Stream.into(), Some("0/2/07")),
            (StreamError::CompletionQueueOverflow, Some("0/0/00")),
            (StreamError::LocalProtection, Some("0/0/00")),
            (StreamError::OrdZero, Some("0/0/00")),
            (StreamError::NoImmediates, Some("0/0/00")),
            (StreamError::MwBind(BindError::Empty), Some("0/0/00")),
            (StreamError::LocalInvalidate(Refusal::WindowsBound), Some("0/0/00")),
            (StreamError::ConnectionLost, None),
            (StreamError::PeerTerminated, None),
        ];
        for (error, code) in expected {
            let notice = error.terminate_code().map(|code| code.to_string());
            assert_eq!(notice.as_deref(), code, "{error}");
            let is_about_memory = code.is_some_and(|code| {
                code.starts_with("0/1/") || (code.starts_with("1/1/") && code != "1/1/04")
            });
            assert_eq!(error.is_access_refusal(), is_about_memory, "{error}");
        }
        let framing = Framing {
            revision: Revision::Two,
            crc: true,
            markers_to_peer: false,
            markers_to_us: false,
        };
        for (error, code) in [
            (MpaStartupError::EarlyData, "2/0/04"),
            (MpaStartupError::Revision(9), "2/0/04"),
            (MpaStartupError::EnhancedMismatch, "2/0/04"),
            (MpaStartupError::InsufficientIrd(framing), "2/0/06"),
            (MpaStartupError::NoMatchingRtr(framing), "2/0/07"),
        ] {
            assert_eq!(startup_code(error).to_string(), code, "{error}");
        }
    }

    // spec: RDMAP-4.8-4
    #[test]
    fn only_errors_about_a_segment_carry_its_header() {
        let header = [0x41; 18];
        for (code, carries) in [
            (TerminateCode::LOCAL_CATASTROPHIC, false),
            (TerminateCode::MPA_CRC, false),
            (TerminateCode::RDMAP_INVALID_STAG, true),
            (TerminateCode::RDMAP_UNEXPECTED_OPCODE, true),
            (TerminateCode::DDP_TAGGED_BASE_BOUNDS, true),
            (TerminateCode::DDP_UNTAGGED_NO_BUFFER, true),
        ] {
            let terminate = terminate_about(code, &header, 18);
            assert_eq!(terminate.ddp_header.is_some(), carries, "{code}");
            assert_eq!(terminate.segment_len, carries.then_some(18), "{code}");
        }
    }

    #[test]
    fn the_oldest_request_fails_by_the_kind_of_the_peer_error() {
        for (code, status) in [
            (TerminateCode::RDMAP_BASE_BOUNDS, WcStatus::RemAccessErr),
            (TerminateCode::DDP_TAGGED_INVALID_STAG, WcStatus::RemAccessErr),
            (TerminateCode::DDP_UNTAGGED_TOO_LONG, WcStatus::RemInvReqErr),
            (TerminateCode::RDMAP_CATASTROPHIC_STREAM, WcStatus::RemOpErr),
            (TerminateCode::LOCAL_CATASTROPHIC, WcStatus::RemOpErr),
            (TerminateCode::MPA_CRC, WcStatus::RemOpErr),
            (TerminateCode { layer: 9, etype: 9, code: 9 }, WcStatus::RemOpErr),
        ] {
            assert_eq!(status_of_terminate(code), status, "{code}");
        }
    }
}
