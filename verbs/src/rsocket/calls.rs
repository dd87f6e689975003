//! The functions of `rdma/rsocket.h`. One file because there are many, of a few lines each.
#![expect(unsafe_code, reason = "functions exported to C")]

use std::net::SocketAddr;
use std::ptr;
use std::slice;
use std::time::Duration;

use libc::{
    F_GETFL, F_SETFL, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, c_int, c_void, fd_set,
    iovec, linger, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval,
};
use urnic::Access;

use super::pieces::{Pieces, pieces};
use super::signal::after;
use super::socket::Socket;
use super::{insert, poll, remove, usable};
use crate::cm::address::{FAMILY_V6, from_c, storage};
use crate::errno::{Errno, minus_one};
use crate::fork;
use crate::mr;
use crate::object::optional;

fn or_minus_one<N>(done: Result<N, Errno>, minus_one: N) -> N {
    done.unwrap_or_else(|errno| {
        errno.set();
        minus_one
    })
}

fn octets(done: Result<usize, Errno>) -> isize {
    or_minus_one(done.map(usize::cast_signed), -1)
}

/// Reads an address of the stated length.
///
/// # Safety
/// `address` is NULL or points at `len` bytes.
unsafe fn address(address: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    if address.is_null() || usize::try_from(len).unwrap_or(0) < size_of::<libc::sockaddr_in>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: an address has a family, and is of `len` bytes.
    let is_short = unsafe { (*address).sa_family } == FAMILY_V6
        && usize::try_from(len).unwrap_or(0) < size_of::<libc::sockaddr_in6>();
    if is_short {
        return Err(Errno::INVALID);
    }
    // SAFETY: of the length that its family has.
    unsafe { from_c(address) }.ok_or(Errno(libc::EAFNOSUPPORT))
}

/// Writes an address as `getsockname` does: the part that fits, and its full length.
///
/// # Safety
/// `place` is NULL or has `len` bytes; `len` is NULL or points at a length.
unsafe fn tell(of: SocketAddr, place: *mut sockaddr, len: *mut socklen_t) {
    if len.is_null() {
        return;
    }
    let of_family =
        if of.is_ipv4() { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() };
    // SAFETY: memory of the application, by this function's contract.
    let room = usize::try_from(unsafe { *len }).unwrap_or(0);
    // SAFETY: as above.
    unsafe { *len = socklen_t::try_from(of_family).unwrap_or(0) };
    if !place.is_null() {
        let storage = storage(of);
        let from = (&raw const storage).cast::<u8>();
        // SAFETY: within the application's length, and within the address.
        unsafe { ptr::copy_nonoverlapping(from, place.cast(), room.min(of_family)) };
    }
}

/// Makes a stream socket. Datagrams are not supported: iWARP has none.
#[unsafe(no_mangle)]
extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let flags = kind & (SOCK_NONBLOCK | SOCK_CLOEXEC);
    let is_stream = kind & !flags == SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) || !is_stream {
        let is_known = matches!(kind & !flags, SOCK_STREAM | SOCK_DGRAM);
        let errno = if is_known { Errno::NOT_SUPPORTED } else { Errno::INVALID };
        return minus_one(Err(errno));
    }
    let made = Socket::new().map(|made| {
        made.state().options.flags |= flags & SOCK_NONBLOCK;
        insert(made)
    });
    or_minus_one(made, -1)
}

/// # Safety
/// `of` points at `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rbind(fd: c_int, of: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as this function's contract.
    let local = unsafe { address(of, len) };
    minus_one(usable(fd).and_then(|socket| socket.bind(local?)))
}

#[unsafe(no_mangle)]
extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    minus_one(usable(fd).and_then(|socket| socket.listen(backlog)))
}

/// Writes the remote address to `place`, unless that is NULL.
///
/// # Safety
/// As [`rgetpeername`], but for NULL.
#[unsafe(no_mangle)]
unsafe extern "C" fn raccept(fd: c_int, place: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let accepted = usable(fd).and_then(|socket| socket.accept()).map(|accepted| {
        if let Ok([_, Some(remote)]) = accepted.addresses()
            && !place.is_null()
        {
            // SAFETY: as this function's contract.
            unsafe { tell(remote, place, len) };
        }
        insert(accepted)
    });
    or_minus_one(accepted, -1)
}

/// # Safety
/// `of` points at `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rconnect(fd: c_int, of: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as this function's contract.
    let remote = unsafe { address(of, len) };
    minus_one(usable(fd).and_then(|socket| socket.connect(remote?)))
}

#[unsafe(no_mangle)]
extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    minus_one(usable(fd).and_then(|socket| socket.shutdown(how)))
}

#[unsafe(no_mangle)]
extern "C" fn rclose(fd: c_int) -> c_int {
    minus_one(remove(fd).map(|socket| {
        if socket.is_own() {
            return socket.close();
        }
        // The socket belongs to the parent, which continues to use it. Only the descriptor belongs
        // to this process.
        fork::forget(socket);
        // SAFETY: the descriptor of the socket, which is closed only here.
        unsafe { libc::close(fd) };
    }))
}

fn receive(fd: c_int, flags: c_int, to: Result<Pieces<'_>, Errno>) -> isize {
    octets(usable(fd).and_then(|socket| socket.receive(flags, &mut to?)))
}

fn send(fd: c_int, flags: c_int, from: Result<Pieces<'_>, Errno>) -> isize {
    octets(usable(fd).and_then(|socket| socket.send(flags, &mut from?)))
}

/// # Safety
/// `place` has `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rrecv(fd: c_int, place: *mut c_void, len: usize, flags: c_int) -> isize {
    let piece = [iovec { iov_base: place, iov_len: len }];
    // SAFETY: as this function's contract.
    receive(fd, flags, unsafe { Pieces::new(&piece, true) })
}

/// Like [`rrecv`], and writes the remote address to `from`, unless that is NULL.
///
/// # Safety
/// As [`rrecv`] and [`rgetpeername`], but for NULL.
#[unsafe(no_mangle)]
unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    place: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> isize {
    // SAFETY: as this function's contract.
    let received = unsafe { rrecv(fd, place, len, flags) };
    if received > 0
        && !from.is_null()
        && let Ok([_, Some(remote)]) = usable(fd).and_then(|socket| socket.addresses())
    {
        // SAFETY: as this function's contract.
        unsafe { tell(remote, from, from_len) };
    }
    received
}

/// There are no control messages.
///
/// # Safety
/// `message` is one of the application's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: one of the application's, by this function's contract.
    let message = unsafe { &mut *message };
    (message.msg_flags, message.msg_controllen) = (0, 0);
    let count = c_int::try_from(message.msg_iovlen).unwrap_or(-1);
    // SAFETY: the pieces of a message, by this function's contract.
    unsafe { received_in(fd, message.msg_iov, count, flags) }
}

/// # Safety
/// `of` points at `count` pieces, which may be written.
unsafe fn received_in(fd: c_int, of: *const iovec, count: c_int, flags: c_int) -> isize {
    // SAFETY: as this function's contract.
    let to = unsafe { pieces(of, count) };
    // SAFETY: as this function's contract.
    receive(fd, flags, to.and_then(|to| unsafe { Pieces::new(to, true) }))
}

/// # Safety
/// As [`rrecv`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rread(fd: c_int, place: *mut c_void, len: usize) -> isize {
    // SAFETY: as this function's contract.
    unsafe { rrecv(fd, place, len, 0) }
}

/// # Safety
/// `of` points at `count` pieces, which may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn rreadv(fd: c_int, of: *const iovec, count: c_int) -> isize {
    // SAFETY: as this function's contract.
    unsafe { received_in(fd, of, count, 0) }
}

/// # Safety
/// `from` points at `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rsend(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> isize {
    let piece = [iovec { iov_base: from.cast_mut(), iov_len: len }];
    // SAFETY: as this function's contract.
    send(fd, flags, unsafe { Pieces::new(&piece, false) })
}

/// Sends to the connected peer only.
///
/// # Safety
/// As [`rsend`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rsendto(
    fd: c_int,
    from: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> isize {
    if !to.is_null() || to_len != 0 {
        return octets(Err(Errno(libc::EISCONN)));
    }
    // SAFETY: as this function's contract.
    unsafe { rsend(fd, from, len, flags) }
}

/// There are no control messages.
///
/// # Safety
/// `message` is one of the application's.
#[unsafe(no_mangle)]
unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: one of the application's, by this function's contract.
    let message = unsafe { &*message };
    if !message.msg_control.is_null() && message.msg_controllen > 0 {
        return octets(Err(Errno::NOT_SUPPORTED));
    }
    let count = c_int::try_from(message.msg_iovlen).unwrap_or(-1);
    // SAFETY: the pieces of a message, by this function's contract.
    unsafe { sent_from(fd, message.msg_iov, count, flags) }
}

/// # Safety
/// `of` points at `count` pieces.
unsafe fn sent_from(fd: c_int, of: *const iovec, count: c_int, flags: c_int) -> isize {
    // SAFETY: as this function's contract.
    let from = unsafe { pieces(of, count) };
    // SAFETY: as this function's contract.
    send(fd, flags, from.and_then(|from| unsafe { Pieces::new(from, false) }))
}

/// # Safety
/// As [`rsend`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rwrite(fd: c_int, from: *const c_void, len: usize) -> isize {
    // SAFETY: as this function's contract.
    unsafe { rsend(fd, from, len, 0) }
}

/// # Safety
/// `of` points at `count` pieces.
#[unsafe(no_mangle)]
unsafe extern "C" fn rwritev(fd: c_int, of: *const iovec, count: c_int) -> isize {
    // SAFETY: as this function's contract.
    unsafe { sent_from(fd, of, count, 0) }
}

/// # Safety
/// `fds` points at `count` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    let fds = if count == 0 || fds.is_null() {
        &mut []
    } else {
        // SAFETY: of `count` entries, by this function's contract.
        unsafe { slice::from_raw_parts_mut(fds, count) }
    };
    // With a negative timeout the call waits without limit.
    let until = u64::try_from(timeout_ms).ok().map(Duration::from_millis).and_then(after);
    let found = poll::wait(fds, timeout_ms == 0, until);
    or_minus_one(found.map(|found| c_int::try_from(found).unwrap_or(c_int::MAX)), -1)
}

/// # Safety
/// The sets are NULL or sets of the application, `timeout` NULL or a time.
#[unsafe(no_mangle)]
unsafe extern "C" fn rselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    exceptions: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: NULL or a time, by this function's contract.
    let timeout = unsafe { optional(timeout) }.copied();
    // SAFETY: as this function's contract.
    let found = unsafe { poll::select(count, [reads, writes, exceptions], timeout) };
    or_minus_one(found.map(|found| c_int::try_from(found).unwrap_or(c_int::MAX)), -1)
}

/// ENOTCONN if there is no remote address.
///
/// # Safety
/// `len` points at a length, and `place` has as many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rgetpeername(fd: c_int, place: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let addresses = usable(fd).and_then(|socket| socket.addresses());
    minus_one(addresses.and_then(|[_, remote]| {
        // SAFETY: as this function's contract.
        unsafe { tell(remote.ok_or(Errno(libc::ENOTCONN))?, place, len) };
        Ok(())
    }))
}

/// Writes the unspecified address if there is none.
///
/// # Safety
/// As [`rgetpeername`].
#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockname(fd: c_int, place: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let addresses = usable(fd).and_then(|socket| socket.addresses());
    minus_one(addresses.map(|[local, _]| {
        let local = local.unwrap_or_else(|| (std::net::Ipv4Addr::UNSPECIFIED, 0).into());
        // SAFETY: as this function's contract.
        unsafe { tell(local, place, len) };
    }))
}

/// Options have an `int` as value, or begin with one.
///
/// # Safety
/// `value` has `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let is_number = usize::try_from(len).unwrap_or(0) >= size_of::<c_int>();
    minus_one(usable(fd).and_then(|socket| {
        if value.is_null() || !is_number {
            return Err(Errno::INVALID);
        }
        // SAFETY: at least as long as a number, by this function's contract.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        socket.state().set(level, name, value)
    }))
}

/// Cuts the value to `len` bytes.
///
/// # Safety
/// `len` points at a length, and `place` has as many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    place: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    minus_one(usable(fd).and_then(|socket| {
        if place.is_null() || len.is_null() {
            return Err(Errno::INVALID);
        }
        let first = socket.look().tell(level, name)?;
        let is_linger = (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER);
        let value = linger { l_onoff: first, l_linger: 0 };
        let told = if is_linger { size_of::<linger>() } else { size_of::<c_int>() };
        // SAFETY: memory of the application, by this function's contract.
        let told = told.min(usize::try_from(unsafe { *len }).unwrap_or(0));
        // SAFETY: as above.
        unsafe { *len = socklen_t::try_from(told).unwrap_or(0) };
        let from = (&raw const value).cast::<u8>();
        // SAFETY: within the application's length, and within the value.
        unsafe { ptr::copy_nonoverlapping(from, place.cast(), told) };
        Ok(())
    }))
}

/// `F_GETFL` and `F_SETFL`. C declares a variable last argument; the calling conventions of Linux
/// pass a first variable number like a third fixed one.
#[unsafe(no_mangle)]
extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_int) -> c_int {
    let done = usable(fd).and_then(|socket| {
        let options = &mut socket.state().options;
        match command {
            F_GETFL => Ok(options.flags),
            F_SETFL => {
                options.flags = libc::O_RDWR | (argument & !libc::O_ACCMODE);
                Ok(0)
            }
            _ => Err(Errno::NOT_SUPPORTED),
        }
    });
    or_minus_one(done, -1)
}

/// Maps memory at an offset for the peer's `riowrite`; for -1, the address is the offset.
///
/// # Safety
/// The memory stays mapped until it is unmapped or the socket closed.
#[unsafe(no_mangle)]
unsafe extern "C" fn riomap(
    fd: c_int,
    place: *mut c_void,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = usable(fd).and_then(|socket| {
        if protection & !libc::PROT_WRITE != 0 {
            return Err(Errno::INVALID);
        }
        let region = mr::region(place, len, Access::LOCAL_WRITE)?;
        let offset = u64::try_from(offset).ok();
        socket.map(region, [place.addr(), len], protection & libc::PROT_WRITE != 0, offset)
    });
    or_minus_one(mapped.map(u64::cast_signed), -1)
}

#[unsafe(no_mangle)]
extern "C" fn riounmap(fd: c_int, place: *mut c_void, len: usize) -> c_int {
    minus_one(usable(fd).and_then(|socket| socket.unmap([place.addr(), len])))
}

/// Writes to memory that the peer has mapped at an offset. An error is -1 as a `size_t`.
///
/// # Safety
/// As [`rsend`].
#[unsafe(no_mangle)]
unsafe extern "C" fn riowrite(
    fd: c_int,
    from: *const c_void,
    len: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let piece = [iovec { iov_base: from.cast_mut(), iov_len: len }];
    // SAFETY: as this function's contract.
    let from = unsafe { Pieces::new(&piece, false) };
    let written = usable(fd).and_then(|socket| {
        let offset = u64::try_from(offset).map_err(|_| Errno::INVALID)?;
        socket.write_at(flags, offset, &mut from?)
    });
    or_minus_one(written, usize::MAX)
}
