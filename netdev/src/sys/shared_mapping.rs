//! Memory shared with another process by a descriptor: accessed by atomics and copies, never as a
//! slice.
#![expect(unsafe_code, reason = "mmap, and accesses to memory that another process writes")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32};

use crate::SharedSlice;
use crate::sys::copy::{copy_across, copy_in, copy_out};
use crate::sys::descriptor::seals;
use crate::sys::digester::Digester;

#[cfg(all(target_arch = "x86_64", not(miri)))]
const CACHE_LINE: usize = 64;

/// Mapped part of a file. Other processes may read and write it at any time.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
    /// Length rounded up to whole pages, which may be huge.
    mapped_len: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that created it.
unsafe impl Send for SharedMapping {}
// SAFETY: it is accessed only by atomics and by copies that allow for others' accesses.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps the first `len` bytes of a file. Fails with [`io::ErrorKind::InvalidInput`] if the file
    /// is shorter, since bytes behind its end cannot be accessed.
    pub(crate) fn of(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Ok(Self::part(file, 0, len)?.0)
    }

    /// Maps `len` bytes from `offset` on, and the bytes before them in their page, whose number it
    /// returns.
    pub(crate) fn part(
        file: BorrowedFd<'_>,
        offset: usize,
        len: usize,
    ) -> io::Result<(Self, usize)> {
        // SAFETY: `stat` is a C struct of integers, for which all zeroes are valid.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the kernel writes one `stat` to a live one.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let file_len = usize::try_from(status.st_size).unwrap_or(0);
        if len == 0 || file_len < len || offset > file_len - len {
            let why = "the memory is longer than its file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // The block size of a file on hugetlbfs is its page size, and whole pages must be unmapped.
        let page = usize::try_from(status.st_blksize).unwrap_or(0).max(1);
        let at = offset % page;
        let len = at + len;
        let mapped_len = len.checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?;
        let begin = libc::off_t::try_from(offset - at).map_err(|_| io::ErrorKind::InvalidInput)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping at an address that the kernel chooses affects no other mapping.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_len, access, flags, fd, begin) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child must not write to its parent's rings.
        //
        // SAFETY: the range was just mapped; the advice changes nothing in this process.
        let _best_effort = unsafe { libc::madvise(start, mapped_len, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok((Self { start, len, mapped_len }, at))
    }

    #[inline]
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        let inside = at <= self.len && len <= self.len - at;
        assert!(inside, "{len} bytes at {at} of a mapping of {}", self.len);
        // SAFETY: just checked to be inside the mapping, or one past it.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Panics if the word is outside the mapping or not aligned.
    #[inline]
    pub(crate) fn half_word(&self, at: usize) -> &AtomicU16 {
        assert_eq!(at % size_of::<u16>(), 0, "a word is aligned");
        let word = self.at(at, size_of::<u16>()).cast();
        // SAFETY: two mapped bytes, aligned because mappings begin on a page, for as long as `self`
        // is borrowed. In this process they are accessed by atomics and by copies like atomics.
        unsafe { AtomicU16::from_ptr(word) }
    }

    /// Panics if the word is outside the mapping or not aligned.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert_eq!(at % size_of::<u32>(), 0, "a word is aligned");
        let word = self.at(at, size_of::<u32>()).cast();
        // SAFETY: four mapped bytes, aligned because mappings begin on a page, for as long as `self`
        // is borrowed. In this process they are accessed by atomics and by copies like atomics.
        unsafe { AtomicU32::from_ptr(word) }
    }

    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) const fn mapped_len(&self) -> usize {
        self.mapped_len
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Panics if they do not fit.
    #[inline]
    pub(crate) fn copy_in(&self, at: usize, octets: &[u8]) {
        let to = self.at(at, octets.len());
        // SAFETY: that many bytes are mapped there, writable; no slice is ever created of a
        // mapping, so `octets` are elsewhere; others access the mapping by atomics, copies, or from
        // outside.
        unsafe { copy_in(octets, to) };
    }

    /// Panics if there are fewer bytes than `octets` has.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, octets: &mut [u8]) {
        let from = self.at(at, octets.len());
        // SAFETY: that many bytes are mapped there, readable; no slice is ever created of a
        // mapping, so `octets` are elsewhere; others access the mapping by atomics, copies, or from
        // outside.
        unsafe { copy_out(from, octets) };
    }

    /// Panics if the bytes are not inside the mapping.
    #[inline]
    pub(crate) fn slice(&self, at: usize, len: usize) -> SharedSlice<'_> {
        let from = self.at(at, len);
        // SAFETY: that many bytes are mapped there, readable, for as long as `self` is borrowed; a
        // mapping is no longer than `isize::MAX`. They are written by copies or from outside.
        unsafe { SharedSlice::from_raw_parts(from, len) }
    }

    /// Panics if they do not fit.
    #[inline]
    pub(crate) fn copy_from(&self, at: usize, fragment: SharedSlice<'_>) {
        let to = self.at(at, fragment.len());
        // SAFETY: a fragment is readable for its length, and that many bytes are mapped here,
        // writable. Both are accessed meanwhile by atomics, copies, or from outside.
        unsafe { copy_across(fragment.as_ptr(), to, fragment.len()) };
    }

    /// Fetches lines that will be written soon from other cores. Panics outside the mapping.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, at: usize, len: usize) {
        let first = self.at(at, len);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in (0..len).step_by(CACHE_LINE) {
            // The intrinsic would prefetch for reading on targets that are not known to have the
            // instruction. A 64-bit processor without it does nothing.
            //
            // SAFETY: it reads and writes nothing that the program sees, for any address.
            unsafe {
                std::arch::asm!(
                    "prefetchw [{line}]",
                    line = in(reg) first.wrapping_add(line),
                    options(nostack, preserves_flags)
                );
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _others_are_not_told = first;
    }

    /// Copies a fragment to an offset and adds it to a digest's register. Panics if it does not
    /// fit.
    #[inline]
    pub(crate) fn copy_and_digest(
        &self,
        at: usize,
        fragment: SharedSlice<'_>,
        digester: &Digester,
        register: u32,
    ) -> u32 {
        let to = self.at(at, fragment.len());
        // SAFETY: that many bytes are mapped here, writable. No fragment of a transmitted frame is
        // in the memory that it is copied to; others access both by atomics, copies, or from
        // outside.
        unsafe { digester.copy_raw(register, fragment, to) }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and all borrows of it have ended.
        let _unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped_len) };
    }
}

/// Creates a zeroed memory file that no process with its descriptor can shorten or extend.
pub(crate) fn sealed_memory(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    sealed_memory_of(name, len, 0)
}

#[cfg(test)]
pub(crate) fn sealed_huge_memory(name: &CStr, len: usize) -> io::Result<OwnedFd> {
    sealed_memory_of(name, len, libc::MFD_HUGETLB)
}

fn sealed_memory_of(name: &CStr, len: usize, kind: libc::c_uint) -> io::Result<OwnedFd> {
    let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
    // SAFETY: the name ends with a zero, and the kernel only reads it.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that belongs to this function only.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: acts on this function's own file.
    if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: acts on this function's own file.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Returns true if no process can shorten the file, which would make mapped bytes unreadable.
pub(crate) fn cannot_shrink(file: BorrowedFd<'_>) -> bool {
    has_seal(file, libc::F_SEAL_SHRINK)
}

/// Returns true if no process that gets the file's descriptor can write to it.
pub(crate) fn cannot_write(file: BorrowedFd<'_>) -> bool {
    has_seal(file, libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE)
}

/// Only memory files (tmpfs, hugetlbfs) have seals: this never waits for a process's file system.
fn has_seal(file: BorrowedFd<'_>, any_of: libc::c_int) -> bool {
    seals(file).is_some_and(|seals| seals & any_of != 0)
}

/// Returns true if a file is of hugetlbfs. Its seals reserve no page: if the host has no huge page
/// left, the first access faults (SIGBUS), since [`SharedMapping`] reserves none. Call for memory
/// files only: a file system that a process serves may not answer.
pub(crate) fn has_huge_pages(file: BorrowedFd<'_>) -> bool {
    // SAFETY: `statfs` is a C struct of integers, for which all zeroes are valid.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the kernel writes one `statfs` to a live one.
    let asked = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut status) };
    // Assume huge pages if the call fails.
    asked != 0 || status.f_type == libc::HUGETLBFS_MAGIC
}

/// Makes reads and writes of a descriptor non-blocking, for all processes that share it.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) {
    // SAFETY: acts on an open descriptor.
    let _best_effort = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::{Acquire, Release};

    use super::*;

    #[test]
    fn two_mappings_of_a_file_are_the_same_memory() {
        let file = sealed_memory(c"test", 10_000).unwrap();
        let a = SharedMapping::of(file.as_fd(), 10_000).unwrap();
        let b = SharedMapping::of(file.as_fd(), 9_000).unwrap();
        a.copy_in(8_990, b"octets");
        a.half_word(2).store(0x0102, Release);
        a.copy_from(100, SharedSlice::from_bytes(&[7; 300]));
        let mut octets = [0; 6];
        b.copy_out(8_990, &mut octets);
        assert_eq!(&octets, b"octets");
        assert_eq!(b.half_word(2).load(Acquire), 0x0102);
        b.copy_out(397, &mut octets);
        assert_eq!(octets, [7, 7, 7, 0, 0, 0]);
    }

    #[test]
    fn a_file_shorter_than_it_is_said_to_be_is_refused() {
        let file = sealed_memory(c"test", 4_096).unwrap();
        assert!(SharedMapping::of(file.as_fd(), 4_097).is_err());
        assert!(SharedMapping::of(file.as_fd(), 0).is_err());
        assert!(cannot_shrink(file.as_fd()) && !has_huge_pages(file.as_fd()));
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!cannot_shrink(other.as_fd()));
    }

    #[test]
    #[should_panic(expected = "of a mapping of")]
    fn access_outside_the_mapping_panics() {
        let file = sealed_memory(c"test", 8_192).unwrap();
        SharedMapping::of(file.as_fd(), 5_000).unwrap().copy_in(4_998, &[1, 2, 3]);
    }
}
