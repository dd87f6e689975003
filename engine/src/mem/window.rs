//! Memory windows: steering tags that a program points at parts of its regions, and away again.
//!
//! A window has the upper 24 bits of its steering tags for itself from its allocation on; the lowest byte
//! is chosen anew with each binding (the index and the key of the RDMAC verbs, §7.2.1, and of `ibv_inc_rkey`).
//! While it is bound there is a registration under the tag, with what the window permits.

use super::access::Access;
use crate::types::{PdNum, Stag, TaggedOffset};

/// Which kind of window (`ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Open to every stream of its domain. Bound again, it shows something else at once; bound with no
    /// bytes, nothing. Only bindings change it: no invalidation does, of this end or of the peer.
    One,
    /// Open to the stream of the queue pair at which it was bound (type 2B of InfiniBand). An invalidation at
    /// that queue pair, of this end or of its peer, ends that; only then it may be bound again.
    Two,
}

/// What a window is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's steering tag from then on: its upper 24 bits are the window's, the lowest byte is the
    /// program's choice.
    pub stag: Stag,
    /// The steering tag of the memory region, which has to have [`Access::MW_BIND`].
    pub mr: Stag,
    /// Where the window begins, as a tagged offset of the region.
    pub from: TaggedOffset,
    /// Bytes it shows. 0 unbinds a window of type 1, whatever `mr` is, and is an error for one of type 2.
    pub len: u64,
    /// The tagged offset that the peer knows the window's first byte by: `from`, or another one.
    pub base: TaggedOffset,
    /// What the peer may do; of the rights, those of peers count. To write, or to execute atomics, is given
    /// only where the region has [`Access::LOCAL_WRITE`].
    pub access: Access,
}

/// Why a window was not bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The upper 24 bits of the steering tag are those of no window.
    #[error("no such window")]
    NoWindow,
    /// The window, the region and the queue pair are not of one domain, or the region is registered for
    /// another stream only.
    #[error("window, region and queue pair may not be used together")]
    NotAssociated,
    /// A window of type 2 that is bound has to be invalidated first.
    #[error("the window is bound already")]
    StillBound,
    /// A window of type 2 cannot show nothing.
    #[error("a window of type 2 is bound to no octets")]
    Empty,
    /// The region's steering tag is not valid, or is that of a window.
    #[error("no such memory region")]
    NoRegion,
    /// The region does not permit windows, or not what the window is to permit.
    #[error("the region does not permit such a window")]
    AccessRights,
    /// The range is not inside the region, or its tagged offsets reach 2⁶⁴.
    #[error("the window is not inside the region")]
    BaseOrBounds,
}

/// A window of the table.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) pd: PdNum,
    pub(super) mw_type: MwType,
    /// While it is bound: its steering tag, and that of the region.
    pub(super) bound: Option<(Stag, Stag)>,
}

/// What a steering tag was made by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// A memory region, to which so many windows are bound.
    Region {
        /// How many.
        windows: u32,
    },
    /// The binding of a window of this type.
    Window(MwType),
}

/// The upper 24 bits of a steering tag: which window it is of, if it is of one.
pub(super) const fn index_of(stag: u32) -> u32 {
    stag >> 8
}

/// The rights that a window may give.
pub(super) const OF_PEERS: Access = Access::FOR_ATOMIC;
