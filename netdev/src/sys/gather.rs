//! Writes a frame from its fragments: `writev`.
#![expect(unsafe_code, reason = "hands addresses to the kernel, and keeps room for them")]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::SharedSlice;

/// Most runs of memory that one call can gather (`IOV_MAX`, equal on every Linux).
pub(crate) const RUNS_MAX: usize = 1024;

/// Room for the list from which the kernel gathers a frame.
pub(crate) struct Gather {
    /// Empty between calls.
    runs: Vec<libc::iovec>,
}

// SAFETY: between calls the list is empty, so no address moves to another thread with it.
unsafe impl Send for Gather {}

impl Gather {
    pub(crate) fn new() -> Self {
        Self { runs: Vec::with_capacity(RUNS_MAX) }
    }

    /// Writes the bytes of `head`, then those of `payload`, to `fd` by one call. Each byte that
    /// changes meanwhile is sent with its old or its new value. Errors: the kernel's error;
    /// `EMSGSIZE` if there are more than [`RUNS_MAX`] runs.
    pub(crate) fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        head: [&[u8]; 2],
        payload: &[SharedSlice<'_>],
    ) -> io::Result<usize> {
        if payload.len() > RUNS_MAX - head.len() {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let head = head.into_iter().map(SharedSlice::from_bytes);
        self.runs.extend(head.chain(payload.iter().copied()).filter(|run| !run.is_empty()).map(
            |run| libc::iovec { iov_base: run.as_ptr().cast_mut().cast(), iov_len: run.len() },
        ));
        let count = i32::try_from(self.runs.len()).expect("at most RUNS_MAX");
        // SAFETY: `fd` is open; the list has `count` entries, and each entry is readable memory for
        // as long as its fragment is borrowed; the kernel only reads it, and allows for bytes that
        // change.
        let written = unsafe { libc::writev(fd.as_raw_fd(), self.runs.as_ptr(), count) };
        let result = usize::try_from(written).map_err(|_| io::Error::last_os_error());
        self.runs.clear();
        result
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn runs_arrive_in_order_as_one_message() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let mut gather = Gather::new();
        let payload = [
            SharedSlice::from_bytes(b"gh"),
            SharedSlice::from_bytes(b""),
            SharedSlice::from_bytes(b"i"),
        ];
        assert_eq!(gather.write(a.as_fd(), [b"abc", b"def"], &payload).unwrap(), 9);
        assert_eq!(gather.write(a.as_fd(), [b"", b"x"], &[]).unwrap(), 1);
        let mut buffer = [0; 32];
        let len = b.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"abcdefghi");
        let len = b.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"x");
    }

    #[test]
    fn too_many_runs_are_refused_and_the_most_allowed_go() {
        let (mut a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut gather = Gather::new();
        let payload = [SharedSlice::from_bytes(b"z"); RUNS_MAX];
        let refused = gather.write(b.as_fd(), [b"a", b"b"], &payload[1..]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
        assert_eq!(gather.write(b.as_fd(), [b"a", b"b"], &payload[2..]).unwrap(), RUNS_MAX);
        let mut buffer = [0; RUNS_MAX];
        a.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer[..3], b"abz");
    }
}
