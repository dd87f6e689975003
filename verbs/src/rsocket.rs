//! rsockets, the sockets of librdmacm: refused so far, each call as a socket call that fails.
//!
//! They are exported because `librspreload.so` and the programs of rdma-core that use them bind all
//! of them when they start.
#![expect(unsafe_code, reason = "functions exported to C")]

use libc::{c_int, off_t};

use crate::errno::Errno;

/// `name -> type;` …: each sets `errno` and answers -1. The arguments are not looked at, and C's
/// calling conventions leave them to the caller.
macro_rules! refused {
    ($($name:ident -> $type:ty;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $type {
                Errno::NOT_SUPPORTED.set();
                -1
            }
        )*
    };
}

refused! {
    rsocket -> c_int;
    rbind -> c_int;
    rlisten -> c_int;
    raccept -> c_int;
    rconnect -> c_int;
    rshutdown -> c_int;
    rclose -> c_int;
    rrecv -> isize;
    rrecvfrom -> isize;
    rrecvmsg -> isize;
    rsend -> isize;
    rsendto -> isize;
    rsendmsg -> isize;
    rread -> isize;
    rreadv -> isize;
    rwrite -> isize;
    rwritev -> isize;
    rpoll -> c_int;
    rselect -> c_int;
    rgetpeername -> c_int;
    rgetsockname -> c_int;
    rsetsockopt -> c_int;
    rgetsockopt -> c_int;
    rfcntl -> c_int;
    riomap -> off_t;
    riounmap -> c_int;
    // `size_t` in C, which is -1 all the same.
    riowrite -> isize;
}
