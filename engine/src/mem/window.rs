//! Memory windows: steering tags that an application binds to parts of its regions, and unbinds
//! again. A window owns the upper 24 bits of its steering tags; each binding chooses a new lowest
//! byte (the index and the key of the RDMAC verbs, §7.2.1, and of `ibv_inc_rkey`). While the window
//! is bound, there is a registration under the tag.

use super::access::Access;
use crate::types::{PdNum, Stag, TaggedOffset};

/// Type of a window (`ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Open to the streams that may use its region. A new binding replaces the old one at once; a
    /// binding to no bytes ends it. Neither end can invalidate it.
    One,
    /// Open to the stream of the queue pair at which it was bound (type 2B of InfiniBand), until an
    /// invalidation there, by this end or by its peer. The window can be bound again only after
    /// that.
    Two,
}

/// A binding of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's steering tag from then on; the application chooses its lowest byte.
    pub stag: Stag,
    /// The steering tag of the memory region, which must have [`Access::MW_BIND`].
    pub mr: Stag,
    /// Start of the window, as a tagged offset of the region.
    pub from: TaggedOffset,
    /// Length of the window. 0 unbinds a window of type 1, and is an error for one of type 2.
    pub len: u64,
    /// Tagged offset of the window's first byte for the peer: `from`, or another one.
    pub base: TaggedOffset,
    /// Rights of the peer; only remote rights count. Write and atomic need [`Access::LOCAL_WRITE`]
    /// of the region.
    pub access: Access,
}

/// Reason why a window was not bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// No window has the upper 24 bits of the steering tag.
    #[error("no such window")]
    NoWindow,
    /// Window, region and queue pair are of several domains, or the region is of another stream.
    #[error("window, region and queue pair may not be used together")]
    NotAssociated,
    /// The window is of type 2 and bound: invalidate it first.
    #[error("the window is bound already")]
    StillBound,
    /// A window of type 2 cannot be bound to no bytes.
    #[error("a window of type 2 is bound to no bytes")]
    Empty,
    /// The region's steering tag is not valid, or belongs to a window.
    #[error("no such memory region")]
    NoRegion,
    /// The region does not permit windows, or not the rights of the window.
    #[error("the region does not permit such a window")]
    AccessRights,
    /// The range is not inside the region, or its tagged offsets reach 2⁶⁴.
    #[error("the window is not inside the region")]
    BaseOrBounds,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) pd: PdNum,
    pub(super) mw_type: MwType,
    /// While the window is bound: its steering tag, and that of the region.
    pub(super) bound: Option<(Stag, Stag)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    Region {
        /// Number of windows bound to it.
        windows: u32,
    },
    Window(MwType),
}

/// The upper 24 bits of a steering tag, which identify its window, if it has one.
pub(super) const fn index_of(stag: u32) -> u32 {
    stag >> 8
}

/// The rights that a window can grant.
pub(super) const OF_PEERS: Access = Access::FOR_ATOMIC;
