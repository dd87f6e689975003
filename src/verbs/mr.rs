//! Memory regions.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::mem::{Access, Region, Registration, Scope};
use crate::types::{PdNum, Stag, TaggedOffset};
use crate::verbs::{RemoteBuffer, RnicShared, Sge};

/// A registered memory region: memory with an STag under which peers reach it.
///
/// Peers may write it at any moment, so it is read and written by copying, never borrowed. The
/// tagged offset of its first octet is 0. Dropping it ends all remote access; the memory itself
/// stays while posted work refers to it.
#[derive(Debug)]
pub struct Mr {
    rnic: Arc<RnicShared>,
    pd: PdNum,
    region: Arc<Region>,
    stag: Stag,
    access: Access,
}

impl Mr {
    pub(crate) fn register(
        rnic: Arc<RnicShared>,
        pd: PdNum,
        region: Arc<Region>,
        access: Access,
    ) -> io::Result<Self> {
        let stag = rnic
            .table
            .register(Registration {
                region: Arc::clone(&region),
                offset: 0,
                len: region.len(),
                base: TaggedOffset(0),
                access,
                pd,
                scope: Scope::Pd,
            })
            .map_err(io::Error::other)?;
        Ok(Self { rnic, pd, region, stag, access })
    }

    /// The steering tag that peers use.
    #[must_use]
    pub const fn stag(&self) -> Stag {
        self.stag
    }

    /// Octets in the region.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether the region has no octets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place `offset` octets into the region, to advertise to a peer.
    #[must_use]
    pub const fn remote(&self, offset: u64) -> RemoteBuffer {
        RemoteBuffer { stag: self.stag, to: TaggedOffset(offset) }
    }

    /// A run of the region for a work request.
    ///
    /// # Panics
    /// When the range is not inside the region or longer than `u32::MAX` octets.
    #[must_use]
    pub fn sge(&self, range: Range<usize>) -> Sge {
        assert!(range.start <= range.end && range.end <= self.len(), "range outside the region");
        Sge {
            region: Arc::clone(&self.region),
            offset: range.start,
            len: u32::try_from(range.len()).expect("a run is at most u32::MAX octets"),
            stag: self.stag,
            to: TaggedOffset(range.start as u64),
            writable: self.access.contains(Access::LOCAL_WRITE),
        }
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Panics
    /// When they do not fit, or the region was mapped read-only.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.region.write(offset, bytes).expect("octets inside a writable region");
    }

    /// Copies octets from the region at `offset` into `bytes`.
    ///
    /// # Panics
    /// When they are not all inside the region.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.region.read(offset, bytes).expect("octets inside the region");
    }

    /// Ends all access through the STag; when this returns, no packet changes the memory any more
    /// (RFC 5040 §8.1.1). Returns whether it was still valid.
    pub fn invalidate(&self) -> bool {
        self.rnic.table.invalidate_local(self.stag, self.pd).is_ok()
    }

    /// Writes a file-backed region's changes to its file; nothing to do for other memory.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&self) -> io::Result<()> {
        self.region.flush()
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.rnic.table.deregister(self.stag);
    }
}
