//! Writing memory that may change to a connected stream socket.
#![allow(unsafe_code, reason = "hands memory that may change to the kernel; it is never a slice")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::fragment::Fragment;

/// Fragments handed to the kernel in one call; more are left for the next.
const IOVECS_MAX: usize = 256;

/// Sends fragments to a connected stream socket in one system call and returns how many octets the
/// kernel took. No octet is copied in user space. A peer that has gone is an error, never a signal.
///
/// # Errors
/// What `sendmsg(2)` says; [`io::ErrorKind::WouldBlock`] when a non-blocking socket is full.
pub fn send_fragments(socket: BorrowedFd<'_>, fragments: &[Fragment<'_>]) -> io::Result<usize> {
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut iovecs = [empty; IOVECS_MAX];
    let count = fragments.len().min(IOVECS_MAX);
    for (iovec, fragment) in iovecs.iter_mut().zip(fragments) {
        *iovec =
            libc::iovec { iov_base: fragment.as_ptr().cast_mut().cast(), iov_len: fragment.len() };
    }
    // SAFETY: `msghdr` is a C struct of integers and pointers, for which all zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iovecs.as_mut_ptr();
    message.msg_iovlen = count;
    // SAFETY: `message` names `count` initialised iovecs that live to the end of this function, each
    // with memory that its `Fragment` promises to be mapped and readable; sendmsg only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn fragments_arrive_in_order_as_one_stream() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let octets: Vec<u8> = (0..=255).collect();
        let fragments: Vec<_> = octets.chunks(1).map(Fragment::from_slice).collect();
        let extra = [fragments.clone(), fragments].concat();
        assert_eq!(send_fragments(near.as_fd(), &extra).unwrap(), IOVECS_MAX);
        let mut received = [0; 256];
        far.read_exact(&mut received).unwrap();
        assert_eq!(received[..], octets);
    }

    #[test]
    fn a_peer_that_has_gone_is_an_error_and_no_signal() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let error = send_fragments(near.as_fd(), &[Fragment::from_slice(&[1])]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_full_socket_would_block() {
        let (near, _far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let block = vec![7; 1 << 16];
        let error = loop {
            if let Err(error) = send_fragments(near.as_fd(), &[Fragment::from_slice(&block)]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
