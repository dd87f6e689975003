//! Memory of another process, mapped read-only: accessed by atomic loads, copies and fragments.
#![expect(unsafe_code, reason = "mmap, and reads of memory that another process writes")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, fence};

use crate::SharedSlice;
use crate::sys::copy::copy_out;
use crate::sys::shared_mapping::{cannot_shrink, cannot_write, has_huge_pages};

/// Memory file of another process, mapped whole. That process may write it at any time.
#[derive(Debug)]
pub(crate) struct ReadMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that created it.
unsafe impl Send for ReadMapping {}
// SAFETY: it is only read, by atomic loads and by copies that allow for others' writes.
unsafe impl Sync for ReadMapping {}

/// Reasons why memory of a peer is not mapped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// Bytes behind the end of a file cannot be accessed.
    #[error("memory of another length than announced")]
    Length,
    /// The file could be shortened, or its pages removed: an access would fault (SIGBUS).
    #[error("memory that is not sealed")]
    Seals,
    /// The host may have no huge page left for it: an access would fault (SIGBUS).
    #[error("memory of huge pages")]
    HugePages,
    /// Missing pages would be allocated by a read, and charged to this process.
    #[error("memory with missing pages")]
    Holes,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ReadMapping {
    /// Maps a file of `len` bytes that no process can shorten, and that has all its pages.
    pub(crate) fn of(file: BorrowedFd<'_>, len: usize) -> Result<Self, ReadError> {
        let fd = file.as_raw_fd();
        // A page of a writable file could be removed, and a read here would allocate it.
        if !cannot_shrink(file) || !cannot_write(file) {
            return Err(ReadError::Seals);
        }
        if has_huge_pages(file) {
            return Err(ReadError::HugePages);
        }
        let size = libc::off_t::try_from(len).map_err(|_| ReadError::Length)?;
        // The peer controls the file offset, which is not used otherwise.
        //
        // SAFETY: acts on an open descriptor.
        if len == 0 || unsafe { libc::lseek(fd, 0, libc::SEEK_END) } != size {
            return Err(ReadError::Length);
        }
        // SAFETY: as above.
        if unsafe { libc::lseek(fd, 0, libc::SEEK_HOLE) } != size {
            return Err(ReadError::Holes);
        }
        let (access, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses affects no other mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        // The children of this process must not see the peer's memory.
        //
        // SAFETY: the range was just mapped; the advice changes nothing in this process.
        let _best_effort = unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, len })
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn at(&self, at: usize, len: usize) -> *const u8 {
        let inside = at <= self.len && len <= self.len - at;
        assert!(inside, "{len} bytes at {at} of a mapping of {}", self.len);
        // SAFETY: just checked to be inside the mapping, or one past it.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Returns the 32-bit word at an offset. Later reads see what its writer stored before it.
    /// Panics if it is outside the mapping or not aligned.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> u32 {
        assert_eq!(at % size_of::<u32>(), 0, "a word is aligned");
        let word = self.at(at, size_of::<u32>()).cast_mut().cast();
        // Only loaded, relaxed, which std allows for four bytes of read-only memory on every Linux
        // target.
        //
        // SAFETY: four mapped bytes, aligned because mappings begin on a page, for as long as
        // `self` is borrowed; this process accesses them only by atomics and copies like atomics.
        let word: &AtomicU32 = unsafe { AtomicU32::from_ptr(word) };
        let value = word.load(Relaxed);
        fence(Acquire);
        value
    }

    /// Panics if there are fewer bytes than `octets` has.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, octets: &mut [u8]) {
        let from = self.at(at, octets.len());
        // SAFETY: that many bytes are mapped there, readable; no slice is ever created of a
        // mapping, so `octets` are elsewhere; the mapped bytes are written from outside the
        // process.
        unsafe { copy_out(from, octets) };
    }

    /// `None` if the bytes are outside of the mapping.
    #[inline]
    pub(crate) fn slice(&self, at: usize, len: usize) -> Option<SharedSlice<'_>> {
        if at > self.len || len > self.len - at {
            return None;
        }
        // SAFETY: that many bytes are mapped there and readable for as long as `self` is borrowed:
        // the file keeps its length and its pages. A mapping is no longer than `isize::MAX`. Only
        // other processes write it.
        Some(unsafe { SharedSlice::from_raw_parts(self.at(at, len), len) })
    }
}

impl Drop for ReadMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and all borrows of it have ended.
        let _unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::sys::published;

    #[test]
    fn reader_sees_the_writes_of_the_owner() {
        let (file, own) = published::memory(c"test", 5000).unwrap();
        let reading = ReadMapping::of(file.as_fd(), 5000).unwrap();
        own.word(4).store(0x0102_0304, Relaxed);
        own.copy_in(4990, b"the octets");
        assert_eq!((reading.word(4), reading.word(8)), (0x0102_0304, 0));
        let mut octets = [0; 10];
        reading.slice(4990, 10).unwrap().copy_out(0, &mut octets);
        assert_eq!(&octets, b"the octets");
        assert!(reading.slice(4990, 11).is_none() && reading.slice(5000, 0).is_some());
        assert!(reading.slice(usize::MAX, 2).is_none());
        assert!(reading.slice(5001, 0).is_none());
    }

    #[test]
    fn each_defect_of_memory_has_its_refusal() {
        let (file, _own) = published::memory(c"test", 5000).unwrap();
        for len in [0, 4999, 5001, usize::MAX] {
            let refused = ReadMapping::of(file.as_fd(), len);
            assert!(matches!(refused, Err(ReadError::Length)), "{len}");
        }
        let unsealed = super::super::shared_mapping::sealed_memory(c"test", 5000).unwrap();
        let refused = ReadMapping::of(unsealed.as_fd(), 5000);
        assert!(matches!(refused, Err(ReadError::Seals)));
    }

    #[test]
    #[should_panic(expected = "of a mapping of")]
    fn access_outside_the_mapping_panics() {
        let (file, _own) = published::memory(c"test", 4096).unwrap();
        ReadMapping::of(file.as_fd(), 4096).unwrap().word(4096);
    }
}
