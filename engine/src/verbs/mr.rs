//! Memory regions.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::mem::handles::Handles;
use crate::mem::{Access, Refusal, Region, RegionMisuse, RegisterError, Registration, Scope};
use crate::types::{PdNum, QpNum, Stag, TaggedOffset};
use crate::verbs::{Pd, RemoteBuffer, RnicShared, Sge};

/// The bytes of a region that a registration opens, and to whom (RFC 5040 §8.1.1 (4), (5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrPart {
    /// The bytes, counted from the start of the region.
    pub range: Range<usize>,
    /// Tagged offset of the first byte. Offset plus length must stay below 2⁶⁴.
    pub base: TaggedOffset,
    /// Granted rights.
    pub access: Access,
    /// The only queue pair whose stream may use the steering tag; `None` opens it to the domain
    /// (RFC 5041 §8.2). Only this one's peer, or peers with [`Access::REMOTE_INVALIDATE`], may
    /// invalidate it.
    pub only: Option<QpNum>,
}

/// A registered memory region: memory with an STag by which peers access it at any moment, so the
/// application reads and writes it by copying. The tagged offset of its first byte is
/// [`MrPart::base`], normally 0. Dropping it ends all access as [`invalidate`](Self::invalidate)
/// does. The memory itself stays while posted work refers to it.
#[derive(Debug)]
pub struct Mr {
    registered: Arc<Registered>,
    pd: PdNum,
    region: Arc<Region>,
    handles: Handles,
    range: Range<usize>,
    base: TaggedOffset,
    stag: Stag,
    access: Access,
    only: Option<QpNum>,
}

#[derive(Debug)]
struct Registered {
    rnic: Arc<RnicShared>,
    stag: Stag,
}

impl Mr {
    pub(crate) fn register(
        rnic: Arc<RnicShared>,
        pd: PdNum,
        region: Arc<Region>,
        part: MrPart,
    ) -> io::Result<Self> {
        let registration = registration(&region, pd, &part).map_err(io::Error::other)?;
        let stag = rnic.table.register(registration).map_err(io::Error::other)?;
        Ok(Self::of(Arc::new(Registered { rnic, stag }), pd, region, part))
    }

    fn of(registered: Arc<Registered>, pd: PdNum, region: Arc<Region>, part: MrPart) -> Self {
        let MrPart { range, base, access, only } = part;
        let stag = registered.stag;
        let handles = Handles::default();
        Self { registered, pd, region, handles, range, base, stag, access, only }
    }

    /// Changes the bytes, the rights or the domain of the STag (`ibv_rereg_mr`), and returns a
    /// handle for them. After the return, no packet changes bytes that the STag no longer covers,
    /// not even through receives and Reads posted before. This handle is unchanged: its scatter
    /// elements are refused if they do not fit. The STag is valid until both handles are dropped.
    /// Errors: as [`Pd::reg_part`]; also if the STag is no longer valid or windows are bound to it.
    pub fn reregister(
        &self,
        pd: &Pd,
        region: Arc<Region>,
        part: MrPart,
    ) -> Result<Self, RegisterError> {
        let registration = registration(&region, pd.number(), &part)?;
        self.registered.rnic.table.reregister(self.stag, registration)?;
        Ok(Self::of(Arc::clone(&self.registered), pd.number(), region, part))
    }

    /// The memory that contains the registered bytes.
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The steering tag that peers use.
    #[must_use]
    pub const fn stag(&self) -> Stag {
        self.stag
    }

    /// Number of registered bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Returns true if no byte is registered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the registered byte at `offset`, to advertise to a peer.
    #[must_use]
    pub const fn remote(&self, offset: u64) -> RemoteBuffer {
        RemoteBuffer { stag: self.stag, to: TaggedOffset(self.base.0.wrapping_add(offset)) }
    }

    /// A run of the registered bytes for a work request. Panics if `range` is not inside them or
    /// longer than `u32::MAX` bytes.
    #[must_use]
    pub fn sge(&self, range: Range<usize>) -> Sge {
        assert!(range.start <= range.end && range.end <= self.len(), "range outside the region");
        Sge {
            region: self.handles.handle(&self.region),
            offset: self.range.start + range.start,
            len: u32::try_from(range.len()).expect("a run is at most u32::MAX bytes"),
            stag: self.stag,
            pd: self.pd,
            only: self.only,
            to: self.remote(range.start as u64).to,
            writable: self.access.contains(Access::LOCAL_WRITE),
        }
    }

    /// Copies `bytes` to `offset` of the registered bytes. Panics if they do not fit, or the region
    /// is mapped read-only.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let at = self.locate(offset, bytes.len()).expect("bytes inside the registered range");
        self.region.write(at, bytes).expect("bytes inside a writable region");
    }

    /// Copies from `offset` of the registered bytes. Panics if not all of them are registered.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let at = self.locate(offset, bytes.len()).expect("bytes inside the registered range");
        self.region.read(at, bytes).expect("bytes inside the region");
    }

    fn locate(&self, offset: usize, len: usize) -> Result<usize, RegionMisuse> {
        let room = self.len().checked_sub(offset).ok_or(RegionMisuse::OutsideRegion)?;
        if len > room {
            return Err(RegionMisuse::OutsideRegion);
        }
        Ok(self.range.start + offset)
    }

    /// Ends all access through the STag, and through windows bound to it. After the return, no
    /// packet changes the memory, not even through receives and Reads posted before (RFC 5040
    /// §8.1.1), and no peer reads bytes that are written there from then on (RFC 5042 §6.3.3).
    /// Bytes that a Read Response copied before may still be in flight; an incomplete Response ends
    /// its stream. Writes and Sends posted before still read the memory. Returns true if the STag
    /// was valid.
    pub fn invalidate(&self) -> bool {
        self.registered.rnic.table.deregister(self.stag)
    }

    /// Like [`invalidate`](Self::invalidate), but returns false if windows are bound
    /// (`ibv_dereg_mr`).
    pub fn invalidate_unless_bound(&self) -> bool {
        !matches!(self.registered.rnic.table.revoke(self.stag), Err(Refusal::WindowsBound))
    }

    /// Writes a file-backed region's changes to its file; does nothing for other memory.
    pub fn flush(&self) -> io::Result<()> {
        self.region.flush()
    }
}

fn registration(
    region: &Arc<Region>,
    pd: PdNum,
    part: &MrPart,
) -> Result<Registration, RegisterError> {
    let MrPart { range, base, access, only } = part;
    let len = range.end.checked_sub(range.start).ok_or(RegisterError::OutsideRegion)?;
    Ok(Registration {
        region: Arc::clone(region),
        offset: range.start,
        len,
        base: *base,
        access: *access,
        pd,
        scope: only.map_or(Scope::Pd, Scope::Stream),
    })
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.rnic.table.deregister(self.stag);
    }
}
