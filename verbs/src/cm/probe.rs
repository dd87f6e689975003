//! Finds out if the server at a TCP port speaks MPA.
//!
//! An MPA responder whose application has not answered yet and a server of another protocol are
//! both silent. So the probe opens a second connection, and sends an MPA Request with a wrong key.
//! A responder closes that connection as soon as it has read the key, whatever its application does
//! (RFC 5044 §7.1.2 (8)).
#![expect(unsafe_code, reason = "an ioctl that is not in rustix")]

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};
use urnic::monotonic_now;
use urnic_engine::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Probe {
    socket: Option<Socket>,
    /// Time at which the request was sent, or was last found unacknowledged.
    sent_at: Option<Instant>,
    pub(super) found: Option<Speaks>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    /// Something other than MPA.
    Other,
    /// Possibly MPA: the peer closed the connection, answered by MPA, or could not be reached.
    Unknown,
}

/// Bytes of the length of a correct request's head: no flags, no revision, no Private Data, and no
/// line end, so a line-oriented server does not take them for a command.
pub(super) const WRONG_REQUEST: [u8; 20] = *b"urnic: no MPA Req\0\0\0";
/// First bytes of each frame of MPA's startup (RFC 5044 §7.1.1).
const MPA: &[u8] = b"MPA ID";
/// Least time that a responder has once its TCP has acknowledged the request: its process may wait
/// for a processor.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

impl Probe {
    pub(super) fn start(remote: SocketAddr) -> Self {
        let start = || -> io::Result<Socket> {
            let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            match socket.connect(&remote.into()) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
                _ => Ok(socket),
            }
        };
        let socket = start().ok();
        let found = if socket.is_some() { None } else { Some(Speaks::Unknown) };
        Self { socket, sent_at: None, found }
    }

    /// Closes the connection when there is a result.
    pub(super) fn look(&mut self) -> Option<Speaks> {
        if let (None, Some(socket)) = (self.found, &self.socket) {
            let found = Self::step(socket, &mut self.sent_at);
            self.found = found.unwrap_or(Some(Speaks::Unknown));
        }
        if self.found.is_some() {
            self.socket = None;
        }
        self.found
    }

    fn step(mut socket: &Socket, sent_at: &mut Option<Instant>) -> io::Result<Option<Speaks>> {
        let Some(at) = *sent_at else {
            let mut ready = [PollFd::new(socket, PollFlags::OUT)];
            if poll(&mut ready, Some(&Timespec::default()))? > 0 {
                socket.take_error()?.map_or(Ok(()), Err)?;
                socket.send(&WRONG_REQUEST)?;
                *sent_at = Some(monotonic_now());
            }
            return Ok(None);
        };
        let mut octets = [0; 16];
        match socket.read(&mut octets) {
            Ok(0) => Ok(Some(Speaks::Unknown)),
            Ok(_) if octets.starts_with(MPA) => Ok(Some(Speaks::Unknown)),
            Ok(_) => Ok(Some(Speaks::Other)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if is_acknowledged(socket)? {
                    let is_over = monotonic_now() - at >= CLOSED_WITHIN;
                    return Ok(is_over.then_some(Speaks::Other));
                }
                // The listener's backlog is full, or the round trip is long: the time counts from
                // the acknowledgment.
                *sent_at = Some(monotonic_now());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns true if the send queue is empty (tcp(7), `SIOCOUTQ`).
fn is_acknowledged(socket: &Socket) -> io::Result<bool> {
    let mut waiting: c_int = 0;
    // SAFETY: a live socket, and memory for the number, which the call writes.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(waiting == 0) }
}
