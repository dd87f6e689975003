//! Calls on a connected stream socket: sending memory that may change, and the state of its TCP.
#![allow(unsafe_code, reason = "hands memory that may change to the kernel; it is never a slice")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::shared_slice::SharedSlice;

/// Most fragments for one call of the kernel; the rest is left for the next call.
const IOVECS_MAX: usize = 256;

/// Sends fragments to a connected stream socket in one system call. Returns the number of bytes
/// that the kernel took. No byte is copied in user space. A closed connection is an error, never a
/// signal.
///
/// # Errors
/// The errors of `sendmsg(2)`; [`io::ErrorKind::WouldBlock`] if a non-blocking socket is full.
pub fn send_fragments(socket: BorrowedFd<'_>, fragments: &[SharedSlice<'_>]) -> io::Result<usize> {
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
    // SAFETY: `message` names `count` initialised iovecs that live to the end of this function,
    // each with memory that its `SharedSlice` guarantees to be mapped and readable; sendmsg only reads
    // it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// State of the bytes written to a socket of the kernel's TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The peer has acknowledged all of them.
    Done,
    /// The peer's window is closed, and it has answered the last probe (RFC 9293 MUST-37).
    Answered,
    /// An acknowledgment is awaited; the time since the last one.
    Awaited(Duration),
}

/// Returns the number of bytes, with the FIN, written to the kernel's TCP but not acknowledged.
pub fn undelivered(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut octets: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) writes one int to the given address, which is that of a live one.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) };
    if asked == 0 {
        Ok(u64::try_from(octets).unwrap_or(0))
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks the kernel's TCP for the state of the written bytes. `TCP_USER_TIMEOUT` is no replacement:
/// it also ends connections whose peer answers every window probe.
pub fn delivery(socket: BorrowedFd<'_>) -> io::Result<Delivery> {
    if undelivered(socket)? == 0 {
        return Ok(Delivery::Done);
    }
    // SAFETY: `tcp_info` is a C struct of integers, for which all zeroes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).expect("a few hundred bytes");
    // SAFETY: the kernel writes at most `len` bytes to `info`, which has that length and lives on.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // A single probe may be in flight now. Two minutes may pass between probes, so the age of the
    // last answer alone is no criterion.
    if info.tcpi_unacked == 0 && info.tcpi_probes < 2 {
        return Ok(Delivery::Answered);
    }
    Ok(Delivery::Awaited(Duration::from_millis(u64::from(info.tcpi_last_ack_recv))))
}

/// Sets the number of the kernel's SYN retransmissions. With more than the default the caller must
/// limit the time itself.
pub fn set_syn_retries(socket: BorrowedFd<'_>, retries: u8) -> io::Result<()> {
    let retries = libc::c_int::from(retries);
    let len = libc::socklen_t::try_from(size_of_val(&retries)).expect("a few bytes");
    // SAFETY: the kernel reads `len` bytes from the address of a live int, which has that length.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            (&raw const retries).cast(),
            len,
        )
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the number of the kernel's SYN retransmissions.
pub fn syn_retries(socket: BorrowedFd<'_>) -> io::Result<u8> {
    let mut retries: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&retries)).expect("a few bytes");
    // SAFETY: the kernel writes at most `len` bytes to the address of a live int, which has that
    // length.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            (&raw mut retries).cast(),
            &raw mut len,
        )
    };
    let retries = u8::try_from(retries).unwrap_or(u8::MAX);
    if asked == 0 { Ok(retries) } else { Err(io::Error::last_os_error()) }
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
        let fragments: Vec<_> = octets.chunks(1).map(SharedSlice::from_bytes).collect();
        let extra = [fragments.clone(), fragments].concat();
        assert_eq!(send_fragments(near.as_fd(), &extra).unwrap(), IOVECS_MAX);
        let mut received = [0; 256];
        far.read_exact(&mut received).unwrap();
        assert_eq!(received[..], octets);
    }

    #[test]
    fn writing_to_a_closed_peer_is_an_error_and_raises_no_signal() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let error = send_fragments(near.as_fd(), &[SharedSlice::from_bytes(&[1])]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the kernel acknowledges in real time")]
    fn acknowledged_octets_are_no_longer_undelivered() {
        use std::io::Write;
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        near.write_all(&[1; 100]).unwrap();
        let started = std::time::Instant::now();
        assert!(undelivered(near.as_fd()).unwrap() <= 100);
        while delivery(near.as_fd()).unwrap() != Delivery::Done {
            assert!(started.elapsed().as_secs() < 10, "loopback acknowledges");
        }
        // Bytes beyond the peer's buffer are not delivered, and the peer's TCP answers probes.
        near.set_nonblocking(true).unwrap();
        while near.write(&[1; 1 << 16]).is_ok() {}
        while delivery(near.as_fd()).unwrap() != Delivery::Answered {
            assert!(started.elapsed().as_secs() < 10, "loopback acknowledges");
        }
        assert!(undelivered(near.as_fd()).unwrap() > 0);
        let (local, _far) = UnixStream::pair().unwrap();
        assert!(
            delivery(local.as_fd()).is_err() || delivery(local.as_fd()).unwrap() == Delivery::Done
        );
    }

    #[test]
    fn number_of_syn_retries_can_be_set() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        set_syn_retries(socket.as_fd(), 8).unwrap();
        assert_eq!(syn_retries(socket.as_fd()).unwrap(), 8);
        assert!(set_syn_retries(socket.as_fd(), 0).is_err(), "TCP sends a SYN again");
    }

    #[test]
    fn a_full_socket_would_block() {
        let (near, _far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let block = vec![7; 1 << 16];
        let error = loop {
            if let Err(error) = send_fragments(near.as_fd(), &[SharedSlice::from_bytes(&block)]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
