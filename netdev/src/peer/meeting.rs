//! Connection set-up between two processes at the path of a Unix socket.

use std::cell::Cell;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use tracing::warn;

use crate::peer::channel::Channel;
use crate::peer::closer::Closer;
use crate::peer::identity::check_peer;
use crate::{OpenError, TRACE};

#[derive(Debug)]
pub(crate) struct Meeting {
    way: Way,
    /// User whose processes are trusted, besides this process's user and root.
    also: Option<u32>,
    closer: Closer,
    refused: Cell<u64>,
}

#[derive(Debug)]
enum Way {
    Listen {
        listener: Option<UnixListener>,
        path: PathBuf,
        /// Device and inode of the socket's file, so that drop removes no other file.
        file: (u64, u64),
    },
    /// This end connects to the peer.
    Connect(PathBuf),
}

impl Meeting {
    /// Prepares the socket at `path`. Trusts processes of this user, of root, and of the user
    /// `also`. A socket without a listening process is replaced.
    pub(crate) fn open(path: &Path, listens: bool, also: Option<u32>) -> Result<Self, OpenError> {
        let closer = Closer::default();
        let way = if listens { Way::listen(path, &closer)? } else { Way::Connect(path.to_owned()) };
        Ok(Self { way, also, closer, refused: Cell::new(0) })
    }

    /// Returns a connection to the peer, if it is there and trusted;
    /// [`io::ErrorKind::PermissionDenied`] with a [`ForeignUser`](crate::local_peer::ForeignUser).
    pub(crate) fn try_meet(&self) -> io::Result<Channel> {
        if self.closer.is_full() {
            let why = "descriptors that an earlier peer has sent are not closed yet";
            return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
        }
        let stream = match &self.way {
            Way::Listen { listener: Some(listener), .. } => listener.accept()?.0,
            Way::Listen { listener: None, .. } => return Err(io::ErrorKind::NotConnected.into()),
            Way::Connect(path) => try_connect(path)?,
        };
        if let Err(error) = check_peer(&stream, self.also) {
            self.closer.close_stream(stream);
            self.note(&error);
            return Err(error);
        }
        Channel::new(stream, self.closer.clone())
    }

    /// Another user can connect at any rate.
    #[cold]
    fn note(&self, error: &io::Error) {
        self.refused.set(self.refused.get() + 1);
        let (count, path) = (self.refused.get(), self.way.path().display());
        if count.is_power_of_two() {
            warn!(target: TRACE, count, %path, %error, "refused a peer; peer=UID allows a user");
        }
    }

    pub(crate) const fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Returns true if no peer is accepted until descriptors of earlier peers are closed.
    pub(crate) fn is_held(&self) -> bool {
        self.closer.is_full()
    }

    #[cfg(test)]
    pub(crate) fn be_stuck(&mut self) {
        self.closer = Closer::stuck();
    }

    /// Returns the descriptor that becomes readable when a peer connects.
    pub(crate) fn readiness(&self) -> Option<BorrowedFd<'_>> {
        match &self.way {
            Way::Listen { listener, .. } => listener.as_ref().map(AsFd::as_fd),
            Way::Connect(_) => None,
        }
    }
}

impl Way {
    fn path(&self) -> &Path {
        match self {
            Self::Listen { path, .. } | Self::Connect(path) => path,
        }
    }

    fn listen(path: &Path, closer: &Closer) -> Result<Self, OpenError> {
        let shown = path.display();
        let failed = |source: io::Error| {
            let remedy = "use a folder that is yours, such as $XDG_RUNTIME_DIR";
            OpenError::from_io(source, format!("make the socket {shown}"), remedy)
        };
        if let Ok(found) = fs::symlink_metadata(path) {
            let is_dead = found.file_type().is_socket()
                && match try_connect(path) {
                    Ok(stream) => {
                        closer.close_stream(stream);
                        false
                    }
                    Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
                };
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
            let listener = Some(UnixListener::from(socket));
            let file = (found.dev(), found.ino());
            let way = Self::Listen { listener, path: path.to_owned(), file };
            // Before it listens: connecting requires write permission.
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
            if let Self::Listen { listener: Some(listener), .. } = &way {
                listen(listener, BACKLOG)?;
            }
            Ok(way)
        };
        make().map_err(failed)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let Self::Listen { path, file, .. } = self else { return };
        let found = fs::symlink_metadata(&*path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == *file) {
            let _gone_already = fs::remove_file(path);
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        if let Way::Listen { listener, .. } = &mut self.way
            && let Some(listener) = listener.take()
        {
            self.closer.close_listener(listener);
        }
    }
}

fn try_connect(path: &Path) -> io::Result<UnixStream> {
    // A full backlog is an error, too, instead of a wait.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Peers that wait while another one is served.
const BACKLOG: i32 = 4;

#[cfg(test)]
mod tests {
    use urnic_testkit::users::{OTHER, as_other_user};

    use super::*;

    #[test]
    fn socket_is_private_to_its_user_and_removed_by_its_creator() {
        let path = std::env::temp_dir().join(format!("urnic-meeting-{}", std::process::id()));
        let first = Meeting::open(&path, true, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = Meeting::open(&path, true, None).unwrap_err();
        assert!(error.to_string().contains("use another path"), "{error}");
        drop(first.try_meet().unwrap());
        assert!(first.try_meet().is_err(), "none but the one that looked whether it is taken");
        let connecting = Meeting::open(&path, false, None).unwrap().try_meet().unwrap();
        assert!(first.try_meet().is_ok());
        drop(connecting);
        drop(first);
        assert!(!path.exists());
        // Left by a killed process.
        drop(UnixListener::bind(&path).unwrap());
        drop(Meeting::open(&path, true, None).unwrap());
        // Not a socket.
        fs::write(&path, "a file").unwrap();
        assert!(Meeting::open(&path, true, None).is_err());
        fs::remove_file(&path).unwrap();
        let error = Meeting::open(Path::new("/nowhere/socket"), true, None).unwrap_err();
        assert!(error.to_string().contains("/nowhere/socket"), "{error}");
    }

    #[test]
    fn a_process_of_another_user_is_no_peer_unless_it_is_named() {
        let name = "a_process_of_another_user_is_no_peer_unless_it_is_named";
        // The other user listens, in the first folder that it may write.
        let mut found = None;
        for folder in [std::env::temp_dir(), "/tmp".into(), "/dev/shm".into()] {
            let path = folder.join(format!("urnic-user-{}", std::process::id()));
            let squatted = path.clone();
            match as_other_user(name, move || UnixListener::bind(squatted)) {
                None => return,
                Some(Ok(listener)) => {
                    found = Some((listener, path));
                    break;
                }
                Some(Err(_)) => {}
            }
        }
        let Some((listener, path)) = found else {
            return urnic_testkit::skip(name, "no folder that all users may write");
        };
        let connecting = Meeting::open(&path, false, None).unwrap();
        let error = connecting.try_meet().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let shown = OpenError::no_peer(&path, &error, Some(&error), "").to_string();
        for part in [&*path.to_string_lossy(), "of user 12345", "peer=12345", "XDG_RUNTIME_DIR"] {
            assert!(shown.contains(part), "{shown}");
        }
        assert_eq!(connecting.refused(), 1);
        assert!(Meeting::open(&path, false, Some(OTHER - 1)).unwrap().try_meet().is_err());
        Meeting::open(&path, false, Some(OTHER)).unwrap().try_meet().unwrap();
        drop(listener);
        fs::remove_file(&path).unwrap();
        // The other user connects.
        for (also, is_trusted) in [(None, false), (Some(OTHER), true)] {
            let listening = Meeting::open(&path, true, also).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
            let coming = path.clone();
            let mut stream =
                as_other_user(name, move || UnixStream::connect(coming).unwrap()).unwrap();
            assert_eq!(listening.try_meet().is_ok(), is_trusted);
            assert_eq!(listening.refused(), u64::from(!is_trusted));
            if !is_trusted {
                assert_eq!(io::Read::read(&mut stream, &mut [0]).unwrap(), 0, "hung up on");
            }
        }
    }
}
