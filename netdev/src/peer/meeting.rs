//! Where two processes find each other: a Unix socket by its path.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::OpenError;

/// One of the two ways to a peer.
#[derive(Debug)]
pub(crate) enum Meeting {
    /// The peer comes.
    Listen {
        listener: UnixListener,
        path: PathBuf,
        /// Device and number of the socket's file: another one is left alone.
        file: (u64, u64),
    },
    /// The peer is there.
    Connect(PathBuf),
}

impl Meeting {
    /// # Errors
    /// When the socket cannot be made. A socket that no process listens at is replaced.
    pub(crate) fn open(path: &Path, listens: bool) -> Result<Self, OpenError> {
        if !listens {
            return Ok(Self::Connect(path.to_owned()));
        }
        let shown = path.display();
        let failed = |source: io::Error| {
            let remedy = "use a folder that is yours, such as $XDG_RUNTIME_DIR";
            OpenError::from_io(source, format!("make the socket {shown}"), remedy)
        };
        if let Ok(found) = fs::symlink_metadata(path) {
            let is_dead = found.file_type().is_socket()
                && try_connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !is_dead {
                let remedy = "another process listens there, or it is no socket: use another path";
                return Err(OpenError::PathTaken { path: path.to_owned(), remedy });
            }
            fs::remove_file(path).map_err(failed)?;
        }
        let make = || -> io::Result<Self> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            bind(&socket, &SocketAddrUnix::new(path)?)?;
            let found = fs::symlink_metadata(path)?;
            let listener = UnixListener::from(socket);
            let file = (found.dev(), found.ino());
            let meeting = Self::Listen { listener, path: path.to_owned(), file };
            // Before it listens: connecting to it takes the right to write it.
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            if let Self::Listen { listener, .. } = &meeting {
                listen(listener, BACKLOG)?;
            }
            Ok(meeting)
        };
        make().map_err(failed)
    }

    /// A connection to the peer, if it is there.
    pub(crate) fn try_meet(&self) -> io::Result<UnixStream> {
        match self {
            Self::Listen { listener, .. } => listener.accept().map(|(stream, _)| stream),
            Self::Connect(path) => try_connect(path),
        }
    }

    /// What becomes readable when the peer comes.
    pub(crate) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Listen { listener, .. } => Some(listener.as_fd()),
            Self::Connect(_) => None,
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let Self::Listen { path, file, .. } = self else { return };
        let found = fs::symlink_metadata(&*path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == *file) {
            let _gone_already = fs::remove_file(path);
        }
    }
}

fn try_connect(path: &Path) -> io::Result<UnixStream> {
    // A full backlog is an error, too, not a reason to wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Peers that wait until the one that is served has gone.
const BACKLOG: i32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_for_its_user_and_goes_with_its_maker() {
        let path = std::env::temp_dir().join(format!("urnic-meeting-{}", std::process::id()));
        let first = Meeting::open(&path, true).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = Meeting::open(&path, true).unwrap_err();
        assert!(error.to_string().contains("use another path"), "{error}");
        drop(first.try_meet().unwrap());
        assert!(first.try_meet().is_err(), "none but the one that looked whether it is taken");
        let connecting = Meeting::open(&path, false).unwrap().try_meet().unwrap();
        assert!(first.try_meet().is_ok());
        drop(connecting);
        drop(first);
        assert!(!path.exists());
        // One that a killed process has left.
        drop(UnixListener::bind(&path).unwrap());
        drop(Meeting::open(&path, true).unwrap());
        // No socket at all.
        fs::write(&path, "a file").unwrap();
        assert!(Meeting::open(&path, true).is_err());
        fs::remove_file(&path).unwrap();
        let error = Meeting::open(Path::new("/nowhere/socket"), true).unwrap_err();
        assert!(error.to_string().contains("/nowhere/socket"), "{error}");
    }
}
