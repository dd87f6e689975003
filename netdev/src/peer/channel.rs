//! Socket between the two processes: messages with descriptors, non-blocking.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::peer::closer::{Closer, PeerFd};
use crate::peer::header::{BODY_LEN_MAX, DESCRIPTORS_MAX, HEADER_LEN, Header, MessageError};
use crate::peer::limits::PASSED_MAX;

/// One end of a connection. A message may arrive in any number of pieces.
#[derive(Debug)]
pub(crate) struct Channel {
    /// `None` only during drop.
    stream: Option<UnixStream>,
    octets: Box<[u8]>,
    len: usize,
    descriptors: Vec<PeerFd>,
    closer: Closer,
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<PeerFd>,
}

/// Reasons why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("the peer is gone")]
    Closed,
    #[error(transparent)]
    Message(#[from] MessageError),
    /// [`CLOSES_MAX`](crate::peer::limits::CLOSES_MAX) descriptors wait to be closed.
    #[error("descriptors that a peer has sent are not closed yet")]
    Unclosed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ChannelError {
    /// The socket, or the kernel's count of descriptors in flight, had no room: nothing was sent.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Io(error) => {
                error.kind() == io::ErrorKind::WouldBlock
                    || error.raw_os_error() == Some(libc::ETOOMANYREFS)
            }
            _ => false,
        }
    }

    /// With or without unread messages.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Io(error) => {
                matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
            }
            Self::Message(_) | Self::Unclosed => false,
        }
    }
}

impl Channel {
    /// `closer` closes the descriptors that the peer sends.
    pub(crate) fn new(stream: UnixStream, closer: Closer) -> io::Result<Self> {
        let octets = vec![0; HEADER_LEN + BODY_LEN_MAX].into_boxed_slice();
        let descriptors = Vec::with_capacity(DESCRIPTORS_MAX);
        let channel = Self { stream: Some(stream), octets, len: 0, descriptors, closer };
        channel.stream().set_nonblocking(true)?;
        // Otherwise the kernel drops an urgent byte in `recvmsg`, and closes its descriptors here.
        rustix::net::sockopt::set_socket_oobinline(channel.stream(), true)?;
        Ok(channel)
    }

    const fn stream(&self) -> &UnixStream {
        self.stream.as_ref().expect("it is there until it is dropped")
    }

    /// Returns the next message, if it has arrived whole. After an error the connection is
    /// unusable.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, ChannelError> {
        loop {
            let wanted = match self.octets[..self.len].first_chunk() {
                None => HEADER_LEN,
                Some(header) => {
                    let header = Header::from_octets(*header)?;
                    let body_len = usize::try_from(header.len).expect("at most BODY_LEN_MAX");
                    if self.len == HEADER_LEN + body_len {
                        let body = self.octets[HEADER_LEN..self.len].to_vec();
                        self.len = 0;
                        let descriptors = std::mem::take(&mut self.descriptors);
                        return Ok(Some(Message { header, body, descriptors }));
                    }
                    HEADER_LEN + body_len
                }
            };
            // Never past the end of a message: descriptors arrive with the first byte of their
            // message.
            if !self.receive_some(wanted)? {
                return Ok(None);
            }
        }
    }

    fn receive_some(&mut self, wanted: usize) -> Result<bool, ChannelError> {
        if self.closer.is_full() {
            return Err(ChannelError::Unclosed);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let stream = self.stream.as_ref().expect("it is there until it is dropped");
        let room = &mut self.octets[self.len..wanted];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(stream, &mut [IoSliceMut::new(room)], &mut control, flags) {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                let closer = &self.closer;
                let received = descriptors.map(|one| PeerFd::new(one, closer.clone()));
                self.descriptors.extend(received);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > DESCRIPTORS_MAX
        {
            let request = self.octets.first_chunk().map_or(0, |first| u32::from_ne_bytes(*first));
            return Err(MessageError::Descriptors(request, DESCRIPTORS_MAX + 1).into());
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        self.len += received.bytes;
        Ok(true)
    }

    /// Sends a message without waiting. If the socket has no room, nothing is sent, and the error
    /// [is full](ChannelError::is_full). [`io::ErrorKind::WriteZero`] after a part of the message
    /// ends the connection.
    pub(crate) fn send(
        &self,
        header: Header,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(pushed, "at most DESCRIPTORS_MAX descriptors are sent");
        }
        let header = header.to_octets();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let octets = [IoSlice::new(&header), IoSlice::new(body)];
        let sent = sendmsg(self.stream(), &octets, &mut control, flags).map_err(io::Error::from)?;
        if sent == header.len() + body.len() {
            Ok(())
        } else {
            // The rest cannot be sent later, since the next bytes sent are another message.
            Err(io::Error::from(io::ErrorKind::WriteZero).into())
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.closer.close_stream(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::peer::limits::CLOSES_MAX;
    use crate::sys::shared_mapping::sealed_memory;

    fn pair() -> (Channel, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::new(a, Closer::default()).unwrap(), b)
    }

    #[test]
    fn a_message_in_pieces_is_whole_in_the_end() {
        let (mut channel, mut peer) = pair();
        let header = Header::of_request(2, 8, false);
        let octets = [&header.to_octets()[..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
        for round in 0..2 {
            for octet in &octets {
                assert!(channel.receive().unwrap().is_none(), "round {round}");
                peer.write_all(&[*octet]).unwrap();
            }
            let message = channel.receive().unwrap().expect("a whole message");
            assert_eq!((message.header, &message.body[..]), (header, &octets[12..]));
        }
        drop(peer);
        assert!(matches!(channel.receive(), Err(ChannelError::Closed)));
    }

    #[test]
    fn descriptors_come_with_their_message() {
        let (mut channel, peer) = pair();
        let peer = Channel::new(peer, Closer::default()).unwrap();
        let file = sealed_memory(c"test", 4096).unwrap();
        let header = Header::of_request(5, 0, true);
        peer.send(header, &[], &[file.as_fd(); DESCRIPTORS_MAX]).unwrap();
        peer.send(header, &[], &[]).unwrap();
        peer.send(header, &[], &[file.as_fd()]).unwrap();
        for count in [DESCRIPTORS_MAX, 0, 1] {
            let message = channel.receive().unwrap().expect("a message");
            assert_eq!(message.descriptors.len(), count);
        }
    }

    #[test]
    fn more_descriptors_than_a_message_has_end_the_connection() {
        let (mut channel, peer) = pair();
        let peer = Channel::new(peer, Closer::default()).unwrap();
        let file = sealed_memory(c"test", 4096).unwrap();
        // In two pieces of one message.
        let header = Header::of_request(5, 24, true);
        peer.send(header, &[], &[file.as_fd(); DESCRIPTORS_MAX]).unwrap();
        peer.send(header, &[], &[file.as_fd(); 1]).unwrap();
        let error = channel.receive().unwrap_err();
        assert!(matches!(error, ChannelError::Message(MessageError::Descriptors(5, _))), "{error}");
    }

    #[test]
    fn a_peer_that_does_not_read_is_not_waited_for() {
        let (channel, _peer) = pair();
        let header = Header::of_reply(1, 4000);
        let sent = (0..10_000).find_map(|_| channel.send(header, &[0; 4000], &[]).err());
        assert!(sent.is_some_and(|error| error.is_full() && !error.is_closed()));
    }

    #[test]
    fn descriptors_that_cannot_be_closed_now_end_the_connection_before_more_are_read() {
        let (stream, peer) = UnixStream::pair().unwrap();
        let closer = Closer::stuck();
        let mut channel = Channel::new(stream, closer.clone()).unwrap();
        let peer = Channel::new(peer, Closer::default()).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let header = Header::of_request(5, 0, false);
        for _ in 0..CLOSES_MAX / DESCRIPTORS_MAX {
            peer.send(header, &[], &[file.as_fd(); DESCRIPTORS_MAX]).unwrap();
            assert!(!closer.is_full());
            drop(channel.receive().unwrap().expect("a message"));
        }
        peer.send(header, &[], &[file.as_fd(); DESCRIPTORS_MAX]).unwrap();
        assert!(matches!(channel.receive(), Err(ChannelError::Unclosed)));
        // The socket has a message with descriptors, so it is closed later, too.
        drop(channel);
        assert_eq!(closer.waiting(), CLOSES_MAX + 1);
    }

    #[test]
    fn all_descriptors_that_the_kernel_passes_are_received() {
        let (stream, peer) = UnixStream::pair().unwrap();
        let closer = Closer::stuck();
        let mut channel = Channel::new(stream, closer.clone()).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd(); PASSED_MAX];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let header = Header::of_request(5, 0, false).to_octets();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&peer, &[IoSlice::new(&header)], &mut control, flags).unwrap();
        let error = channel.receive().unwrap_err();
        assert!(matches!(error, ChannelError::Message(MessageError::Descriptors(..))), "{error}");
        drop(channel);
        assert_eq!(closer.waiting(), PASSED_MAX, "none was left to the kernel");
    }
}
