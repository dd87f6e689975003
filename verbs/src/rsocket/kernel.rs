//! The kernel's sockets for this library itself. Where `librspreload.so` stands before a program, `socket` is
//! its function, which makes rsockets: those would be carried by sockets that are rsockets. What this library
//! calls `socket` is bound here when it is linked, and exported to no one.
#![expect(unsafe_code, reason = "a function of C's library in its place")]

use libc::c_int;

/// `socket(2)`.
#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: three numbers, as this system call has them.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) };
    c_int::try_from(fd).unwrap_or(-1)
}
