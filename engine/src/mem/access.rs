//! Rights on a region, and refusals of requests.

use bitflags::bitflags;

use crate::types::QpNum;

bitflags! {
    /// Rights of a steering tag. The owner may always read.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// The owner's own work requests may place data: receives, and sinks of RDMA Reads.
        const LOCAL_WRITE = 1 << 0;
        /// The peer may read, by RDMA Read Request.
        const REMOTE_READ = 1 << 1;
        /// The peer may place data, by RDMA Write.
        const REMOTE_WRITE = 1 << 2;
        /// The peer may execute atomic operations (RFC 7306 §5). At queue pairs with the rules of
        /// iWARP use [`FOR_ATOMIC`](Self::FOR_ATOMIC).
        const REMOTE_ATOMIC = 1 << 3;
        /// The peer may invalidate the steering tag although its [`Scope`] is a whole domain.
        const REMOTE_INVALIDATE = 1 << 4;
        /// Windows may be bound to the region ([`MwBind`](super::MwBind)).
        const MW_BIND = 1 << 5;
    }
}

impl Access {
    /// The rights that an atomic operation needs by the rules of iWARP (RFC 7306 §9).
    // spec: SEC-R-18
    pub const FOR_ATOMIC: Self =
        Self::REMOTE_READ.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);

    pub(crate) const WRITING: Self =
        Self::LOCAL_WRITE.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);
}

/// Streams that may use a steering tag (RFC 5041 §8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every stream of the registration's protection domain.
    Pd,
    /// This stream only. The peer at its other end may invalidate the steering tag.
    Stream(QpNum),
}

/// Reason why access by a steering tag is refused, with its codes in DDP's and RDMAP's Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// No such steering tag: never assigned, deregistered, or invalidated.
    #[error("invalid steering tag")]
    InvalidStag,
    /// The range is not inside the registered range.
    #[error("tagged offset or length outside the registered range")]
    BaseOrBounds,
    /// The steering tag does not permit this kind of access.
    #[error("access rights violation")]
    AccessRights,
    /// The steering tag belongs to another protection domain or another stream.
    #[error("steering tag not associated with the stream")]
    NotAssociated,
    /// Tagged offset plus length reaches 2⁶⁴.
    #[error("tagged offset wraps")]
    TaggedOffsetWrap,
    /// Several streams share the steering tag, and remote invalidation is not granted.
    #[error("steering tag cannot be invalidated by the peer")]
    CannotInvalidate,
    /// Windows are bound to the region: unbind them first.
    #[error("windows are bound to the region")]
    WindowsBound,
    /// A window of type 1 cannot be invalidated, only bound to no bytes.
    #[error("a window of type 1 cannot be invalidated")]
    WindowOfTypeOne,
}

/// Reason why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The range is not inside its region.
    #[error("range outside its region")]
    OutsideRegion,
    /// The range's tagged offsets would reach 2⁶⁴.
    #[error("tagged offsets of the range wrap")]
    TaggedOffsetWrap,
    /// `access` has a right to write, but the memory is mapped read-only.
    #[error("write access to read-only memory")]
    ReadOnlyMemory,
    /// The table is full.
    #[error("no room for another registration")]
    TableFull,
    /// The steering tag to reregister is no longer valid.
    #[error("the steering tag is no longer valid")]
    NotRegistered,
    /// Windows are bound to the region to reregister: unbind them first.
    #[error("windows are bound to the region")]
    WindowsBound,
}

/// Misuse of a region by its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionMisuse {
    /// The range is not inside the region.
    #[error("range outside the region")]
    OutsideRegion,
    /// The memory is mapped read-only.
    #[error("write to read-only memory")]
    ReadOnlyMemory,
}
