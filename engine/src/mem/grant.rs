//! Permission to touch some bytes, and no others.

use std::sync::Arc;

use super::access::Access;
use super::atomic::AtomicOp;
use super::region::Region;
use super::shared::{Misaligned, SharedSlice, WritableSlice};

/// A checked range of a registered region, good while its [`TableGuard`](super::TableGuard) lives.
///
/// Offsets count bytes from the first granted one.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'g> {
    region: &'g Arc<Region>,
    offset: usize,
    len: usize,
    access: Access,
}

impl<'g> Grant<'g> {
    /// A grant for the `len` bytes at `offset`, which the table has checked to be inside the
    /// region, with the rights in `access`.
    pub(super) const fn new(
        region: &'g Arc<Region>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Self {
        Self { region, offset, len, access }
    }

    /// Granted bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte is granted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The granted bytes, to read. A caller that lets the peer see them must have asked for
    /// [`Access::REMOTE_READ`].
    #[must_use]
    #[inline]
    pub fn slice(&self) -> SharedSlice<'g> {
        self.region.slice(self.offset, self.len).expect("a grant is inside its region")
    }

    /// Places the bytes of `from`, beginning at `at`.
    ///
    /// # Panics
    /// When they do not fit the grant, or it was not asked for a right to write: an engine's bug,
    /// never a peer's doing.
    #[inline]
    pub fn place(&self, at: usize, from: SharedSlice<'_>) {
        let needed = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
        assert!(self.access.intersects(needed), "placed under a grant without a right to write");
        self.writable().copy_from(at, from);
    }

    /// Executes an atomic operation on the first eight granted bytes and returns what they were.
    ///
    /// It is atomic against all others, of every stream of this process, and on x86-64 against the
    /// processor's own 64-bit atomics; against data placed by Writes it is not (RFC 7306 §5 leaves
    /// both open).
    ///
    /// # Errors
    /// [`Misaligned`], with memory unchanged.
    ///
    /// # Panics
    /// When fewer than eight bytes are granted, or the grant was not asked for
    /// [`Access::REMOTE_ATOMIC`]: an engine's bug, never a peer's doing.
    //
    // RFC 7306 §5.1.1, §5.1.2: it is the buffer's address that must be aligned, not the TO.
    pub(crate) fn execute(&self, op: AtomicOp) -> Result<u64, Misaligned> {
        let granted = self.access.contains(Access::REMOTE_ATOMIC);
        assert!(granted, "atomic operation under a grant for something else");
        self.writable().fetch_update_u64(0, |original| op.apply(original))
    }

    #[inline]
    fn writable(&self) -> WritableSlice<'g> {
        self.region
            .writable(self.offset, self.len)
            .expect("registration refuses rights to write read-only memory")
    }
}
