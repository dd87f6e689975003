//! Memory mapped once and unmapped when dropped: rings shared with the kernel, and packet buffers.
#![expect(unsafe_code, reason = "mmap, and views of memory that the kernel writes too")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// Mapped memory, shared with the kernel only.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that created it.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn of(fd: BorrowedFd<'_>, offset: libc::off_t, len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// Maps new memory, all zero.
    pub(crate) fn fresh(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    fn map(len: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child must not write to its parent's rings. Best effort: if this fails, a forked child
        // that does not execute another program must not use the device.
        //
        // SAFETY: the range was just mapped; the advice changes nothing in this process.
        let _kept_in_child = unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, len })
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        let inside = at <= self.len && len <= self.len - at;
        assert!(inside, "{len} bytes at {at} of a mapping of {}", self.len);
        // SAFETY: just checked to be inside the mapping, or one past it.
        unsafe { self.start.add(at) }
    }

    /// The kernel may read and write the word at any time. Panics if it is outside or not aligned.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert_eq!(at % size_of::<u32>(), 0, "a word is aligned");
        let word = self.at(at, size_of::<u32>()).cast();
        // SAFETY: four mapped bytes, aligned because mappings begin on a page, for as long as
        // `self` is borrowed. Others access them by atomics, through here, or from the kernel.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    /// Panics outside the mapping.
    /// # Safety
    /// For as long as the slice lives, the kernel must not write it, and `self` must not be used to
    /// write it otherwise.
    pub(crate) unsafe fn octets(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: mapped and readable for as long as `self` is borrowed, always initialised; not
        // written meanwhile, by the caller's contract.
        unsafe { std::slice::from_raw_parts(self.at(at, len).as_ptr(), len) }
    }

    /// Panics outside the mapping.
    /// # Safety
    /// For as long as the slice lives, the kernel must neither read nor write it.
    pub(crate) unsafe fn octets_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: mapped and writable for as long as `self` is borrowed, always initialised, and
        // borrowed once; the kernel does not access them, by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.at(at, len).as_ptr(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and all borrows of it have ended.
        let _unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn fresh_memory_is_zero_and_keeps_what_is_written() {
        let mut mapping = Mapping::fresh(8192).unwrap();
        mapping.word(4092).store(0x0102_0304, Relaxed);
        // SAFETY: the kernel does not know this memory.
        let octets = unsafe { mapping.octets_mut(4090, 8) };
        assert_eq!(octets[..2], [0, 0]);
        assert_eq!(octets[2..6], 0x0102_0304_u32.to_ne_bytes());
        octets[7] = 9;
        // SAFETY: as above, and it is not written.
        assert_eq!(unsafe { mapping.octets(4097, 1) }, [9]);
    }

    #[test]
    #[should_panic(expected = "of a mapping of")]
    fn access_outside_the_mapping_panics() {
        let mapping = Mapping::fresh(4096).unwrap();
        mapping.word(4096).store(1, Relaxed);
    }

    #[test]
    fn empty_mapping_is_an_error() {
        assert!(Mapping::fresh(0).is_err());
    }
}
