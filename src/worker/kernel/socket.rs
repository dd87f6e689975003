//! One connection: a kernel socket and the layered stream on it.

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::connect_unspec;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use urnic_netdev::shared_memory::send_fragments;
use urnic_netdev::stream_socket::{Delivery, delivery, set_syn_retries, undelivered};

use crate::worker::engine::Owed;
use crate::worker::kernel::acks::AckWatch;
use crate::worker::kernel::answers::AnswerWait;
use crate::worker::kernel::events::Readiness;
use crate::worker::kernel::probes::IdleProbes;
use urnic_engine::port::ConnectionCounters;
use urnic_engine::stream::carrier::ByteStream;
use urnic_engine::stream::life::LifeTimes;
use urnic_engine::stream::{Fragments, Scratch, Setup};
use urnic_engine::tcp::{self, KeepAliveTimes, Standing};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::verbs::{Qp, Rnic};

#[derive(Clone, Copy, Debug)]
pub(super) struct BacklogSlot {
    pub(super) listener: usize,
    pub(super) place: tcp::BacklogPlace,
    /// The peer's Request has arrived.
    pub(super) asked: bool,
}

#[derive(Debug)]
pub(super) struct KernelConnection {
    pub(super) socket: Socket,
    pub(super) layered: ByteStream,
    pub(super) qp: Option<Qp>,
    /// `None` if the peer opened the connection.
    opened: Option<Opened>,
    pub(super) backlog_slot: Option<BacklogSlot>,
    /// Readiness that the kernel reported last, updated by later reads and writes.
    ready: Readiness,
    interest: Readiness,
    connecting: bool,
    /// A burst limit ended the last round of writes.
    send_stopped: bool,
    /// Segment length for cutting FPDUs (RFC 5044 §5.1: TCP's), used until `emss_until`.
    emss: usize,
    emss_until: Instant,
    /// All bytes and the FIN were handed to the kernel.
    sending_ended: bool,
    /// The peer has reset the connection after its FIN. Earlier bytes may still be read.
    broken: bool,
    acks: AckWatch,
    answers: AnswerWait,
    probes: IdleProbes,
    receiving_ended: bool,
    /// The peer has closed its half, after bytes that cannot be read yet; not yet reported.
    peer_ending: bool,
    lost: bool,
    error: Option<io::ErrorKind>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Time that a peer may leave data unacknowledged.
    pub(super) user_timeout: Duration,
    pub(super) life: LifeTimes,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) remote: SocketAddr,
    pub(super) local: Option<SocketAddr>,
    pub(super) traffic_class: Option<u8>,
}

/// Connections of a listener inherit it.
pub(super) fn set_traffic_class(socket: &Socket, end: SocketAddr, octet: u8) -> io::Result<()> {
    match end {
        SocketAddr::V4(_) => socket.set_tos_v4(octet.into()),
        SocketAddr::V6(address) => {
            // Peers of both families may connect to `::`.
            if address.ip().is_unspecified() && !socket.only_v6()? {
                socket.set_tos_v4(octet.into())?;
            }
            socket.set_tclass_v6(octet.into())
        }
    }
}

impl Opened {
    fn prepare(&self, socket: &Socket) -> io::Result<()> {
        if let Some(octet) = self.traffic_class {
            set_traffic_class(socket, self.remote, octet)?;
        }
        let Some(local) = self.local else { return Ok(()) };
        // Others may keep the address, or use it for other peers.
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(local))
    }
}

impl KernelConnection {
    pub(super) fn connect(rnic: &Rnic, opened: Opened, terms: Terms) -> io::Result<Self> {
        let remote = opened.remote;
        let domain = Domain::for_address(remote);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        opened.prepare(&socket)?;
        // RFC 9293 MUST-23: at least three minutes, which the stream's own timer limits.
        set_syn_retries(socket.as_fd(), SYN_RETRIES)?;
        let mut connection = Self::new(rnic, socket, terms)?;
        connection.connecting = true;
        connection.opened = Some(opened);
        connection.ready = Readiness::default();
        match connection.socket.connect(&SockAddr::from(remote)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(connection)
    }

    pub(super) fn accepted(
        now: Instant,
        rnic: &Rnic,
        socket: Socket,
        terms: Terms,
    ) -> io::Result<Self> {
        let mut connection = Self::new(rnic, socket, terms)?;
        connection.connected(now);
        Ok(connection)
    }

    fn new(rnic: &Rnic, socket: Socket, terms: Terms) -> io::Result<Self> {
        let Terms { user_timeout, life } = terms;
        socket.set_nonblocking(true)?;
        // Sends an FPDU as soon as it is ready: delaying it is the application's choice.
        socket.set_tcp_nodelay(true)?;
        let both = Readiness { readable: true, writable: true, ..Readiness::default() };
        let layered = ByteStream::opening(rnic, life);
        Ok(Self {
            socket,
            layered,
            qp: None,
            opened: None,
            backlog_slot: None,
            ready: both,
            interest: both,
            connecting: false,
            send_stopped: false,
            emss: EMSS_DEFAULT,
            emss_until: Instant::ZERO,
            sending_ended: false,
            broken: false,
            acks: AckWatch::new(user_timeout),
            answers: AnswerWait::new(),
            probes: IdleProbes::new(user_timeout, &life),
            receiving_ended: false,
            peer_ending: false,
            lost: false,
            error: None,
        })
    }

    /// Parameters to connect again, from another TCP port, since the first may still be in use.
    pub(super) fn opened_again(&self) -> io::Result<Opened> {
        let opened = self.opened.ok_or(io::ErrorKind::NotConnected)?;
        let local = opened.local.map(|mut local| {
            local.set_port(0);
            local
        });
        Ok(Opened { local, ..opened })
    }

    fn connected(&mut self, now: Instant) {
        self.connecting = false;
        self.layered.connected(now);
    }

    pub(super) fn handle_readiness(&mut self, now: Instant, readiness: Readiness) {
        self.ready.readable |= readiness.readable;
        self.ready.writable |= readiness.writable;
        self.peer_ending |= readiness.peer_ended && !self.layered.wants_octets();
        if self.connecting && readiness.writable {
            match self.socket.take_error() {
                Ok(None) => self.connected(now),
                Ok(Some(error)) | Err(error) => self.fail(&error),
            }
        } else if readiness.failed
            && let Ok(Some(error)) = self.socket.take_error()
        {
            self.fail(&error);
        }
    }

    /// Returns the number of reads.
    pub(super) fn receive(&mut self, now: Instant, buffer: &mut [u8]) -> usize {
        self.layered.deliver_held();
        let mut reads = 0;
        while self.may_read() && reads < READ_BURST {
            match (&self.socket).read(buffer) {
                Ok(0) => {
                    self.receiving_ended = true;
                    self.layered.watch(now);
                    self.layered.handle_end();
                }
                Ok(len) => {
                    self.layered.handle_bytes(now, &buffer[..len]);
                    // A failed socket is read until the FIN.
                    self.ready.readable = self.broken || len == buffer.len();
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
        if self.broken && !self.lost && !self.may_read() {
            self.abort();
        }
        reads
    }

    /// FPDUs are cut for the connection's EMSS, which changes with the path (RFC 5044 §4.5).
    fn follow_emss(&mut self, now: Instant) {
        if self.emss_until > now {
            return;
        }
        self.emss_until = now.plus_nanos(EMSS_FOLLOWED_NS);
        if let Ok(mss) = self.socket.tcp_mss() {
            self.emss = (mss as usize).clamp(EMSS_MIN, EMSS_MAX);
        }
    }

    /// Returns the number of writes. With `answers_wait`, bare answers wait for a message.
    pub(super) fn send(
        &mut self,
        now: Instant,
        scratch: &mut Scratch,
        answers_wait: bool,
    ) -> usize {
        if self.may_send() {
            self.follow_emss(now);
        }
        let mut writes = 0;
        let waits = answers_wait && self.answers.waits(now, self.layered.owes_empty_answers_only());
        while !waits && self.ready.writable && self.may_send() && writes < WRITE_BURST {
            let mut fragments = Fragments::new();
            self.layered.octets_to_send(scratch, self.emss, SEND_LEN, &mut fragments);
            if fragments.is_empty() {
                drop(fragments);
                if self.layered.is_stuck() {
                    self.abort();
                }
                break;
            }
            let sent = send_fragments(self.socket.as_fd(), &fragments);
            drop(fragments);
            match sent {
                Ok(len) => {
                    self.acks.wrote(now);
                    self.layered.handle_sent(len);
                }
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
            // Sends the FIN but does not close: with unread bytes, a close would send a RST, and
            // the peer could not read the last bytes (RFC 5040 §7: the Terminate must arrive).
            let shut = self.socket.shutdown(Shutdown::Write);
            self.sending_ended = true;
            self.layered.handle_shutdown(now);
            if let Err(error) = shut {
                self.fail(&error);
            }
        }
        writes
    }

    const fn may_send(&self) -> bool {
        !self.connecting && !self.lost && !self.sending_ended
    }

    /// Bytes for the peer, or the FIN, are not handed to the kernel yet. False before TCP is
    /// established: nothing was promised to the application.
    pub(super) const fn has_unsent(&self) -> bool {
        self.may_send()
    }

    /// Work left before the process can end without loss for the peer.
    //
    // The kernel continues to send after the process has ended, but not to a peer that still sends:
    // bytes that no process will read make it reset the connection (RFC 2525 §2.17), with all
    // unsent bytes lost.
    pub(super) fn owed(&self) -> Owed {
        if self.has_unsent() {
            return Owed::Octets;
        }
        if self.connecting || self.is_finished() {
            return Owed::Nothing;
        }
        match delivery(self.socket.as_fd()) {
            Ok(Delivery::Done) => Owed::Answers,
            Ok(Delivery::Answered | Delivery::Awaited(_)) => Owed::Octets,
            Err(_) => Owed::Nothing,
        }
    }

    const fn is_finished(&self) -> bool {
        self.lost || self.receiving_ended
    }

    /// Bytes left in the kernel close TCP's window.
    fn may_read(&self) -> bool {
        let has_some = self.ready.readable && !self.is_finished() && !self.connecting;
        has_some && self.layered.wants_octets()
    }

    /// A burst limit, not the socket, stopped the last reads or writes.
    pub(super) fn has_more(&self) -> bool {
        self.may_read() || (self.send_stopped && self.may_send())
    }

    /// `None` if unchanged.
    pub(super) fn interest(&mut self) -> Option<Readiness> {
        let wanted = Readiness {
            readable: !self.is_finished() && self.layered.wants_octets(),
            writable: self.connecting || (!self.ready.writable && self.may_send()),
            ..Readiness::default()
        };
        let changed = wanted != self.interest;
        self.interest = wanted;
        changed.then_some(wanted)
    }

    #[cfg(test)]
    pub(super) const fn emss(&self) -> usize {
        self.emss
    }

    #[cfg(test)]
    pub(super) const fn asks_for_writing(&self) -> bool {
        self.interest.writable
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let socket = &self.socket;
        // If the socket's state cannot be queried, the next read or write reports the error.
        let state = || delivery(socket.as_fd()).unwrap_or(Delivery::Done);
        if self.acks.is_over(now, state) {
            self.fail(&io::ErrorKind::TimedOut.into());
        }
        let asked = self.probes.handle_timeout(now, &self.socket, &self.layered);
        if let Err(error) = asked {
            self.fail(&error);
        }
        self.note_delivery();
        self.layered.handle_timeout(now);
    }

    /// Counts a close's progress by the peer's acknowledgments, not by the socket's buffer.
    fn note_delivery(&mut self) {
        if self.layered.is_closing()
            && let Ok(octets) = undelivered(self.socket.as_fd())
        {
            self.layered.note_undelivered(octets);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.layered.poll_timeout(),
            self.acks.poll_timeout(),
            self.answers.poll_timeout(),
            self.probes.poll_timeout(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Updates the timer of the current stage, and does what the stage requires of TCP.
    pub(super) fn watch(&mut self, now: Instant) {
        self.note_delivery();
        self.layered.watch(now);
        let asked = self.probes.follow(now, &self.socket, &self.layered);
        if let Err(error) = asked {
            self.fail(&error);
        }
        // If a startup is given up before TCP is established, no peer waits for a close.
        let unopened = self.connecting && self.layered.is_over();
        if !self.lost && (unopened || self.layered.wants_reset()) {
            self.abort();
        }
    }

    /// RFC 9293 MUST-24: for each connection.
    pub(super) fn set_keepalive(&mut self, times: Option<KeepAliveTimes>) -> io::Result<()> {
        self.probes.choose(&self.socket, times)
    }

    pub(super) const fn keepalive(&self) -> Option<KeepAliveTimes> {
        self.probes.chosen()
    }

    /// Ends at once with a RST.
    pub(super) fn abort(&mut self) {
        // A linger time of 0 resets the connection at the close, unless a child of this process has
        // the socket too. Dissolving the association resets it in any case.
        let _closes_anyway = self.socket.set_linger(Some(Duration::ZERO));
        let _closes_anyway = connect_unspec(&self.socket);
        self.lost = true;
        self.layered.handle_loss();
    }

    fn fail(&mut self, error: &io::Error) {
        self.error = Some(error.kind());
        // Linux reports EPIPE only after the peer's FIN and RST: bytes before the FIN count.
        let is_half_closed = error.kind() == io::ErrorKind::BrokenPipe;
        if is_half_closed && !self.broken && !self.is_finished() && self.layered.wants_octets() {
            (self.broken, self.sending_ended) = (true, true);
            self.ready.readable = true;
        } else {
            self.abort();
        }
    }

    /// Returns true once after the peer has closed its half behind bytes that cannot be read yet.
    pub(super) fn take_peer_ending(&mut self) -> bool {
        std::mem::take(&mut self.peer_ending)
    }

    pub(super) fn take_error(&mut self) -> Option<io::ErrorKind> {
        self.error.take()
    }

    pub(super) const fn is_over(&self) -> bool {
        self.lost || (self.sending_ended && self.receiving_ended)
    }

    pub(super) fn end(&mut self) {
        if self.lost {
            self.layered.handle_loss();
        } else {
            self.layered.handle_closed();
        }
    }

    /// `None` if the connection needs no place at its listener.
    pub(super) fn standing(&mut self) -> Option<Standing> {
        let setup = self.layered.setup();
        let closing = self.layered.is_closing();
        let held = self.backlog_slot.as_mut()?;
        held.asked |= setup == Setup::AwaitingAnswer;
        setup.standing(held.asked, closing)
    }

    pub(super) fn release_button(&self) {
        if let Some(button) = self.qp.as_ref().and_then(|qp| qp.button()) {
            button.release();
        }
    }

    pub(super) fn counters(&self) -> ConnectionCounters {
        ConnectionCounters {
            bytes_sent: self.layered.bytes_sent(),
            bytes_received: self.layered.bytes_received(),
            bytes_held_now: self.layered.bytes_held(),
            fpdus_framed: self.layered.fpdus_framed(),
            mpa: self.layered.mpa_counters(),
            rdma: self.layered.rdma_counters(),
            rdma_tx: self.layered.rdma_tx_counters(),
            accesses_refused: self.layered.accesses_refused(),
            ..ConnectionCounters::default()
        }
    }
}

const IN_PROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();
const EMSS_DEFAULT: usize = 1448;
const EMSS_MIN: usize = 536;
/// Nanoseconds until the kernel is asked again.
const EMSS_FOLLOWED_NS: u64 = 100_000_000;
const EMSS_MAX: usize = 65_480;
/// Least bytes offered to the kernel at a time. Bytes that it does not accept are gathered again.
const SEND_LEN: usize = 128 << 10;
/// More SYNs than fit in the time limit.
const SYN_RETRIES: u8 = 8;
/// Reads and writes of one connection before the next is served.
const READ_BURST: usize = 4;
const WRITE_BURST: usize = 8;

#[cfg(test)]
mod tests {
    use urnic_netdev::stream_socket::syn_retries;

    use super::*;
    use urnic_engine::verbs::RnicConfig;

    #[test]
    fn a_traffic_class_is_set_for_all_families_of_an_address() {
        if !urnic_testkit::has_ipv6_loopback() {
            let name = "a_traffic_class_is_set_for_all_families_of_an_address";
            return urnic_testkit::skip(name, "no IPv6 on lo");
        }
        let class = |end: &str, only_v6| {
            let end: SocketAddr = end.parse().unwrap();
            let socket = Socket::new(Domain::for_address(end), Type::STREAM, None).unwrap();
            if end.is_ipv6() {
                socket.set_only_v6(only_v6).unwrap();
            }
            set_traffic_class(&socket, end, 0x88).unwrap();
            (socket.tos_v4().ok(), end.is_ipv6().then(|| socket.tclass_v6().unwrap()))
        };
        assert_eq!(class("127.0.0.1:1", false), (Some(0x88), None));
        assert_eq!(class("[::1]:1", false).1, Some(0x88));
        assert_eq!(class("[::]:1", false), (Some(0x88), Some(0x88)), "of both families");
        assert_eq!(class("[::]:1", true).1, Some(0x88));
    }

    #[test]
    fn the_kernel_repeats_a_syn_for_longer_than_the_stream_waits() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let remote = SocketAddr::from(([127, 0, 0, 1], 9));
        let terms = Terms { user_timeout: Duration::from_secs(100), life: LifeTimes::default() };
        let opened = Opened { remote, local: None, traffic_class: None };
        let connection = KernelConnection::connect(&rnic, opened, terms);
        let retries = syn_retries(connection.unwrap().socket.as_fd()).unwrap();
        // RFC 6298 §5.5: 1 s, doubled each time.
        let given_up = Duration::from_secs((2 << retries) - 1);
        assert!(given_up > LifeTimes::default().open, "{given_up:?}");
    }
}
