//! Errors as C returns them: verbs the error number, functions that make objects NULL, rdma_cm -1;
//! all set `errno`.
#![expect(unsafe_code, reason = "errno is a place in C's memory")]

use std::io;
use std::ptr;

use libc::c_int;
use urnic::{Error, PortError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const NOT_SUPPORTED: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);

    pub(crate) fn set(self) {
        // SAFETY: no preconditions.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the address of this thread's `errno`, which lives as long as the thread.
        unsafe { *place = self.0 }
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or_else(|| match error.kind() {
            io::ErrorKind::InvalidInput => libc::EINVAL,
            io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
            // A system call reports the same after a reset.
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected => libc::ECONNRESET,
            io::ErrorKind::TimedOut => libc::ETIMEDOUT,
            io::ErrorKind::AddrInUse => libc::EADDRINUSE,
            io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
            io::ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
            io::ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            _ => libc::EIO,
        }))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::System { os_error, .. } => Self(os_error),
            Error::Timeout => Self(libc::ETIMEDOUT),
            Error::Rejected(_) | Error::Startup(_) => Self(libc::ECONNREFUSED),
            Error::Down => Self(libc::EIO),
            Error::Closed => Self(libc::ENOTCONN),
            Error::Port(PortError::PortTaken(_)) => Self(libc::EADDRINUSE),
            Error::Port(PortError::NoSuchAddress(_)) => Self(libc::EADDRNOTAVAIL),
            Error::Port(PortError::Exhausted) => Self::NO_MEMORY,
            Error::Phase(_) | Error::Config(_) => Self::INVALID,
            other => io::Error::from(other).into(),
        }
    }
}

/// Returns 0 or the error number, which is also in `errno`: applications read either.
pub(crate) fn number(done: Result<(), Errno>) -> c_int {
    done.map_or_else(
        |errno| {
            errno.set();
            errno.0
        },
        |()| 0,
    )
}

pub(crate) fn minus_one(done: Result<(), Errno>) -> c_int {
    done.map_or_else(
        |errno| {
            errno.set();
            -1
        },
        |()| 0,
    )
}

pub(crate) fn or_null<C>(made: Result<*mut C, Errno>) -> *mut C {
    made.unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}
