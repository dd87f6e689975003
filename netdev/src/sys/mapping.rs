//! Memory mapped once and unmapped when dropped: rings shared with the kernel, and packet buffers.
#![expect(unsafe_code, reason = "mmap, and views of memory that the kernel writes too")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// A run of mapped memory, shared with the kernel only.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset` of what a descriptor stands for.
    ///
    /// # Errors
    /// What `mmap(2)` answers.
    pub(crate) fn of(fd: BorrowedFd<'_>, offset: libc::off_t, len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// Maps `len` bytes of fresh memory, all zero.
    ///
    /// # Errors
    /// What `mmap(2)` answers.
    pub(crate) fn fresh(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    fn map(len: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child must not write to rings that are not its own. Best effort: without it, a child
        // that is forked and does not execute another program has to leave the device alone.
        //
        // SAFETY: the range was just mapped; the advice changes nothing in this process.
        let _kept_in_child = unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, len })
    }

    /// Bytes mapped.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Address of the first byte, for calls that take it.
    pub(crate) const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address `at` bytes in, after a check that `len` bytes follow it.
    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        let inside = at <= self.len && len <= self.len - at;
        assert!(inside, "{len} octets at {at} of a mapping of {}", self.len);
        // SAFETY: just checked to be inside the mapping, or one past it.
        unsafe { self.start.add(at) }
    }

    /// The 32-bit word `at` bytes in, which the kernel may read and write at any time.
    ///
    /// # Panics
    /// When it is outside the mapping or not aligned.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert_eq!(at % size_of::<u32>(), 0, "a word is aligned");
        let word = self.at(at, size_of::<u32>()).cast();
        // SAFETY: four mapped bytes, aligned because mappings begin on a page, for as long as
        // `self` is borrowed. Others access them by atomics, through here, or from the kernel.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    /// The `len` bytes from `at` on.
    ///
    /// # Safety
    /// For as long as the slice lives, the kernel must not write them, and `self` must not be used
    /// to write them otherwise.
    ///
    /// # Panics
    /// When they are not inside the mapping.
    pub(crate) unsafe fn octets(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: mapped and readable for as long as `self` is borrowed, always initialised; not
        // written meanwhile, says the caller.
        unsafe { std::slice::from_raw_parts(self.at(at, len).as_ptr(), len) }
    }

    /// The `len` bytes from `at` on, to write.
    ///
    /// # Safety
    /// For as long as the slice lives, the kernel must neither read nor write them.
    ///
    /// # Panics
    /// When they are not inside the mapping.
    pub(crate) unsafe fn octets_mut(&mut self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: mapped and writable for as long as `self` is borrowed, always initialised, and
        // borrowed once; the kernel keeps away, says the caller.
        unsafe { std::slice::from_raw_parts_mut(self.at(at, len).as_ptr(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and what was borrowed from it is gone.
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
    fn nothing_outside_is_reached() {
        let mapping = Mapping::fresh(4096).unwrap();
        mapping.word(4096).store(1, Relaxed);
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        assert!(Mapping::fresh(0).is_err());
    }
}
