//! Sockets that receive nothing, as if their host had vanished.

use std::io;
use std::os::fd::AsFd;

use socket2::{SockFilter, SockRef};

/// Drops all segments for `socket` from now on: not even its TCP answers.
///
/// # Errors
/// If the kernel permits filters to root only.
pub fn drop_all_segments(socket: &impl AsFd) -> io::Result<()> {
    // BPF_RET | BPF_K: accept 0 bytes.
    SockRef::from(socket).attach_filter(&[SockFilter::new(6, 0, 0, 0)])
}
