//! Datagrams of Unix sockets with the user of their sender.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use crate::peer::closer::{Closer, PeerFd};
use crate::peer::identity::{ForeignUser, check_user};
use crate::sys::credentials::{PATH_LEN, ask_for_senders, receive, refuse_descriptors};

/// Datagram socket that reports the user of each sender. The kernel refuses datagrams with
/// descriptors. Before Linux 6.16 they are received, and closed by another thread.
#[derive(Debug)]
pub struct UserDatagram {
    socket: UnixDatagram,
    /// User that is trusted besides the own user and root.
    also: Option<u32>,
    closer: Closer,
}

/// A received datagram.
#[derive(Debug)]
pub struct Datagram {
    /// Number of bytes, at the front of the buffer.
    pub len: usize,
    /// An error if the sender is not trusted.
    pub user: Result<(), ForeignUser>,
    path: [u8; PATH_LEN],
    path_len: usize,
}

impl Datagram {
    /// Returns the abstract name of the sender's socket, if it has one.
    #[must_use]
    pub fn abstract_name(&self) -> Option<&[u8]> {
        self.path[..self.path_len].strip_prefix(&[0])
    }
}

impl UserDatagram {
    /// Wraps a socket; call before relevant datagrams arrive. Trusts the own user, root, and
    /// `also`.
    pub fn new(socket: UnixDatagram, also: Option<u32>) -> io::Result<Self> {
        ask_for_senders(socket.as_fd())?;
        refuse_descriptors(socket.as_fd());
        Ok(Self { socket, also, closer: Closer::default() })
    }

    /// Returns the socket, for sending.
    #[must_use]
    pub const fn socket(&self) -> &UnixDatagram {
        &self.socket
    }

    /// Returns true if nothing is received until descriptors of earlier datagrams are closed. The
    /// socket may be readable meanwhile: sleep for a time.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.closer.is_full()
    }

    /// Receives a datagram. If the sender is another user, [`Datagram::user`] is an error. Fails
    /// with [`io::ErrorKind::WouldBlock`] while the socket [is held](Self::is_held).
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        if self.closer.is_full() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let received = receive(self.socket.as_fd(), buffer)?;
        for descriptor in received.descriptors {
            drop(PeerFd::new(descriptor, self.closer.clone()));
        }
        // A datagram sent before `new` has no sender and is treated like one of an unknown user.
        let uid = received.sender.map_or(u32::MAX, |sender| sender.uid);
        let (path, path_len) = received.path;
        Ok(Datagram { len: received.len, user: check_user(uid, self.also), path, path_len })
    }
}

impl AsFd for UserDatagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use urnic_testkit::users::{OTHER, as_other_user};

    use super::*;
    use crate::peer::closer::tests::{LINGER, lingering, until};
    use crate::peer::limits::CLOSES_MAX;
    use crate::sys::descriptor::end_lingering;

    fn pair(also: Option<u32>) -> (UserDatagram, UnixDatagram) {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (UserDatagram::new(near, also).unwrap(), far)
    }

    #[test]
    fn a_datagram_comes_with_its_sender() {
        let (near, far) = pair(None);
        let mut buffer = [0; 16];
        assert_eq!(near.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        for octets in [&b"octets"[..], b""] {
            far.send(octets).unwrap();
            let datagram = near.receive(&mut buffer).unwrap();
            assert_eq!(buffer[..datagram.len], *octets);
            assert_eq!((datagram.user, datagram.abstract_name()), (Ok(()), None));
        }
        let name = format!("urnic-datagram-test-{}", std::process::id());
        let at = SocketAddr::from_abstract_name(&name).unwrap();
        let near = UserDatagram::new(UnixDatagram::bind_addr(&at).unwrap(), None).unwrap();
        let from = format!("{name}-far");
        let far = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&from).unwrap()).unwrap();
        far.send_to_addr(b"named", &at).unwrap();
        let datagram = near.receive(&mut buffer).unwrap();
        assert_eq!(datagram.abstract_name(), Some(from.as_bytes()));
    }

    #[test]
    fn a_datagram_of_another_user_says_so() {
        let mut buffer = [0; 16];
        for (also, is_trusted) in [(None, false), (Some(OTHER), true)] {
            let (near, far) = pair(also);
            let name = "a_datagram_of_another_user_says_so";
            let sent = as_other_user(name, move || far.send(b"x").unwrap());
            let Some(_len) = sent else { return };
            let datagram = near.receive(&mut buffer).unwrap();
            assert_eq!(datagram.user.is_ok(), is_trusted);
            if let Err(foreign) = datagram.user {
                assert_eq!(foreign.uid, OTHER);
            }
        }
    }

    #[test]
    fn a_socket_whose_descriptors_cannot_be_closed_is_held() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let closer = Closer::stuck();
        let near = UserDatagram { socket: near, also: None, closer: closer.clone() };
        far.send(b"x").unwrap();
        for _ in 0..CLOSES_MAX {
            assert!(!near.is_held());
            drop(PeerFd::new(std::fs::File::open("/dev/null").unwrap().into(), closer.clone()));
        }
        assert!(near.is_held());
        assert_eq!(near.receive(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "another thread closes")]
    fn descriptors_are_closed_and_not_waited_for() {
        let (near, far) = pair(None);
        let begun = std::time::Instant::now();
        let mut kept = Vec::new();
        for _ in 0..5 {
            let (socket, peer) = lingering();
            kept.push(peer);
            let files = [socket.as_fd(); 253];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
            let parts = [IoSlice::new(b"x")];
            match sendmsg(&far, &parts, &mut control, SendFlags::empty()) {
                // Since Linux 6.16.
                Err(rustix::io::Errno::PERM) => {
                    assert_eq!(
                        near.receive(&mut [0; 16]).unwrap_err().kind(),
                        io::ErrorKind::WouldBlock
                    );
                    // The test holds the last descriptor, and must not block either.
                    end_lingering(socket.as_fd());
                    continue;
                }
                sent => assert_eq!(sent, Ok(1)),
            }
            drop(socket);
            until(|| near.receive(&mut [0; 16]).is_ok());
        }
        until(|| near.closer.waiting() == 0);
        assert!(begun.elapsed() < LINGER);
    }
}
