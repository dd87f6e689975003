//! Permission to access a range of bytes.

use std::sync::Arc;

use urnic_netdev::SharedSlice;

use super::access::Access;
use super::atomic::AtomicOp;
use super::region::Region;
use super::shared::{Misaligned, WritableSlice};

/// A checked range of a registered region, valid while its [`TableGuard`](super::TableGuard) lives.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'g> {
    region: &'g Arc<Region>,
    offset: usize,
    len: usize,
    access: Access,
}

impl<'g> Grant<'g> {
    pub(super) const fn new(
        region: &'g Arc<Region>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Self {
        Self { region, offset, len, access }
    }

    /// Number of granted bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no byte is granted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The granted bytes. To send them to the peer, ask for [`Access::REMOTE_READ`].
    #[must_use]
    #[inline]
    pub fn slice(&self) -> SharedSlice<'g> {
        self.region.slice(self.offset, self.len).expect("a grant is inside its region")
    }

    /// Copies the bytes of `from` to offset `at` of the grant. Panics if they do not fit, or the
    /// grant has no right to write: the engine's bug.
    #[inline]
    pub fn place(&self, at: usize, from: SharedSlice<'_>) {
        let needed = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
        assert!(self.access.intersects(needed), "placed under a grant without a right to write");
        self.writable().copy_from(at, from);
    }

    /// Executes an atomic operation on the first eight granted bytes and returns their previous
    /// value: atomic against all such operations of this process, and on x86-64 against the
    /// processor's own 64-bit atomics, but not against data placed by Writes (RFC 7306 §5 leaves
    /// both open). Panics if fewer than eight bytes are granted, or without
    /// [`Access::REMOTE_ATOMIC`]: a bug of the engine, which a peer cannot cause.
    //
    // RFC 7306 §5.1.1, §5.1.2: the buffer's address must be aligned, not the TO.
    // spec: EXT-5-1, EXT-5-3, EXT-5.4-2
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
