//! Protection domains.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::mem::{Access, MwType, Region};
use crate::types::{PdNum, TaggedOffset};
use crate::verbs::{Mr, MrPart, Mw, Qp, QpConfig, QueueError, RnicShared, Srq};

/// A protection domain: the memory that a stream of it can reach (RFC 5042 §2.1).
#[derive(Clone, Debug)]
pub struct Pd {
    rnic: Arc<RnicShared>,
    number: PdNum,
}

impl Pd {
    pub(crate) fn new(rnic: Arc<RnicShared>, number: PdNum) -> Self {
        Self { rnic, number }
    }

    /// Number of the domain.
    #[must_use]
    pub const fn number(&self) -> PdNum {
        self.number
    }

    /// Registers `len` bytes of fresh, zeroed memory. Fails if it cannot be mapped or the table of
    /// registrations is full.
    pub fn reg_mr(&self, len: usize, access: Access) -> io::Result<Mr> {
        self.reg_region(Region::anonymous(len)?, access)
    }

    /// Registers a whole file, mapped shared: bytes that peers write go to the file. Fails if it
    /// cannot be mapped with the rights of `access`, or the table is full.
    pub fn reg_file(&self, file: &File, access: Access) -> io::Result<Mr> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let region = if access.intersects(Access::WRITING) {
            Region::file(file, 0, len)?
        } else {
            Region::file_read_only(file, 0, len)?
        };
        self.reg_region(region, access)
    }

    /// Registers existing memory; several registrations may share it. Fails if the region is
    /// read-only and `access` includes writing, or the table is full.
    pub fn reg_region(&self, region: Arc<Region>, access: Access) -> io::Result<Mr> {
        let range = 0..region.len();
        self.reg_part(region, MrPart { range, base: TaggedOffset(0), access, only: None })
    }

    /// Registers the bytes of existing memory that `part` describes. Fails if the range is not
    /// inside the region or its tagged offsets reach 2⁶⁴, if the region is read-only and `part`
    /// includes writing, or if the table is full.
    pub fn reg_part(&self, region: Arc<Region>, part: MrPart) -> io::Result<Mr> {
        Mr::register(Arc::clone(&self.rnic), self.number, region, part)
    }

    /// Creates a memory window that is not bound yet. Fails if there are
    /// [`WINDOWS_MAX`](crate::limits::WINDOWS_MAX) already.
    pub fn alloc_mw(&self, mw_type: MwType) -> io::Result<Mw> {
        Mw::alloc(Arc::clone(&self.rnic), self.number, mw_type)
    }

    /// Unbinds the windows of type 2 that were bound at a queue pair of this domain, before another
    /// one gets its number ([`QpConfig::number`]).
    pub fn unbind_at(&self, qp: &Qp) {
        self.rnic.table.unbind_at(self.number, qp.number());
    }

    /// Creates a queue pair in this domain. Fails if a depth in `config` is 0 or beyond its limit,
    /// or its shared receive queue is in another domain.
    pub fn create_qp(&self, config: QpConfig) -> Result<Qp, QueueError> {
        Qp::new(&self.rnic, self.number, config)
    }

    /// Creates a receive queue for `depth` buffers that queue pairs of this domain share. Fails if
    /// `depth` is 0 or beyond [`QP_DEPTH_MAX`](crate::limits::QP_DEPTH_MAX).
    pub fn create_srq(&self, depth: usize) -> Result<Srq, QueueError> {
        Srq::new(self.number, depth)
    }
}
