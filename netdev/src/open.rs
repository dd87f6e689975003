//! Why a kernel device could not be opened, and what to do about it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::interface::{self, Name, NameError};
use crate::local_peer::ForeignUser;
use crate::peer::identity::foreign_user;

/// Why a device could not be opened. Every message says what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No interface can have that name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The process may not do this.
    #[error("no permission to {action}: {remedy}")]
    Permission {
        /// What was refused, to follow "no permission to".
        action: String,
        /// What gives the permission.
        remedy: String,
    },
    /// The interface does not exist.
    #[error("no interface {name}; there are: {}", List(.existing))]
    UnknownInterface {
        /// The name that was asked for.
        name: Name,
        /// The interfaces of this network namespace.
        existing: Vec<Name>,
    },
    /// The interface exists but is not what the device needs.
    #[error("{name} is not {wanted}: {remedy}")]
    WrongKind {
        /// The interface.
        name: Name,
        /// What it should be.
        wanted: &'static str,
        /// What to do.
        remedy: String,
    },
    /// Another process has the interface, or the queue, open.
    #[error("{name} is in use by another process: {remedy}")]
    Busy {
        /// The interface.
        name: Name,
        /// What to do.
        remedy: String,
    },
    /// The path of a socket is taken.
    #[error("{} is taken: {remedy}", path.display())]
    PathTaken {
        /// The path.
        path: PathBuf,
        /// What to do.
        remedy: &'static str,
    },
    /// The process at the other end of a socket is of a user that is not trusted.
    #[error(
        "{}: {foreign}: use a path in a folder that only you can write, such as $XDG_RUNTIME_DIR, or \
         add peer={} if that user may be the other end",
        path.display(), foreign.uid
    )]
    ForeignPeer {
        /// The path of the socket.
        path: PathBuf,
        /// The peer's user.
        foreign: ForeignUser,
    },
    /// The peer of a socket is not there, or is of no use.
    #[error("no peer at {}: {why}; {remedy}", path.display())]
    NoPeer {
        /// The path of the socket.
        path: PathBuf,
        /// What was seen of it.
        why: String,
        /// No process listens there: it may yet.
        is_absent: bool,
        /// What to do.
        remedy: &'static str,
    },
    /// The kernel answers for the address already: it would reset every connection of the device.
    #[error(
        "address {address} is already answered by the kernel (it is set on {name}): give the \
         device another address, or take it from the kernel: `sudo ip address del {address} …`"
    )]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The interface that the kernel has it on.
        name: Name,
    },
    /// A number in the configuration is outside what the device can do.
    #[error("{what} {value} is outside {min} to {max}")]
    OutOfRange {
        /// What the number is.
        what: &'static str,
        /// The number.
        value: usize,
        /// Least allowed.
        min: usize,
        /// Most allowed.
        max: usize,
    },
    /// The kernel, or its configuration, lacks something.
    #[error("{what} is not available: {remedy}")]
    Unavailable {
        /// What is missing.
        what: &'static str,
        /// What to do.
        remedy: String,
    },
    /// Any other error of a system call.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried, to follow "cannot".
        action: String,
        /// The error.
        source: io::Error,
    },
}

impl OpenError {
    /// The peer at `path` cannot be met, or nothing was agreed on with it.
    pub(crate) fn no_peer(
        path: &Path,
        error: &dyn fmt::Display,
        cause: Option<&io::Error>,
        remedy: &'static str,
    ) -> Self {
        if let Some(foreign) = cause.and_then(foreign_user) {
            return Self::ForeignPeer { path: path.to_owned(), foreign };
        }
        let is_absent = cause.is_some_and(|cause| {
            matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        });
        Self::NoPeer { path: path.to_owned(), why: error.to_string(), is_absent, remedy }
    }

    /// Returns true if the device can be had once the process at the other end of its socket listens.
    #[must_use]
    pub const fn is_absent_peer(&self) -> bool {
        matches!(self, Self::NoPeer { is_absent: true, .. })
    }

    /// Whether a number of the configuration is one that the device can do.
    pub(crate) fn check_range(
        what: &'static str,
        value: usize,
        range: RangeInclusive<usize>,
    ) -> Result<(), Self> {
        if range.contains(&value) {
            return Ok(());
        }
        Err(Self::OutOfRange { what, value, min: *range.start(), max: *range.end() })
    }

    /// The error for a failed `action` (as in "cannot {action}"): [`Permission`](Self::Permission)
    /// with the `remedy` when that is why it failed.
    pub(crate) fn from_io(source: io::Error, action: String, remedy: impl Into<String>) -> Self {
        if source.kind() == io::ErrorKind::PermissionDenied {
            Self::Permission { action, remedy: remedy.into() }
        } else {
            Self::Io { action, source }
        }
    }

    /// Refuses addresses that the kernel answers for, on whichever interface it has them.
    ///
    /// # Errors
    /// [`AddressTaken`](Self::AddressTaken) with the first of them.
    pub(crate) fn check_addresses(addresses: &[IpAddr]) -> Result<(), Self> {
        // Nothing is known when the list cannot be had: then it is the caller's business.
        let owned = interface::addresses().unwrap_or_default();
        let taken = owned.into_iter().find(|(_, address)| addresses.contains(address));
        taken.map_or(Ok(()), |(name, address)| Err(Self::AddressTaken { address, name }))
    }

    /// The error for an interface that does not exist, with a list of those that do.
    #[must_use]
    pub fn unknown_interface(name: Name) -> Self {
        // A list that cannot be had is left empty: the name is what matters.
        Self::UnknownInterface { name, existing: interface::names().unwrap_or_default() }
    }
}

/// Names in a sentence.
struct List<'a>(&'a [Name]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, name) in self.0.iter().enumerate() {
            write!(f, "{}{name}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_to_do() {
        let name: Name = "tap0".parse().unwrap();
        let existing = vec!["lo".parse().unwrap(), "eth0".parse().unwrap()];
        let error = OpenError::UnknownInterface { name, existing };
        assert_eq!(error.to_string(), "no interface tap0; there are: lo, eth0");
        let denied = io::Error::from_raw_os_error(libc::EPERM);
        let error = OpenError::from_io(denied, "attach to tap0".to_owned(), "ask root");
        assert_eq!(error.to_string(), "no permission to attach to tap0: ask root");
        let other = io::Error::from_raw_os_error(libc::ENODEV);
        let error = OpenError::from_io(other, "attach to tap0".to_owned(), "ask root");
        assert!(error.to_string().starts_with("cannot attach to tap0: "), "{error}");
    }
}
