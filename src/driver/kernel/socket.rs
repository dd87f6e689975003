//! One connection: a kernel socket and the layered stream on it.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use urnic_netdev::shared_memory::send_fragments;

use crate::driver::kernel::events::Readiness;
use crate::limits::LINGER_NS;
use crate::port::ConnectionCounters;
use crate::stream::Fragments;
use crate::stream::layered::Layered;
use crate::time::{Duration, Instant};
use crate::verbs::{Qp, Rnic};

/// A connection over the kernel's TCP.
#[derive(Debug)]
pub(super) struct KernelConnection {
    pub(super) socket: Socket,
    pub(super) layered: Layered,
    pub(super) qp: Option<Qp>,
    /// Whom it was opened to, by this end.
    remote: Option<SocketAddr>,
    /// The listener in whose backlog it still counts.
    pub(super) listener: Option<usize>,
    /// What the kernel last said the socket is ready for, unless found otherwise since.
    ready: Readiness,
    /// What the kernel is asked to report.
    interest: Readiness,
    connecting: bool,
    /// A burst limit ended the last round of writes.
    send_stopped: bool,
    /// Segment length that FPDUs are cut for.
    emss: usize,
    /// Everything has been sent and the peer has been told.
    sending_ended: Option<Instant>,
    receiving_ended: bool,
    lost: bool,
    error: Option<io::ErrorKind>,
}

impl KernelConnection {
    /// Starts to connect.
    pub(super) fn connect(
        rnic: &Rnic,
        remote: SocketAddr,
        user_timeout: Duration,
    ) -> io::Result<Self> {
        let domain = Domain::for_address(remote);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        let mut connection = Self::new(rnic, socket, user_timeout)?;
        connection.connecting = true;
        connection.remote = Some(remote);
        connection.ready = Readiness::default();
        match connection.socket.connect(&SockAddr::from(remote)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(connection)
    }

    /// Takes over a connection that a peer has opened.
    pub(super) fn accepted(
        rnic: &Rnic,
        socket: Socket,
        user_timeout: Duration,
    ) -> io::Result<Self> {
        let mut connection = Self::new(rnic, socket, user_timeout)?;
        connection.connected();
        Ok(connection)
    }

    fn new(rnic: &Rnic, socket: Socket, user_timeout: Duration) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // The kernel's own limit is a number of retransmissions: a quarter of an hour.
        socket.set_tcp_user_timeout(Some(user_timeout))?;
        // An FPDU that is ready is sent: waiting for more is the application's choice.
        socket.set_tcp_nodelay(true)?;
        let both = Readiness { readable: true, writable: true, failed: false };
        Ok(Self {
            socket,
            layered: Layered::new(rnic),
            qp: None,
            remote: None,
            listener: None,
            ready: both,
            interest: both,
            connecting: false,
            send_stopped: false,
            emss: EMSS_DEFAULT,
            sending_ended: None,
            receiving_ended: false,
            lost: false,
            error: None,
        })
    }

    /// The address that this end has opened the connection to.
    pub(super) fn remote(&self) -> io::Result<SocketAddr> {
        self.remote.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn connected(&mut self) {
        self.connecting = false;
        // RFC 5044 §5.1: layered MPA cuts FPDUs for the segments of the TCP below as it knows it.
        if let Ok(mss) = self.socket.tcp_mss() {
            self.emss = (mss as usize).clamp(EMSS_MIN, EMSS_MAX);
        }
    }

    /// The kernel says what the socket is ready for.
    pub(super) fn handle_readiness(&mut self, readiness: Readiness) {
        self.ready.readable |= readiness.readable;
        self.ready.writable |= readiness.writable;
        if self.connecting && readiness.writable {
            match self.socket.take_error() {
                Ok(None) => self.connected(),
                Ok(Some(error)) | Err(error) => self.fail(&error),
            }
        } else if readiness.failed
            && let Ok(Some(error)) = self.socket.take_error()
        {
            self.fail(&error);
        }
    }

    /// Reads what has arrived; returns how many reads that took.
    pub(super) fn receive(&mut self, now: Instant, buffer: &mut [u8]) -> usize {
        let mut reads = 0;
        while self.ready.readable && !self.is_finished() && !self.connecting && reads < READ_BURST {
            match (&self.socket).read(buffer) {
                Ok(0) => {
                    self.receiving_ended = true;
                    self.layered.handle_end();
                }
                Ok(len) => {
                    self.layered.handle_bytes(now, &buffer[..len]);
                    self.ready.readable = len == buffer.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready.readable = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.fail(&error),
            }
            reads += 1;
        }
        reads
    }

    /// Writes what is to be sent; returns how many writes that took.
    pub(super) fn send(&mut self, now: Instant) -> usize {
        let mut writes = 0;
        while self.ready.writable && self.may_send() && writes < WRITE_BURST {
            let mut fragments = Fragments::new();
            self.layered.octets_to_send(self.emss, SEND_LEN, &mut fragments);
            if fragments.is_empty() {
                break;
            }
            let sent = send_fragments(self.socket.as_fd(), &fragments);
            drop(fragments);
            match sent {
                Ok(len) => self.layered.handle_sent(len),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ready.writable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.fail(&error),
            }
            writes += 1;
        }
        self.send_stopped = writes == WRITE_BURST;
        if self.may_send() && self.layered.wants_close() {
            // Nothing is to be read after a RST for unread octets: the peer gets all there is,
            // then the end (RFC 5040 §7: the Terminate must arrive).
            let shut = self.socket.shutdown(Shutdown::Write);
            self.sending_ended = Some(now);
            if let Err(error) = shut {
                self.fail(&error);
            }
        }
        writes
    }

    const fn may_send(&self) -> bool {
        !self.connecting && !self.lost && self.sending_ended.is_none()
    }

    const fn is_finished(&self) -> bool {
        self.lost || self.receiving_ended
    }

    /// Whether a burst limit stopped it, not the socket.
    pub(super) fn has_more(&self) -> bool {
        let may_read = !self.connecting && self.ready.readable && !self.is_finished();
        may_read || (self.send_stopped && self.may_send())
    }

    /// What the kernel is to report from now on; `None` when that has not changed.
    pub(super) fn interest(&mut self) -> Option<Readiness> {
        let wanted = Readiness {
            readable: !self.is_finished(),
            writable: self.connecting || (!self.ready.writable && self.may_send()),
            failed: false,
        };
        let changed = wanted != self.interest;
        self.interest = wanted;
        changed.then_some(wanted)
    }

    /// Time has passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.linger_end().is_some_and(|at| at <= now) {
            self.abort();
        }
        self.layered.handle_timeout(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match (self.layered.poll_timeout(), self.linger_end()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When a peer that does not close its half is given up.
    fn linger_end(&self) -> Option<Instant> {
        self.sending_ended.map(|at| at.plus_nanos(LINGER_NS))
    }

    /// Ends at once with a RST.
    pub(super) fn abort(&mut self) {
        // Closing a socket with a linger time of 0 resets the connection.
        let _closes_anyway = self.socket.set_linger(Some(Duration::ZERO));
        self.lost = true;
        self.layered.handle_loss();
    }

    fn fail(&mut self, error: &io::Error) {
        self.error = Some(error.kind());
        self.abort();
    }

    /// Why the socket failed; told once.
    pub(super) fn take_error(&mut self) -> Option<io::ErrorKind> {
        self.error.take()
    }

    /// Whether nothing more will happen.
    pub(super) fn is_over(&self) -> bool {
        self.lost || (self.sending_ended.is_some() && self.receiving_ended)
    }

    /// Nothing more will happen: tells the stream which end this was.
    pub(super) fn end(&mut self) {
        if self.lost {
            self.layered.handle_loss();
        } else {
            self.layered.handle_closed();
        }
    }

    /// Whether MPA has started, or never will.
    pub(super) fn leaves_backlog(&self) -> bool {
        self.qp.is_some() || self.is_over()
    }

    pub(super) fn release_bell(&self) {
        if let Some(bell) = self.qp.as_ref().and_then(|qp| qp.shared.bell.get()) {
            bell.release();
        }
    }

    pub(super) fn counters(&self) -> ConnectionCounters {
        ConnectionCounters {
            fpdus_framed: self.layered.fpdus_framed(),
            mpa: self.layered.mpa_counters(),
            rdma: self.layered.rdma_counters(),
            ..ConnectionCounters::default()
        }
    }
}

/// `EINPROGRESS`.
const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();
/// Until the kernel tells the segment length.
const EMSS_DEFAULT: usize = 1448;
const EMSS_MIN: usize = 536;
const EMSS_MAX: usize = 65_480;
/// Octets offered to the kernel at once, at least. What it does not take is gathered again, so more
/// would be gathered for nothing.
const SEND_LEN: usize = 128 << 10;
/// Reads and writes of one connection before the next has its turn.
const READ_BURST: usize = 4;
const WRITE_BURST: usize = 8;
