//! Runs of memory that can be registered.
#![expect(unsafe_code, reason = "owns memory that may change while the program looks")]

pub(crate) mod prefetch;

use std::fs::File;
use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};
use urnic_netdev::SharedSlice;
use urnic_netdev::published::{PublishedMemory, Publisher};

use super::access::RegionMisuse;
use super::shared::WritableSlice;

/// A run of memory that stays mapped while there is a handle to it. Registration
/// ([`RegionTable::register`](super::RegionTable::register)) gives peers access to it. Offsets
/// count bytes from the start. A region may be empty.
//
// The fields that queues read for each frame share no cache line with counts of handles.
#[derive(Debug)]
#[repr(align(64))]
pub struct Region {
    base: *mut u8,
    len: usize,
    writable: bool,
    pages: PageKind,
    keeper: Keeper,
}

#[derive(Debug)]
enum Keeper {
    Caller,
    Map(MmapRaw),
    Region(Arc<Region>),
    /// Memory that other processes may read.
    Published(#[expect(dead_code, reason = "keeps the memory mapped")] PublishedMemory),
}

/// Kind of a region's pages, which determines the cost of address translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// The processor's base page size, or unknown.
    Base,
    /// Base pages that the kernel was advised to merge into huge ones if it can.
    TransparentHuge,
    /// Huge pages of 2 MiB from the kernel's reserve.
    Huge,
}

// SAFETY: the memory is reached only through the operations of `SharedSlice` and `WritableSlice`,
// which tolerate access from any number of threads; unmapping needs no particular thread.
unsafe impl Send for Region {}
// SAFETY: as above; every other field is immutable.
unsafe impl Sync for Region {}

impl Region {
    /// New memory of `len` bytes, all zero, in base pages. Fails if the system is out of memory.
    pub fn anonymous(len: usize) -> io::Result<Arc<Self>> {
        let map = MmapOptions::new().len(len).map_anon()?;
        Ok(Self::from_map(map.into(), len, true, PageKind::Base))
    }

    /// Like [`anonymous`](Self::anonymous), in huge pages of 2 MiB if the system has them;
    /// [`pages`](Self::pages) returns the kind.
    pub fn huge(len: usize) -> io::Result<Arc<Self>> {
        const HUGE_PAGE_BITS: u8 = 21;
        // The kernel unmaps huge pages only as a whole, so the length is rounded up here.
        let mapped_len = len
            .checked_next_multiple_of(1 << HUGE_PAGE_BITS)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        if mapped_len == 0 {
            return Self::anonymous(0);
        }
        let mut options = MmapOptions::new();
        options.len(mapped_len);
        if let Ok(map) = options.clone().huge(Some(HUGE_PAGE_BITS)).map_anon() {
            return Ok(Self::from_map(map.into(), len, true, PageKind::Huge));
        }
        let map = options.map_anon()?;
        let pages = match map.advise(Advice::HugePage) {
            Ok(()) => PageKind::TransparentHuge,
            Err(_) => PageKind::Base,
        };
        Ok(Self::from_map(map.into(), len, true, pages))
    }

    /// New memory of `len` bytes, all zero, that the peers of `publisher`'s devices may read, whole
    /// and at any time, regardless of steering tags. Errors: as [`Publisher::allocate`]. Memory
    /// that cannot be published can be [private](Self::anonymous); it is then copied for sending.
    pub fn published(publisher: &Publisher, len: usize) -> io::Result<Arc<Self>> {
        let memory = publisher.allocate(len)?;
        let (base, pages) = (memory.as_ptr(), PageKind::Base);
        Ok(Arc::new(Self { base, len, writable: true, pages, keeper: Keeper::Published(memory) }))
    }

    /// Maps `len` bytes of `file`, from `offset` on, for reading and writing: bytes placed there go
    /// to the file. The file must not be truncated below `offset + len` while the region lives: the
    /// processor would fault on access. Fails if the file does not have that range, or cannot be
    /// mapped.
    pub fn file(file: &File, offset: u64, len: usize) -> io::Result<Arc<Self>> {
        check_file_range(file, offset, len)?;
        let map = MmapOptions::new().offset(offset).len(len).map_raw(file)?;
        Ok(Self::from_map(map, len, true, PageKind::Base))
    }

    /// Like [`file`](Self::file), but read-only: registration with a right to write is refused.
    pub(crate) fn file_read_only(file: &File, offset: u64, len: usize) -> io::Result<Arc<Self>> {
        check_file_range(file, offset, len)?;
        let map = MmapOptions::new().offset(offset).len(len).map_raw_read_only(file)?;
        Ok(Self::from_map(map, len, false, PageKind::Base))
    }

    /// A region of the caller's own memory.
    ///
    /// # Safety
    /// Until the last handle to the region is dropped (registrations and posted work keep one), the
    /// `len` bytes at `base` must stay mapped, readable and writable and inside one allocation, and
    /// must be accessed only by atomics, through this crate, or from outside the process. `len`
    /// must not exceed `isize::MAX`. With `len` 0, `base` may be dangling but not null.
    #[must_use]
    pub unsafe fn from_raw_parts(base: *mut u8, len: usize) -> Arc<Self> {
        let keeper = Keeper::Caller;
        Arc::new(Self { base, len, writable: true, pages: PageKind::Base, keeper })
    }

    /// Copies the bytes at `base` to `bytes`, without making a region of them.
    ///
    /// # Safety
    /// As [`from_raw_parts`](Self::from_raw_parts) for `bytes.len()` bytes, during the call; they
    /// need not be writable.
    pub unsafe fn read_raw(base: *const u8, bytes: &mut [u8]) {
        // SAFETY: mapped, readable, inside one allocation and accessed as this function's contract
        // says; a slice is never longer than `isize::MAX`.
        let from = unsafe { SharedSlice::from_raw_parts(base, bytes.len()) };
        from.copy_out(0, bytes);
    }

    fn from_map(map: MmapRaw, len: usize, writable: bool, pages: PageKind) -> Arc<Self> {
        assert!(len <= map.len(), "a region is not longer than its mapping");
        let base = map.as_mut_ptr();
        Arc::new(Self { base, len, writable, pages, keeper: Keeper::Map(map) })
    }

    pub(crate) fn again(self: &Arc<Self>) -> Self {
        let Self { base, len, writable, pages, .. } = **self;
        Self { base, len, writable, pages, keeper: Keeper::Region(Arc::clone(self)) }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the region has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[must_use]
    pub(crate) const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Kind of the region's pages.
    #[must_use]
    pub const fn pages(&self) -> PageKind {
        self.pages
    }

    /// The `len` bytes from `offset` on; `None` if they are not all inside the region.
    #[must_use]
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Option<SharedSlice<'_>> {
        let ptr = self.address(offset, len)?;
        // SAFETY: inside the region, which is mapped while it is borrowed, one allocation of at
        // most `isize::MAX` bytes, and written only by copies and atomics.
        Some(unsafe { SharedSlice::from_raw_parts(ptr, len) })
    }

    #[inline]
    pub(crate) fn writable(&self, offset: usize, len: usize) -> Option<WritableSlice<'_>> {
        if !self.writable {
            return None;
        }
        let ptr = self.address(offset, len)?;
        // SAFETY: as in `slice`; and it is mapped writable.
        Some(unsafe { WritableSlice::from_raw_parts(ptr, len) })
    }

    #[inline]
    fn address(&self, offset: usize, len: usize) -> Option<*mut u8> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: `offset <= self.len`, inside, or one past, the region's allocation.
        Some(unsafe { self.base.add(offset) })
    }

    /// Copies bytes from `offset` on. On [`RegionMisuse::OutsideRegion`] nothing is copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), RegionMisuse> {
        let from = self.slice(offset, bytes.len()).ok_or(RegionMisuse::OutsideRegion)?;
        from.copy_out(0, bytes);
        Ok(())
    }

    /// Copies `bytes` to `offset`: the application's own access, which needs no right. On a
    /// [`RegionMisuse`] nothing is copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), RegionMisuse> {
        if !self.writable {
            return Err(RegionMisuse::ReadOnlyMemory);
        }
        let to = self.writable(offset, bytes.len()).ok_or(RegionMisuse::OutsideRegion)?;
        to.copy_in(0, bytes);
        Ok(())
    }

    /// Waits until bytes placed in a file's region are on its device, whose error it returns. Does
    /// nothing for other memory.
    pub fn flush(&self) -> io::Result<()> {
        match &self.keeper {
            Keeper::Map(map) if self.writable => map.flush(),
            Keeper::Region(region) => region.flush(),
            Keeper::Map(_) | Keeper::Caller | Keeper::Published(_) => Ok(()),
        }
    }
}

/// Checks the range first: pages beyond the end of a file can be mapped but fault on access.
fn check_file_range(file: &File, offset: u64, len: usize) -> io::Result<()> {
    let len = u64::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
    if end > file.metadata()?.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "range beyond the end of the file",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
