//! The kernel's sockets, for this library itself. If `librspreload.so` is loaded before an
//! application, `socket` is its function and makes rsockets: rsockets would then be carried by
//! rsockets. Calls of `socket` in this library are bound to this function at link time. The
//! function is not exported.
#![expect(unsafe_code, reason = "a function of C's library in its place")]

use libc::c_int;

/// Makes a socket of the kernel, as socket(2) does.
#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: three numbers, as this system call has them.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) };
    c_int::try_from(fd).unwrap_or(-1)
}
