//! Memory that this process writes and other processes can only read.
#![expect(unsafe_code, reason = "memfd_create, seals and advice on mappings")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::sys::shared_mapping::SharedMapping;

/// Creates a memory file of `len` bytes, zeroed and allocated, and maps it. A process that gets the
/// descriptor can only map it read-only: it cannot write the file, nor remove pages. Fails with
/// [`io::ErrorKind::InvalidInput`] if `len` is 0, [`io::ErrorKind::Unsupported`] before Linux 5.1.
pub(crate) fn memory(name: &CStr, len: usize) -> io::Result<(OwnedFd, SharedMapping)> {
    let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    if len == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero, and the kernel only reads it.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that belongs to this function only.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // Memory that the host does not have is an error here, not a fault at a later access.
    //
    // SAFETY: acts on this function's own file.
    if unsafe { libc::fallocate(fd, 0, 0, size) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mapping = SharedMapping::of(file.as_fd(), len)?;
    let start = mapping.as_ptr().cast();
    // A forked child with this mapping could write the memory that peers read and that remote
    // Writes go to (as `ibv_fork_init`). Unlike for the rings of a device, a failure is an error.
    //
    // SAFETY: the range is that of the mapping; the advice changes nothing in this process.
    if unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // An allocated page is resident only after the first write; readers ask for resident pages.
    //
    // SAFETY: the range is that of the writable mapping; the contents do not change.
    if unsafe { libc::madvise(start, len, libc::MADV_POPULATE_WRITE) } != 0 {
        // Before Linux 5.14.
        touch(&mapping, len);
    }
    let seals =
        libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    // The existing mapping stays writable.
    //
    // SAFETY: acts on this function's own file.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        let error = io::Error::last_os_error();
        let is_old = error.kind() == io::ErrorKind::InvalidInput;
        return Err(if is_old { io::ErrorKind::Unsupported.into() } else { error });
    }
    Ok((file, mapping))
}

fn touch(mapping: &SharedMapping, len: usize) {
    for at in (0..len).step_by(PAGE_LEN_MIN) {
        mapping.copy_in(at, &[0]);
    }
}

const PAGE_LEN_MIN: usize = 4096;

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::SharedSlice;
    use crate::sys::copy::copy_in;

    /// The memory must live as long as the fragment.
    pub(crate) fn fragment<'a>(
        start: *mut u8,
        whole: usize,
        at: usize,
        len: usize,
    ) -> SharedSlice<'a> {
        assert!(at <= whole && len <= whole - at);
        // SAFETY: inside the memory, as just checked.
        let from = unsafe { start.add(at) };
        // SAFETY: mapped and readable for as long as the test has the memory, and written by copies.
        unsafe { SharedSlice::from_raw_parts(from, len) }
    }

    pub(crate) fn fill(start: *mut u8, whole: usize, at: usize, octets: &[u8]) {
        assert!(at <= whole && octets.len() <= whole - at);
        // SAFETY: inside the memory, as just checked.
        let to = unsafe { start.add(at) };
        // SAFETY: mapped and writable while the test has the memory; `octets` are not in it.
        unsafe { copy_in(octets, to) };
    }

    fn map(
        file: BorrowedFd<'_>,
        len: usize,
        access: i32,
        flags: i32,
    ) -> io::Result<*mut libc::c_void> {
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start) }
    }

    #[test]
    fn a_process_that_has_the_descriptor_can_read_and_nothing_else() {
        let (file, mapping) = memory(c"test", 10_000).unwrap();
        mapping.copy_in(5000, b"octets");
        let file = file.try_clone().unwrap();
        let fd = file.as_raw_fd();
        // Neither by another mapping, nor by one that becomes writable later.
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let errno = |error: io::Error| error.raw_os_error();
        let refused = map(file.as_fd(), 10_000, both, libc::MAP_SHARED).unwrap_err();
        assert_eq!(errno(refused), Some(libc::EPERM));
        let start = map(file.as_fd(), 10_000, libc::PROT_READ, libc::MAP_SHARED).unwrap();
        // SAFETY: changes a mapping of this test's own, which is not written.
        assert_ne!(unsafe { libc::mprotect(start, 10_000, both) }, 0);
        // SAFETY: takes pages of a mapping of this test's own, which is not read.
        assert_ne!(unsafe { libc::madvise(start, 4096, libc::MADV_REMOVE) }, 0);
        // SAFETY: a mapping of this test's own, that nothing refers to.
        assert_eq!(unsafe { libc::munmap(start, 10_000) }, 0);
        // Nor by a call.
        assert_eq!(rustix::io::write(&file, b"x").unwrap_err(), rustix::io::Errno::PERM);
        assert_eq!(rustix::io::pwrite(&file, b"x", 7).unwrap_err(), rustix::io::Errno::PERM);
        for len in [0, 9_999, 10_001, 1 << 20] {
            // SAFETY: acts on an open descriptor.
            assert_ne!(unsafe { libc::ftruncate(fd, len) }, 0);
        }
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: acts on an open descriptor.
        assert_ne!(unsafe { libc::fallocate(fd, hole, 0, 4096) }, 0);
        // SAFETY: acts on an open descriptor.
        assert_ne!(unsafe { libc::fallocate(fd, 0, 0, 20_000) }, 0);
        // SAFETY: acts on an open descriptor.
        assert_ne!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) }, 0);
        // By its path, which is another way to open it.
        let path = format!("/proc/self/fd/{fd}");
        let other = std::fs::File::options().read(true).write(true).open(path);
        if let Ok(other) = other {
            assert!(map(other.as_fd(), 10_000, both, libc::MAP_SHARED).is_err());
            assert!(rustix::io::write(&other, b"x").is_err());
        }
        // The owner writes it, and the others read the new bytes.
        let reading = super::super::read_mapping::ReadMapping::of(file.as_fd(), 10_000).unwrap();
        mapping.copy_in(5000, b"OCT");
        let mut octets = [0; 6];
        reading.copy_out(5000, &mut octets);
        assert_eq!(&octets, b"OCTets");
    }

    #[test]
    fn no_memory_of_no_octets() {
        assert_eq!(memory(c"test", 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
