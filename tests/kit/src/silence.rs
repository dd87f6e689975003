//! Sockets that hear nothing more, as if their host were gone.

use std::io;
use std::os::fd::AsFd;

use socket2::{SockFilter, SockRef};

/// Drops all segments that come to `socket` from now on: not even its TCP answers.
///
/// # Errors
/// Where the kernel leaves filters to root.
pub fn drop_all_segments(socket: &impl AsFd) -> io::Result<()> {
    // BPF_RET | BPF_K with no bytes to be taken.
    SockRef::from(socket).attach_filter(&[SockFilter::new(6, 0, 0, 0)])
}
