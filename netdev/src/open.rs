//! Errors of opening a device, each with a remedy.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::interface::{self, Name, NameError};
use crate::local_peer::ForeignUser;
use crate::peer::identity::foreign_user;

/// Reason why a device could not be opened. Every message names a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is not valid for an interface.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The process lacks a permission.
    #[error("no permission to {action}: {remedy}")]
    Permission {
        /// The refused action, to follow "no permission to".
        action: String,
        /// How to get the permission.
        remedy: String,
    },
    /// The interface does not exist.
    #[error("no interface {name}; there are: {}", List(.existing))]
    UnknownInterface {
        /// The requested name.
        name: Name,
        /// The interfaces of this network namespace.
        existing: Vec<Name>,
    },
    /// The interface exists, but has the wrong kind for the device.
    #[error("{name} is not {wanted}: {remedy}")]
    WrongKind {
        /// The interface.
        name: Name,
        /// The required kind.
        wanted: &'static str,
        /// The remedy.
        remedy: String,
    },
    /// Another process has the interface, or the queue, open.
    #[error("{name} is in use by another process: {remedy}")]
    Busy {
        /// The interface.
        name: Name,
        /// The remedy.
        remedy: String,
    },
    /// The path of a socket is taken.
    #[error("{} is taken: {remedy}", path.display())]
    PathTaken {
        /// The path.
        path: PathBuf,
        /// The remedy.
        remedy: &'static str,
    },
    /// The process at the other end of a socket runs as a user that is not trusted.
    #[error(
        "{}: {foreign}: use a path in a folder that only you can write, such as $XDG_RUNTIME_DIR, or \
         add peer={} if that user may be the other end",
        path.display(), foreign.uid
    )]
    ForeignPeer {
        /// The path of the socket.
        path: PathBuf,
        /// User of the peer.
        foreign: ForeignUser,
    },
    /// No usable peer at a socket.
    #[error("no peer at {}: {why}; {remedy}", path.display())]
    NoPeer {
        /// The path of the socket.
        path: PathBuf,
        /// The reason.
        why: String,
        /// True if no process listens at the path: a peer may start later.
        is_absent: bool,
        /// The remedy.
        remedy: &'static str,
    },
    /// The kernel has this address already. It would reset every connection of the device.
    #[error(
        "address {address} is already answered by the kernel (it is set on {name}): give the \
         device another address, or take it from the kernel: `sudo ip address del {address} …`"
    )]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The interface on which the kernel has it.
        name: Name,
    },
    /// A number in the configuration is outside the device's range.
    #[error("{what} {value} is outside {min} to {max}")]
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        /// The number.
        value: usize,
        /// Least allowed value.
        min: usize,
        /// Largest allowed value.
        max: usize,
    },
    /// The kernel, or its configuration, lacks something.
    #[error("{what} is not available: {remedy}")]
    Unavailable {
        /// The missing feature.
        what: &'static str,
        /// The remedy.
        remedy: String,
    },
    /// Any other error of a system call.
    #[error("cannot {action}: {source}")]
    Io {
        /// The failed action, to follow "cannot".
        action: String,
        /// The error.
        source: io::Error,
    },
}

impl OpenError {
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

    /// Returns true if opening can succeed once the process at the other end of the socket listens.
    #[must_use]
    pub const fn is_absent_peer(&self) -> bool {
        matches!(self, Self::NoPeer { is_absent: true, .. })
    }

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

    /// The error of a failed `action`, with the `remedy` if a permission was missing.
    pub(crate) fn from_io(source: io::Error, action: String, remedy: impl Into<String>) -> Self {
        if source.kind() == io::ErrorKind::PermissionDenied {
            Self::Permission { action, remedy: remedy.into() }
        } else {
            Self::Io { action, source }
        }
    }

    /// Fails with [`AddressTaken`](Self::AddressTaken) if the kernel has one on any interface.
    pub(crate) fn check_addresses(addresses: &[IpAddr]) -> Result<(), Self> {
        // If the list cannot be read, the check is skipped: the caller is responsible then.
        let owned = interface::addresses().unwrap_or_default();
        let taken = owned.into_iter().find(|(_, address)| addresses.contains(address));
        taken.map_or(Ok(()), |(name, address)| Err(Self::AddressTaken { address, name }))
    }

    /// Returns the error for an interface that does not exist, with the list of existing ones.
    #[must_use]
    pub fn unknown_interface(name: Name) -> Self {
        // A list that cannot be read is left empty: the name matters most.
        Self::UnknownInterface { name, existing: interface::names().unwrap_or_default() }
    }
}

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
    fn open_errors_name_a_remedy() {
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
