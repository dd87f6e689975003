//! RDMAP (RFC 5040, extended by RFC 7306): rules, values in and values out. [`rx`] checks that an
//! opcode is legal; [`read`] keeps the outstanding Reads and Atomics of the requester, and matches
//! the Responses.

pub mod read;
pub mod rx;

/// Reason why RDMAP refuses a message (RFC 5040 §4.8 Figure 10, RFC 6580 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RdmapError {
    /// Remote protection: the STag of a Read Request or Send with Invalidate is not valid.
    #[error("invalid STag")]
    InvalidStag,
    /// Remote protection: a Read outside the source buffer.
    #[error("base or bounds violation")]
    BaseOrBounds,
    /// Remote protection: the source buffer may not be read.
    #[error("access rights violation")]
    AccessRights,
    /// Remote protection: the source buffer belongs to another stream or domain.
    #[error("STag not associated with the stream")]
    NotAssociated,
    /// Remote protection: the source offset wraps.
    #[error("tagged offset wraps")]
    Wrap,
    /// Remote protection: the STag of a Send with Invalidate may not be invalidated by this peer.
    #[error("STag cannot be invalidated")]
    CannotInvalidate,
    /// Remote operation: wrong RDMAP version.
    #[error("invalid RDMAP version")]
    Version,
    /// Remote operation: reserved opcode, or on the wrong queue, or a Response without request.
    #[error("unexpected opcode")]
    UnexpectedOpcode,
    /// Remote operation: a failure of this stream, as a wrong length or a misaligned atomic.
    #[error("catastrophic error localised to the stream")]
    Stream,
}
