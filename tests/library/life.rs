//! The table of a connection's life on the kernel's TCP, with real sockets and shorter times.
//!
//! Cells run side by side. A peer is a socket that writes bytes; a silent one has a filter that
//! drops all segments, so that not even its TCP answers.
//!
//! One file because its cells are those of one table.
#![expect(clippy::disallowed_methods, reason = "the kernel's TCP works in real time")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};
use urnic::{
    Access, ConnectOptions, ConnectRequest, Connecting, Connection, ConnectionEvent, Cq, Endpoint,
    EndpointConfig, Error, Fallback, LifeTimes, ListenParams, Listener, Mr, Offer, Pd, Qp,
    QpConfig, QpState, RecvWr, RemoteBuffer, Revision, Rnic, RnicConfig, SendWr, Stag,
    StartupConfig, StartupFailure, TaggedOffset, WcStatus, WrId,
};
use urnic_engine::stream::life::{Expiry, Notice, Outcome, Peer, Stage, Timer};

use urnic_testkit::octets::{
    CRC, ENHANCED, REPLY_KEY, REQUEST_KEY, empty_write, fpdu, read_request, send, startup,
};
use urnic_testkit::silence::drop_all_segments;

const LIFE: LifeTimes = LifeTimes {
    open: Duration::from_secs(6),
    reply: Duration::from_millis(2000),
    request: Duration::from_millis(2100),
    first_fpdu: Duration::from_millis(2200),
    close_silence: Duration::from_millis(2300),
    linger: Duration::from_millis(1200),
    probe: Duration::from_secs(1),
};
/// Longer than the timers of the table, except [`LifeTimes::open`] and the probes.
const LONG: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(30);
/// RFC 6581 §9: one Read each way; the peer wants an RTR, which is a Write.
const WANTS_RTR: [u8; 4] = [0x80, 1, 0x80, 1];

#[test]
fn every_transition_of_the_life_cycle_table_occurs() {
    let can_be_silent =
        may_drop_all("every_transition_of_the_life_cycle_table_occurs: silent peers");
    let cells: Vec<_> = Stage::ALL
        .into_iter()
        .flat_map(|stage| Peer::ALL.map(|peer| (stage, peer)))
        .filter(|(_, peer)| can_be_silent || !matches!(peer, Peer::IsSilent))
        .map(|(stage, peer)| {
            let name = format!("{stage:?}-{peer:?}");
            let spawned = thread::Builder::new().name(name).spawn(move || check(stage, peer));
            ((stage, peer), spawned.unwrap())
        })
        .collect();
    let failed: Vec<_> = cells
        .into_iter()
        .filter_map(|(cell, thread)| thread.join().is_err().then_some(cell))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

fn check(stage: Stage, peer: Peer) {
    match stage {
        Stage::Opening => Opening::new(peer).check(),
        Stage::AwaitingReply => check_reply(peer),
        Stage::AwaitingRequest | Stage::Leaving => check_unheard(stage, peer),
        Stage::Answering => check_answering(peer),
        // A connection whose Request is refused closes at once: `Leaving`. The last two stages are
        // the kernel's, after the end was reported.
        Stage::Streaming | Stage::BothClosed | Stage::TimeWait => {}
        _ => Cell::enter(stage).check(peer),
    }
}

/// An endpoint with a queue pair.
struct Host {
    endpoint: Endpoint,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    memory: Mr,
}

impl Host {
    fn new() -> Self {
        Self::with(&EndpointConfig { life: LIFE, ..EndpointConfig::default() })
    }

    fn with(config: &EndpointConfig) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: 5.into() });
        let endpoint = Endpoint::kernel(&rnic, config).unwrap();
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let config =
            QpConfig { send_depth: 32, recv_depth: 32, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = pd.create_qp(config).unwrap();
        let memory = pd.reg_mr(1 << 16, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        Self { endpoint, pd, cq, qp, memory }
    }

    fn listen(&self) -> Listener {
        let local = "127.0.0.1:0".parse().unwrap();
        self.endpoint.listen(local, ListenParams::default()).unwrap()
    }

    fn connect(&self, remote: SocketAddr) -> Connecting {
        let startup = StartupConfig {
            revision: Revision::One,
            fallback: Fallback::empty(),
            ..StartupConfig::default()
        };
        let options = ConnectOptions { startup, ..ConnectOptions::default() };
        self.endpoint.connect(remote, &self.qp, &options).unwrap()
    }

    fn post_receive(&self) {
        self.qp.post_recv(RecvWr::new(WrId(1), [self.memory.sge(0..100)])).unwrap();
    }

    /// Waits for the next completion and returns its status.
    fn completed(&self) -> WcStatus {
        self.endpoint.wait(&self.cq, PATIENCE).unwrap().expect("completes in time").status
    }
}

/// Asserts that at least this time has passed, and not much more.
fn took(began: Instant, duration: Duration) {
    let waited = began.elapsed();
    // A worker reads the clock once per poll: a timer may start just before `began`.
    let least = duration.saturating_sub(Duration::from_millis(50));
    assert!(least <= waited && waited < duration + PATIENCE, "{waited:?} of {duration:?}");
}

fn duration_of(timer: Timer) -> Duration {
    // Nine probes without an answer.
    LIFE.of(timer).unwrap_or(9 * LIFE.probe)
}

/// Makes this socket receive nothing; its TCP does not answer either.
fn drop_all(socket: &TcpStream) {
    drop_all_segments(socket).unwrap();
}

/// Returns true if sockets can be made silent here, which some kernels permit to root only. Skips
/// `test` otherwise.
fn may_drop_all(test: &str) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let result = drop_all_segments(&socket);
    if let Err(error) = &result {
        urnic_testkit::skip(test, &format!("no filter on a socket: {error}"));
    }
    result.is_ok()
}

fn reset(socket: TcpStream) {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

fn read_frame(peer: &mut TcpStream) -> [u8; 20] {
    let mut frame = [0; 20];
    peer.read_exact(&mut frame).unwrap();
    frame
}

/// Reads until the end of the stream.
fn read_end(peer: &mut TcpStream) {
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    if let Err(error) = peer.read_to_end(&mut rest) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// Waits until the connection was reset.
fn read_reset(peer: &TcpStream) {
    let began = Instant::now();
    while peer.take_error().unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "no reset comes");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A SYN that is not answered, because the peer's backlog is full.
struct Opening {
    host: Host,
    listener: Socket,
    _held: Vec<Socket>,
    connecting: Connecting,
    began: Instant,
    peer: Peer,
}

impl Opening {
    fn new(peer: Peer) -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
        listener.bind(&local.into()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        if peer != Peer::Resets {
            listener.listen(1).unwrap();
            for _ in 0..4 {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                let _under_way = socket.connect(&address);
                held.push(socket);
            }
            thread::sleep(Duration::from_millis(50));
        }
        let (host, began) = (Host::new(), Instant::now());
        let connecting = host.connect(address.as_socket().unwrap());
        Self { host, listener, _held: held, connecting, began, peer }
    }

    fn check(self) {
        let Self { host, listener, connecting, began, peer, _held } = self;
        match Stage::Opening.meets(peer) {
            Outcome::Expires(timer) => {
                let error = connecting.wait(PATIENCE).unwrap_err();
                assert_eq!(error, Error::Startup(StartupFailure::Timeout));
                took(began, duration_of(timer));
                // No SYN follows, although there is room for one now.
                drop(_held);
                listener.set_nonblocking(true).unwrap();
                thread::sleep(LONG);
                while let Ok((socket, _)) = listener.accept() {
                    let mut first = [0];
                    assert!(!matches!(TcpStream::from(socket).peek(&mut first), Ok(1)));
                }
            }
            Outcome::Ends(_) => {
                let error = connecting.wait(PATIENCE).unwrap_err();
                assert_eq!(error, Error::Io(ErrorKind::ConnectionRefused));
            }
            Outcome::Lasts => {
                // There is room for the earlier ones, and for the SYN when it is retransmitted. A
                // connection that is established late has the full time for its Reply.
                thread::sleep(LIFE.reply + Duration::from_millis(500));
                drop(_held);
                let mut peer = loop {
                    let (socket, _) = listener.accept().unwrap();
                    let peer = TcpStream::from(socket);
                    peer.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut first = [0];
                    if matches!(peer.peek(&mut first), Ok(1)) {
                        break peer;
                    }
                };
                read_frame(&mut peer);
                peer.write_all(&startup(REPLY_KEY, CRC, 1, b"")).unwrap();
                connecting.wait(PATIENCE).unwrap();
            }
            Outcome::Tells(_) => unreachable!("nothing is told of what is not open"),
        }
        drop(host);
    }
}

fn check_reply(peer_does: Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, began) = (Host::new(), Instant::now());
    let connecting = host.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    read_frame(&mut peer);
    match peer_does {
        Peer::Acts => peer.write_all(&startup(REPLY_KEY, CRC, 1, b"")).unwrap(),
        Peer::IsSilent => drop_all(&peer),
        Peer::AnswersProbes => {}
        Peer::Closes => peer.shutdown(Shutdown::Write).unwrap(),
        Peer::Resets => {
            reset(peer);
            peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        }
    }
    let outcome = connecting.wait(PATIENCE);
    match Stage::AwaitingReply.meets(peer_does) {
        Outcome::Lasts => {
            let connection = outcome.unwrap();
            assert_eq!(connection.next_event(LONG), Ok(None));
        }
        Outcome::Expires(timer) => {
            assert_eq!(outcome.unwrap_err(), Error::Startup(StartupFailure::Timeout));
            took(began, duration_of(timer));
        }
        Outcome::Ends(Notice::StartupFailed) => {
            let error = outcome.unwrap_err();
            let lost = Error::Startup(StartupFailure::ConnectionLost);
            let reset = Error::Io(ErrorKind::ConnectionReset);
            assert!(error == lost || error == reset, "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    drop(peer);
}

/// Sends an MPA Request.
fn ask(host: &Host, flags: u8, revision: u8, private_data: &[u8]) -> (TcpStream, ConnectRequest) {
    let listener = host.listen();
    let mut peer = TcpStream::connect(listener.local()).unwrap();
    peer.write_all(&startup(REQUEST_KEY, flags, revision, private_data)).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("the Request comes");
    (peer, request)
}

/// Checks stages without a handle. Their end is seen from the peer, whose TCP must therefore
/// answer.
fn check_unheard(stage: Stage, peer_does: Peer) {
    let (host, began) = (Host::new(), Instant::now());
    let listener = host.listen();
    let mut peer = TcpStream::connect(listener.local()).unwrap();
    if stage == Stage::Leaving {
        peer.write_all(&startup(REQUEST_KEY, CRC, 1, b"")).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("the Request comes");
        request.reject(b"").unwrap();
        read_frame(&mut peer);
        read_end(&mut peer);
    }
    match (peer_does, stage) {
        (Peer::Acts, Stage::AwaitingRequest) => {
            peer.write_all(&startup(REQUEST_KEY, CRC, 1, b"")).unwrap();
        }
        (Peer::Acts, _) => peer.write_all(b"too late").unwrap(),
        (Peer::IsSilent | Peer::AnswersProbes, _) => {}
        (Peer::Closes, _) => peer.shutdown(Shutdown::Write).unwrap(),
        (Peer::Resets, _) => return reset(peer),
    }
    match stage.meets(peer_does) {
        Outcome::Lasts => {
            let request = listener.next_request(PATIENCE).unwrap().expect("the Request comes");
            thread::sleep(LONG);
            assert_eq!(peer.take_error().unwrap().map(|error| error.kind()), None);
            drop(request);
        }
        Outcome::Expires(timer) => {
            if stage == Stage::AwaitingRequest {
                read_end(&mut peer);
            } else {
                read_reset(&peer);
            }
            took(began, duration_of(timer));
        }
        Outcome::Ends(_) => {
            read_end(&mut peer);
            assert_eq!(peer.take_error().unwrap().map(|error| error.kind()), None);
        }
        Outcome::Tells(_) => unreachable!("nobody is told"),
    }
}

fn check_answering(peer_does: Peer) {
    let host = Host::new();
    let (peer, request) = ask(&host, CRC, 1, b"");
    match peer_does {
        Peer::Acts | Peer::AnswersProbes => {}
        Peer::IsSilent => drop_all(&peer),
        Peer::Closes => peer.shutdown(Shutdown::Write).unwrap(),
        Peer::Resets => reset(peer.try_clone().unwrap()),
    }
    if peer_does == Peer::Resets {
        reset(peer);
    }
    thread::sleep(LONG);
    let accepted = request.accept(&host.qp, &Offer::default()).unwrap().wait(PATIENCE);
    match Stage::Answering.meets(peer_does) {
        Outcome::Lasts => drop(accepted.unwrap()),
        Outcome::Ends(Notice::StartupFailed) => drop(accepted.unwrap_err()),
        other => panic!("{other:?}"),
    }
}

/// A connection in full operation, or on the way to it, and its peer.
struct Cell {
    host: Host,
    peer: TcpStream,
    connection: Connection,
    stage: Stage,
    /// Begin of the stage, or the latest time before it.
    began: Instant,
    msn: u32,
}

impl Cell {
    fn enter(stage: Stage) -> Self {
        let host = Host::new();
        let (mut peer, request) = if stage == Stage::AwaitingRtr {
            ask(&host, CRC | ENHANCED, 2, &WANTS_RTR)
        } else {
            ask(&host, CRC, 1, b"")
        };
        // The peer does not use the time that the application takes for its answer.
        thread::sleep(Duration::from_millis(100));
        let offer = Offer { ird: 4, ord: 4, ..Offer::default() };
        let began = Instant::now();
        let connection = request.accept(&host.qp, &offer).unwrap().wait(PATIENCE).unwrap();
        read_frame(&mut peer);
        if stage == Stage::AwaitingRtr {
            peer.read_exact(&mut [0; 4]).unwrap();
        }
        let mut cell = Self { host, peer, connection, stage, began, msn: 1 };
        if !matches!(stage, Stage::AwaitingRtr | Stage::AwaitingFirstFpdu | Stage::Silenced) {
            cell.send();
            cell.began = Instant::now();
        }
        let disconnect = |cell: &Self| cell.connection.disconnect();
        match stage {
            Stage::PeerClosed => {
                cell.peer.shutdown(Shutdown::Write).unwrap();
                assert_eq!(cell.next(), Seen::PeerClosed);
            }
            Stage::Silenced => {
                cell.post_send();
                cell.began = Instant::now();
                disconnect(&cell);
            }
            Stage::Draining => {
                let sink = cell.host.memory.sge(0..100);
                let remote = RemoteBuffer { stag: Stag(7), to: TaggedOffset(0) };
                cell.host.qp.post_send(SendWr::read(WrId(2), remote, sink)).unwrap();
                disconnect(&cell);
            }
            Stage::HalfClosed => {
                disconnect(&cell);
                read_end(&mut cell.peer);
            }
            Stage::Failed => {
                cell.write(&send(cell.msn, b"no buffer"));
                assert_eq!(cell.next(), Seen::Failed);
            }
            _ => {}
        }
        cell
    }

    fn write(&mut self, ulpdu: &[u8]) {
        self.peer.write_all(&fpdu(ulpdu, 0, false)).unwrap();
    }

    /// Sends a message from the peer, and waits for its delivery.
    fn send(&mut self) {
        self.host.post_receive();
        self.write(&send(self.msn, b"hello"));
        self.msn += 1;
        assert_eq!(self.host.completed(), WcStatus::Success);
    }

    fn post_send(&self) {
        let octets = self.host.memory.sge(0..100);
        self.host.qp.post_send(SendWr::send(WrId(3), [octets])).unwrap();
    }

    fn seen(&self, timeout: Duration) -> Option<Seen> {
        Some(match self.connection.next_event(timeout).unwrap()? {
            ConnectionEvent::Failed(_) => Seen::Failed,
            ConnectionEvent::PeerClosed => Seen::PeerClosed,
            ConnectionEvent::Closed(_) => Seen::Closed,
            other => panic!("{other:?}"),
        })
    }

    fn next(&self) -> Seen {
        self.seen(PATIENCE).expect("something is told in time")
    }

    fn check(mut self, peer_does: Peer) {
        match peer_does {
            Peer::Acts => self.go_on(),
            Peer::IsSilent => drop_all(&self.peer),
            Peer::AnswersProbes => {}
            Peer::Closes if self.stage == Stage::PeerClosed => {}
            Peer::Closes => self.peer.shutdown(Shutdown::Write).unwrap(),
            Peer::Resets => {
                let other = TcpStream::connect(self.host.listen().local()).unwrap();
                reset(std::mem::replace(&mut self.peer, other));
            }
        }
        let row = self.stage.row();
        match self.stage.meets(peer_does) {
            Outcome::Lasts => assert_eq!(self.seen(LONG), None),
            Outcome::Expires(timer) => {
                if row.lost == Notice::Failed {
                    assert_eq!(self.next(), Seen::Failed);
                    took(self.began, duration_of(timer));
                }
                assert_eq!(self.next(), Seen::Closed);
                // A connection that is given up first closes in order.
                let lingers = row.expiry == Expiry::GiveUp && peer_does != Peer::IsSilent;
                let linger = if lingers { LIFE.linger } else { Duration::ZERO };
                took(self.began, duration_of(timer) + linger);
                assert_eq!(self.host.qp.state(), QpState::Error);
            }
            Outcome::Tells(told) => {
                assert_eq!(told, Notice::PeerClosed);
                assert_eq!(self.next(), Seen::PeerClosed);
                let reads = self.stage == Stage::Draining;
                // A Read can no longer be answered.
                let expected = if reads { Some(Seen::Failed) } else { None };
                assert_eq!(self.seen(Duration::from_millis(300)), expected);
            }
            Outcome::Ends(told) => {
                if self.stage == Stage::Silenced && peer_does == Peer::Closes {
                    assert_eq!(self.next(), Seen::PeerClosed);
                }
                match told {
                    Notice::Nothing => {}
                    Notice::PeerClosed => assert_eq!(self.next(), Seen::PeerClosed),
                    Notice::Failed => assert_eq!(self.next(), Seen::Failed),
                    Notice::StartupFailed => unreachable!("the startup went well"),
                }
                assert_eq!(self.next(), Seen::Closed);
                assert_eq!(self.host.qp.state(), QpState::Error);
            }
        }
    }

    /// Lets the peer do the next step of the protocol.
    fn go_on(&mut self) {
        match self.stage {
            Stage::AwaitingRtr | Stage::AwaitingFirstFpdu => self.write(&empty_write()),
            Stage::Silenced => {
                self.write(&empty_write());
                assert_eq!(self.host.completed(), WcStatus::Success);
                read_end(&mut self.peer);
                // This belongs to the next stage.
                self.peer.shutdown(Shutdown::Write).unwrap();
                assert_eq!(self.next(), Seen::PeerClosed);
                assert_eq!(self.next(), Seen::Closed);
                self.host = Host::new();
                *self = Self::enter(Stage::Running);
            }
            // As long as FPDUs keep coming.
            Stage::Draining | Stage::HalfClosed => {
                for _ in 0..9 {
                    self.write(&empty_write());
                    assert_eq!(self.seen(LIFE.close_silence / 4), None);
                }
                // Then a long silence ends it.
                self.began = Instant::now();
                self.write(&empty_write());
                assert_eq!(self.next(), Seen::Failed);
                took(self.began, LIFE.close_silence);
                *self = Self::enter(Stage::Running);
            }
            Stage::Failed => {
                for _ in 0..3 {
                    // On a busy machine the end may come earlier; its time is checked below.
                    let _ended = self.peer.write_all(&fpdu(&empty_write(), 0, false));
                    thread::sleep(LIFE.linger / 6);
                }
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    PeerClosed,
    Failed,
    Closed,
}

#[test]
fn a_request_that_crosses_our_fin_is_answered_by_a_reset() {
    let mut cell = Cell::enter(Stage::HalfClosed);
    let source = (cell.host.memory.stag().0, 0);
    let began = Instant::now();
    cell.write(&read_request(1, (1, 0), 8, source));
    read_reset(&cell.peer);
    assert!(began.elapsed() < LIFE.close_silence, "at once");
    assert_eq!([cell.next(), cell.next()], [Seen::Failed, Seen::Closed]);
}

#[test]
fn rejected_peer_that_stays_holds_no_backlog_entry() {
    // On a busy machine the time may be over after one or two.
    let mut counts = (0..5).map(|_| rejected_at_a_time());
    assert!(counts.any(|count| count > 2), "more at a time than the backlog has places");
}

/// Returns the number of peers of a listener with a backlog of two that are rejected, and stay,
/// before the first one is given up.
fn rejected_at_a_time() -> usize {
    let host = Host::new();
    let local = "127.0.0.1:0".parse().unwrap();
    let params = ListenParams { backlog: 2, ..ListenParams::default() };
    let listener = host.endpoint.listen(local, params).unwrap();
    let began = Instant::now();
    let mut peers = Vec::new();
    while began.elapsed() < LIFE.linger / 2 && peers.len() < 50 {
        let mut peer = TcpStream::connect(listener.local()).unwrap();
        peer.write_all(&startup(REQUEST_KEY, CRC, 1, b"")).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("there is room");
        request.reject(b"").unwrap();
        read_frame(&mut peer);
        peers.push(peer);
    }
    peers.len()
}

/// Posted work of an end that disconnects, or whose handle is dropped, completes although the peer
/// closes its half meanwhile.
#[test]
fn posted_work_is_done_whether_the_handle_is_held_or_dropped() {
    const WRITES: usize = 20;
    for dropped in [false, true] {
        let cell = Cell::enter(Stage::Running);
        let remote = RemoteBuffer { stag: Stag(7), to: TaggedOffset(0) };
        let source = cell.host.pd.reg_mr(1 << 20, Access::empty()).unwrap();
        for id in 0..WRITES as u64 {
            let wr = SendWr::write(WrId(id), remote, [source.sge(0..1 << 20)]);
            cell.host.qp.post_send(wr).unwrap();
        }
        cell.peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(cell.next(), Seen::PeerClosed);
        let Cell { host, mut peer, connection, .. } = cell;
        let kept = if dropped {
            drop(connection);
            None
        } else {
            connection.disconnect();
            Some(connection)
        };
        let mut octets = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match peer.read(&mut buffer).unwrap() {
                0 => break,
                len => octets += len,
            }
        }
        assert!(octets > WRITES << 20, "{octets}: all of it, then the end");
        for _ in 0..WRITES {
            assert_eq!(host.completed(), WcStatus::Success, "dropped: {dropped}");
        }
        drop(kept);
    }
}

/// Data in the socket's buffer at the time of the close still reaches a peer that reads slowly.
#[test]
fn a_slow_reader_gets_all_that_was_posted_before_the_close() {
    const WRITES: usize = 10;
    const LEN: usize = 64 << 10;
    let cell = Cell::enter(Stage::Running);
    SockRef::from(&cell.peer).set_recv_buffer_size(30_000).unwrap();
    let remote = RemoteBuffer { stag: Stag(7), to: TaggedOffset(0) };
    for id in 0..WRITES as u64 {
        let wr = SendWr::write(WrId(id), remote, [cell.host.memory.sge(0..LEN)]);
        cell.host.qp.post_send(wr).unwrap();
    }
    cell.connection.disconnect();
    let Cell { mut peer, connection, .. } = cell;
    let mut octets = 0;
    let mut buffer = vec![0; 100_000];
    let began = Instant::now();
    loop {
        match peer.read(&mut buffer).unwrap() {
            0 => break,
            len => octets += len,
        }
        thread::sleep(LIFE.close_silence / 4);
    }
    assert!(octets > WRITES * LEN, "{octets}");
    assert!(began.elapsed() > 2 * LIFE.close_silence, "slow enough");
    peer.shutdown(Shutdown::Write).unwrap();
    let next = || connection.next_event(PATIENCE).unwrap();
    assert_eq!(next(), Some(ConnectionEvent::PeerClosed));
    assert!(matches!(next(), Some(ConnectionEvent::Closed(_))));
}

/// RFC 9293 MUST-37: a peer that keeps its window closed and answers probes is not given up; a peer
/// that answers nothing is (R2).
#[test]
fn a_closed_window_is_waited_for_and_a_dead_peer_is_not() {
    const PATIENT: Duration = Duration::from_millis(1600);
    let can_be_silent =
        may_drop_all("a_closed_window_is_waited_for_and_a_dead_peer_is_not: dead peer");
    for silent in [false, true].into_iter().filter(|silent| can_be_silent || !silent) {
        let config = EndpointConfig { user_timeout: PATIENT, ..EndpointConfig::default() };
        let host = Host::with(&config);
        let memory = host.pd.reg_mr(1 << 20, Access::empty()).unwrap();
        let (mut peer, request) = ask(&host, CRC, 1, b"");
        let accepted = request.accept(&host.qp, &Offer::default()).unwrap();
        let connection = accepted.wait(PATIENCE).unwrap();
        read_frame(&mut peer);
        peer.write_all(&fpdu(&empty_write(), 0, false)).unwrap();
        let remote = RemoteBuffer { stag: Stag(7), to: TaggedOffset(0) };
        for id in 0..16 {
            let wr = SendWr::write(WrId(id), remote, [memory.sge(0..1 << 20)]);
            host.qp.post_send(wr).unwrap();
        }
        thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        if silent {
            drop_all(&peer);
            let event = connection.next_event(PATIENCE).unwrap();
            assert!(matches!(event, Some(ConnectionEvent::Failed(_))), "{event:?}");
            took(began, PATIENT - Duration::from_millis(400));
        } else {
            assert_eq!(connection.next_event(4 * PATIENT), Ok(None), "it is alive");
        }
        drop(peer);
    }
}
