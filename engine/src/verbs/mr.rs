//! Memory regions.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::mem::handles::Handles;
use crate::mem::{Access, Refusal, Region, RegionMisuse, RegisterError, Registration, Scope};
use crate::types::{PdNum, QpNum, Stag, TaggedOffset};
use crate::verbs::{Pd, RemoteBuffer, RnicShared, Sge};

/// Which bytes of a region a registration opens, where they begin for the peer, and to which
/// stream (RFC 5040 §8.1.1 (4), (5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MrPart {
    /// The bytes, counted from the region's first.
    pub range: Range<usize>,
    /// The tagged offset of the first of them. Offset plus length must stay below 2⁶⁴.
    pub base: TaggedOffset,
    /// What is permitted.
    pub access: Access,
    /// The one queue pair whose stream may use the steering tag; `None` opens it to every stream
    /// of the domain (RFC 5041 §8.2). Only the peer of a single stream, and the holders of
    /// [`Access::REMOTE_INVALIDATE`], may invalidate it.
    pub only: Option<QpNum>,
}

/// A registered memory region: memory with an STag under which peers reach it.
///
/// Peers may write it at any moment, so it is read and written by copying, never borrowed. The
/// tagged offset of its first byte is 0, unless it was registered with [`MrPart::base`]. Dropping
/// it ends all access as [`invalidate`](Self::invalidate) does; the memory itself stays while posted
/// work refers to it.
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

/// A steering tag, until the last handle goes that was made for it.
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

    /// Has the STag stand for other bytes, or the same with other rights or in another domain
    /// (`ibv_rereg_mr`), and returns a handle for that. When this returns, no packet changes what the STag
    /// stood for and stands for no more, also not through receives and Reads posted before. This handle
    /// stays as it was: its scatter elements are refused where they do not fit any more. The STag is valid
    /// until both are dropped.
    ///
    /// # Errors
    /// As [`Pd::reg_part`], and when the STag is not valid any more or windows are bound to it; it stands for
    /// what it did.
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

    /// The memory that bytes of it are registered.
    #[must_use]
    pub const fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The steering tag that peers use.
    #[must_use]
    pub const fn stag(&self) -> Stag {
        self.stag
    }

    /// Registered bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Whether no byte is registered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The place `offset` bytes into the region, to advertise to a peer.
    #[must_use]
    pub const fn remote(&self, offset: u64) -> RemoteBuffer {
        RemoteBuffer { stag: self.stag, to: TaggedOffset(self.base.0.wrapping_add(offset)) }
    }

    /// A run of the region for a work request.
    ///
    /// # Panics
    /// When the range is not inside the region or longer than `u32::MAX` bytes.
    #[must_use]
    pub fn sge(&self, range: Range<usize>) -> Sge {
        assert!(range.start <= range.end && range.end <= self.len(), "range outside the region");
        Sge {
            region: self.handles.handle(&self.region),
            offset: self.range.start + range.start,
            len: u32::try_from(range.len()).expect("a run is at most u32::MAX octets"),
            stag: self.stag,
            pd: self.pd,
            only: self.only,
            to: self.remote(range.start as u64).to,
            writable: self.access.contains(Access::LOCAL_WRITE),
        }
    }

    /// Copies `bytes` into the region at `offset`.
    ///
    /// # Panics
    /// When they do not fit, or the region was mapped read-only.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let at = self.locate(offset, bytes.len()).expect("octets inside the registered range");
        self.region.write(at, bytes).expect("octets inside a writable region");
    }

    /// Copies bytes from the region at `offset` into `bytes`.
    ///
    /// # Panics
    /// When they are not all inside the region.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let at = self.locate(offset, bytes.len()).expect("octets inside the registered range");
        self.region.read(at, bytes).expect("octets inside the region");
    }

    /// Where in the region `len` bytes at `offset` of the registered range are.
    fn locate(&self, offset: usize, len: usize) -> Result<usize, RegionMisuse> {
        let room = self.len().checked_sub(offset).ok_or(RegionMisuse::OutsideRegion)?;
        if len > room {
            return Err(RegionMisuse::OutsideRegion);
        }
        Ok(self.range.start + offset)
    }

    /// Ends all access through the STag; when this returns, no packet changes the memory any more, also
    /// not through receives and Reads posted before (RFC 5040 §8.1.1), and nothing that is written
    /// there from now on is read by a peer (RFC 5042 §6.3.3). What a Read Response has taken before
    /// may still be on its way; a Response that was not whole ends its stream. Writes and Sends
    /// posted before are this end's own doing and still take what is there. Windows that are bound to
    /// the region show nothing any more. Returns whether the STag was still valid.
    pub fn invalidate(&self) -> bool {
        self.registered.rnic.table.deregister(self.stag)
    }

    /// The same, unless windows are bound to the region (`ibv_dereg_mr`): returns whether none are.
    pub fn invalidate_unless_bound(&self) -> bool {
        !matches!(self.registered.rnic.table.revoke(self.stag), Err(Refusal::WindowsBound))
    }

    /// Writes a file-backed region's changes to its file; nothing to do for other memory.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&self) -> io::Result<()> {
        self.region.flush()
    }
}

/// What the table is told.
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
