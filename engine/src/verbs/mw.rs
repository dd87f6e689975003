//! Memory windows.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mem::{Access, MwBind, MwType};
use crate::types::{PdNum, Stag, TaggedOffset};
use crate::verbs::{Mr, RnicShared};

/// A memory window: a steering tag with rights of its own, which requests of the send queue
/// ([`SendOp::BindMw`](crate::verbs::SendOp::BindMw)) bind to a part of a memory region, in the
/// order of the send queue. The binding ends when the window is bound again or invalidated
/// (depending on its [`MwType`]), when its region ends ([`Mr::invalidate`]), or when the `Mw` is
/// dropped. When the call that ends the binding has returned, or the request has completed, no
/// packet changes the memory through the old steering tag.
#[derive(Debug)]
pub struct Mw {
    rnic: Arc<RnicShared>,
    pd: PdNum,
    mw_type: MwType,
    /// The steering tag chosen last; initially one that was never bound.
    stag: AtomicU32,
    /// Increment of the lowest byte for the next steering tag: odd, so that each byte value returns
    /// as late as possible (RFC 5040 §8.1.1 (8)), and random, so that peers cannot guess it.
    step: u8,
}

impl Mw {
    pub(crate) fn alloc(rnic: Arc<RnicShared>, pd: PdNum, mw_type: MwType) -> io::Result<Self> {
        let (stag, step) = rnic.table.alloc_window(pd, mw_type).map_err(io::Error::other)?;
        Ok(Self { rnic, pd, mw_type, stag: AtomicU32::new(stag.0), step })
    }

    /// Type of the window.
    #[must_use]
    pub const fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Number of its protection domain.
    #[must_use]
    pub const fn pd(&self) -> PdNum {
        self.pd
    }

    /// The steering tag chosen last, which is valid once the binding that uses it has completed.
    #[must_use]
    pub fn stag(&self) -> Stag {
        Stag(self.stag.load(Ordering::Relaxed))
    }

    /// Chooses another steering tag of the window. Each one returns after 256 choices.
    pub fn next_stag(&self) -> Stag {
        let next = |stag: u32| {
            let [key, index @ ..] = stag.to_le_bytes();
            Some(u32::from_le_bytes([key.wrapping_add(self.step), index[0], index[1], index[2]]))
        };
        let before = self.stag.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        Stag(before.ok().and_then(next).unwrap_or_default())
    }

    /// A binding to bytes of `mr` under the [next](Self::next_stag) steering tag. The peer
    /// addresses them by offsets from 0 (`IBV_ACCESS_ZERO_BASED`), or from another
    /// [`MwBind::base`]. Panics if the range is not inside the region.
    #[must_use]
    pub fn bind(&self, mr: &Mr, range: Range<usize>, access: Access) -> MwBind {
        assert!(range.start <= range.end && range.end <= mr.len(), "range outside the region");
        MwBind {
            stag: self.next_stag(),
            mr: mr.stag(),
            from: mr.remote(range.start as u64).to,
            len: range.len() as u64,
            base: TaggedOffset(0),
            access,
        }
    }

    /// A binding to no bytes, which ends the binding of a window of type 1.
    #[must_use]
    pub fn unbind(&self) -> MwBind {
        MwBind {
            stag: self.next_stag(),
            mr: Stag(0),
            from: TaggedOffset(0),
            len: 0,
            base: TaggedOffset(0),
            access: Access::empty(),
        }
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        self.rnic.table.dealloc_window(self.stag());
    }
}
