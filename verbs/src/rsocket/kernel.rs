//! The kernel's sockets, for this library itself. `librspreload.so` before an application makes
//! `socket` rsockets, which would then carry rsockets. Calls of `socket` here are bound to this
//! function at link time; it is not exported.
#![expect(unsafe_code, reason = "a function of C's library in its place")]

use libc::c_int;

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: three numbers, as this system call has them.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) };
    c_int::try_from(fd).unwrap_or(-1)
}
