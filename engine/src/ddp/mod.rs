//! Direct Data Placement (RFC 5041): rules, values in and values out. [`rx`] checks a segment's
//! header; [`untagged`] keeps the order of the messages of one untagged queue; [`tx`] computes the
//! length and the header of a segment. Nothing here accesses memory.

pub mod rx;
pub mod tx;
pub mod untagged;

/// Reason why DDP refuses a segment (RFC 5041 §7.2, RFC 6580 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DdpError {
    /// Shorter than a DDP header. RFC 5041 §7.2 assigns no code; reported as MPA's, as siw does.
    #[error("DDP segment shorter than its header")]
    Short,
    /// Tagged: the STag is not valid for this stream.
    #[error("invalid STag")]
    TaggedInvalidStag,
    /// Tagged: the placement exceeds the tagged buffer.
    #[error("tagged offset outside the buffer")]
    TaggedBaseOrBounds,
    /// Tagged: the STag belongs to another stream or protection domain.
    #[error("STag not associated with this stream")]
    TaggedNotAssociated,
    /// Tagged: the tagged offset wraps.
    #[error("tagged offset wraps")]
    TaggedWrap,
    /// Tagged: wrong DDP version.
    #[error("invalid DDP version in a tagged segment")]
    TaggedVersion,
    /// Untagged: no such queue.
    #[error("invalid queue number")]
    UntaggedQueueNumber,
    /// Untagged: the next message, but no buffer is posted for it.
    #[error("no buffer for the message")]
    UntaggedNoBuffer,
    /// Untagged: the message is not the next one, and no buffer is posted for its number.
    #[error("message sequence number out of range")]
    UntaggedMsnRange,
    /// Untagged: the message offset is not inside the buffer, or does not continue the message.
    #[error("invalid message offset")]
    UntaggedMsgOffset,
    /// Untagged: the message is longer than its buffer.
    #[error("message longer than its buffer")]
    UntaggedTooLong,
    /// Untagged: wrong DDP version.
    #[error("invalid DDP version in an untagged segment")]
    UntaggedVersion,
}
