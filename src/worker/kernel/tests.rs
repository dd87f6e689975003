//! The engine over kernel sockets, run by hand under a clock of the tests.

mod ends;

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use crossbeam::channel::{Receiver, unbounded};
use socket2::{SockFilter, SockRef};
use urnic_netdev::stream_socket::undelivered;

use super::*;
use crate::mail::channel::{HandleEnd, Receive, limited, unlimited};
use crate::mail::command::outbox::Outbox;
use crate::mail::command::{Incoming, OwnedOffer};
use crate::mail::wakeup::Wakeup;
use urnic_engine::limits::{ACCEPT_RETRY_NS, MPA_REPLY_TIMEOUT_NS};
use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, Revision, StartupConfig};
use urnic_engine::port::ListenParams;
use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::tcp::KeepAliveTimes;
use urnic_engine::time::Duration;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{
    CompletionLevel, Cq, Pd, QpConfig, QpRules, QpState, RecvWr, RnicConfig, SendWr, WcStatus,
};

struct Scene {
    engine: KernelEngine,
    pd: Pd,
    /// Sender of commands, as handles have it.
    outbox: Outbox,
    _commands: Receiver<Command>,
    cq: Cq,
    completion: CompletionLevel,
    rules: QpRules,
}

impl Scene {
    fn new() -> Self {
        Self::with(&EndpointConfig::default())
    }

    fn with(config: &EndpointConfig) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let (commands, receiver) = unbounded();
        let outbox = Outbox::new(commands, Wakeup::new().unwrap());
        let engine = KernelEngine::new(&rnic, outbox.clone(), config, EventFeed::new()).unwrap();
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16).unwrap());
        Self {
            engine,
            pd,
            outbox,
            _commands: receiver,
            cq,
            completion: CompletionLevel::default(),
            rules: QpRules::default(),
        }
    }

    fn qp(&self) -> Qp {
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        self.pd
            .create_qp(QpConfig {
                send_depth: 4,
                recv_depth: 4,
                completion: self.completion,
                rules: self.rules,
                ..QpConfig::with_cqs(send_cq, recv_cq)
            })
            .unwrap()
    }

    /// Starts to connect to a peer and sends it the Request.
    fn connect(&mut self, now: Instant, peer: &TcpListener) -> (Qp, HandleEnd<Notice>) {
        let startup = StartupConfig { revision: Revision::One, ..StartupConfig::default() };
        self.connect_with(now, peer, ConnectOptions { startup, ..ConnectOptions::default() })
    }

    fn connect_with(
        &mut self,
        now: Instant,
        peer: &TcpListener,
        options: ConnectOptions,
    ) -> (Qp, HandleEnd<Notice>) {
        let (qp, (notices, told)) = (self.qp(), unlimited());
        let (key, remote) = (self.outbox.next_key(), peer.local_addr().unwrap());
        let options = Box::new(options);
        let command = Command::Connect { key, remote, qp: qp.clone(), options, notices };
        self.engine.handle_command(now, command);
        self.settle(now);
        (qp, told)
    }

    /// Connects to a peer that answers. Returns both ends in full operation.
    fn open(&mut self, now: Instant, peers: &TcpListener) -> (Qp, TcpStream) {
        let (qp, peer, _told) = self.open_told(now, peers);
        (qp, peer)
    }

    /// As above, and returns the notices of the handle.
    fn open_told(
        &mut self,
        now: Instant,
        peers: &TcpListener,
    ) -> (Qp, TcpStream, HandleEnd<Notice>) {
        let (qp, told) = self.connect(now, peers);
        let (mut peer, _) = peers.accept().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        peer.read_exact(&mut [0; 20]).unwrap();
        peer.write_all(b"MPA ID Rep Frame\x40\x01\x00\x00").unwrap();
        self.turn_until(now, "in full operation", |_| qp.state() == QpState::Rts);
        self.settle(now);
        (qp, peer, told)
    }

    /// Runs the engine until the condition holds: the kernel takes a moment to deliver bytes.
    fn turn_until(&mut self, now: Instant, what: &str, condition: impl Fn(&Self) -> bool) {
        let clock = crate::monotonic_now;
        let deadline = clock() + Duration::from_secs(20);
        while !condition(self) {
            assert!(clock() < deadline, "{what}");
            self.engine.turn(now);
        }
    }

    fn connection(&self) -> &KernelConnection {
        self.engine.connections.iter().next().expect("a connection").1
    }

    fn listen(&mut self) -> (SocketAddr, HandleEnd<Incoming>) {
        self.listen_with(ListenParams::default())
    }

    fn listen_with(&mut self, params: ListenParams) -> (SocketAddr, HandleEnd<Incoming>) {
        let (requests, requested) = limited(4);
        let local = "127.0.0.1:0".parse().unwrap();
        let local = self.engine.listen(local, params, requests).unwrap();
        (local, requested)
    }

    /// Runs until there is nothing to do, without advancing the clock.
    fn settle(&mut self, now: Instant) {
        while self.engine.turn(now) > 0 {}
    }
}

fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

fn has_timed_out(told: &HandleEnd<Notice>) -> bool {
    std::iter::from_fn(|| told.try_receive().ok()).any(|notice| {
        let Notice::Event(event) = notice else { return false };
        matches!(*event, StreamEvent::StartupFailed(StartupFailure::Timeout))
    })
}

#[test]
fn there_are_as_many_connections_as_were_allowed() {
    let config = EndpointConfig { connections_max: 1, ..EndpointConfig::default() };
    let (silent, mut scene) = (TcpListener::bind("127.0.0.1:0").unwrap(), Scene::with(&config));
    let refused = |told: &HandleEnd<Notice>| {
        let mut notices = std::iter::from_fn(|| told.try_receive().ok());
        notices.any(|notice| matches!(notice, Notice::Refused(_)))
    };
    let (_qp, told) = scene.connect(at(0), &silent);
    assert!(!refused(&told));
    let (_qp, told) = scene.connect(at(0), &silent);
    assert!(refused(&told));
    let (local, _requested) = scene.listen();
    let mut peer = TcpStream::connect(local).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    scene.settle(at(0));
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it is closed");
}

#[test]
fn each_startup_times_out_at_its_time() {
    const APART_NS: u64 = 1_000_000_000;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut scene = Scene::new();
    // Two at each time.
    let told: Vec<_> = [0, 0, APART_NS, APART_NS, 2 * APART_NS, 2 * APART_NS]
        .map(|begun| scene.connect(at(begun), &silent).1)
        .into_iter()
        .collect();
    for (told, i) in told.chunks(2).zip(0..) {
        let due = i * APART_NS + MPA_REPLY_TIMEOUT_NS;
        // In addition, the kernel is asked at intervals what the peer has acknowledged.
        let next = scene.engine.next_wakeup().unwrap();
        assert!(next <= at(due), "startups {i}: {next:?}");
        scene.settle(at(due - 1));
        assert!(!told.iter().any(has_timed_out), "startups {i} have a nanosecond left");
        scene.engine.turn(at(due));
        assert!(told.iter().all(has_timed_out), "startups {i}");
    }
}

#[test]
fn paused_listener_accepts_again_after_a_delay() {
    let mut scene = Scene::new();
    let (local, _requests) = scene.listen();
    scene.engine.pause_accepting(at(5), 0);
    let _peer = TcpStream::connect(local).unwrap();
    scene.settle(at(5 + ACCEPT_RETRY_NS - 1));
    assert_eq!(scene.engine.connections.len(), 0, "it is left alone");
    assert_eq!(scene.engine.next_wakeup(), Some(at(5 + ACCEPT_RETRY_NS)));
    scene.settle(at(5 + ACCEPT_RETRY_NS));
    scene.settle(at(5 + ACCEPT_RETRY_NS));
    assert_eq!(scene.engine.connections.len(), 1);
    assert_eq!(scene.engine.accept_retry(), None);
}

#[test]
fn paused_listener_accepts_again_when_a_connection_ends() {
    let mut scene = Scene::new();
    let (local, _requests) = scene.listen();
    let first = TcpStream::connect(local).unwrap();
    scene.settle(at(0));
    assert_eq!(scene.engine.connections.len(), 1);
    scene.engine.pause_accepting(at(0), 0);
    let second = TcpStream::connect(local).unwrap();
    scene.settle(at(0));
    assert_eq!(scene.engine.connections.len(), 1, "the second waits in the backlog");
    scene.engine.remove(0);
    scene.settle(at(0));
    assert_eq!(scene.engine.connections.len(), 1, "the second has come");
    let (_, connection) = scene.engine.connections.iter().next().unwrap();
    let peer = connection.socket.peer_addr().unwrap().as_socket();
    assert_eq!(peer, Some(second.local_addr().unwrap()));
    drop(first);
}

#[test]
fn connection_that_ends_in_setup_frees_its_backlog_entry() {
    let mut scene = Scene::new();
    let (local, _requests) = scene.listen();
    let _peers = [(); 2].map(|()| TcpStream::connect(local).unwrap());
    scene.settle(at(0));
    assert_eq!(scene.engine.listeners[0].waiting.pending(), 2);
    scene.engine.remove(0);
    assert_eq!(scene.engine.listeners[0].waiting.pending(), 1);
    scene.engine.remove(1);
    assert_eq!(scene.engine.listeners[0].waiting.pending(), 0);
}

/// Otherwise a listener would refuse all connections after as many as its backlog holds.
#[test]
fn answered_connection_frees_its_backlog_entry() {
    let mut scene = Scene::new();
    let (local, requested) = scene.listen();
    let mut peer = TcpStream::connect(local).unwrap();
    peer.write_all(b"MPA ID Req Frame\x40\x01\x00\x00").unwrap();
    let incoming = RefCell::new(None);
    scene.turn_until(at(0), "a Request", |_| {
        *incoming.borrow_mut() = requested.try_receive().ok();
        incoming.borrow().is_some()
    });
    assert_eq!(scene.engine.listeners[0].waiting.pending(), 1);
    let (key, qp) = (incoming.borrow().as_ref().unwrap().claim.key(), scene.qp());
    let offer = OwnedOffer::new(&Offer { ird: 4, ord: 4, ..Offer::default() });
    scene.engine.handle_command(at(0), Command::Accept { key, qp, offer });
    scene.settle(at(0));
    assert_eq!(scene.engine.listeners[0].waiting.pending(), 0);
}

/// A handle may learn of the end after the engine has released the connection.
#[test]
fn commands_for_a_connection_that_is_over_change_nothing() {
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let key = scene.outbox.next_key();
    let ConnectionKey(number) = key;
    let (_qp, _peer) = scene.open(at(0), &peers);
    let of_connection = ConnectionKey(number + 1);
    assert!(scene.engine.registry.id(of_connection).is_some());
    scene.engine.remove(0);
    assert_eq!(scene.engine.registry.id(of_connection), None);
    for command in
        [Command::Disconnect { key: of_connection }, Command::Abort { key: of_connection }]
    {
        scene.engine.handle_command(at(0), command);
    }
    scene.settle(at(0));
    assert!(scene.engine.connections.is_empty());
}

/// No event reports later the work that was left in this turn.
#[test]
fn a_worker_does_not_sleep_while_a_connection_has_more_to_do() {
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (_qp, _peer) = scene.open(at(0), &peers);
    assert!(scene.engine.arm(Waker::noop()));
    scene.engine.disarm(Waker::noop());
    scene.engine.ready.push(0);
    assert!(!scene.engine.arm(Waker::noop()));
}

/// Queue pairs of closed connections may fill the doorbell's list.
#[test]
fn work_beyond_the_doorbell_capacity_is_done() {
    let mut scene = Scene::new();
    scene.engine.doorbell = Doorbell::with_places(1);
    let peers = TcpListener::bind("127.0.0.1:0").unwrap();
    let memory = scene.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(scene.open(at(0), &peers));
    }
    scene.settle(at(0));
    // In the second round no queue pair may still be pressed.
    for round in 0..2 {
        for (qp, _) in &open {
            qp.post_send(SendWr::send(WrId(round), [memory.sge(0..8)])).unwrap();
        }
        assert!(!scene.engine.arm(Waker::noop()), "there is work");
        scene.settle(at(0));
        for (_, peer) in &mut open {
            peer.read_exact(&mut [0; 2 + 18 + 8 + 4]).unwrap();
        }
    }
}

/// If the engine offered the bytes again at once, the worker would spin.
#[test]
fn full_socket_is_not_written_until_the_kernel_reports_room() {
    const LEN: usize = 16 << 20;
    // Writes of a socket that accepts everything.
    const TURNS_MAX: usize = 10_000;
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (qp, mut peer) = scene.open(at(0), &peers);
    assert!(!scene.connection().asks_for_writing(), "the socket has room");
    let memory = scene.pd.reg_mr(LEN, Access::LOCAL_WRITE).unwrap();
    qp.post_send(SendWr::send(WrId(1), [memory.sge(0..LEN)])).unwrap();
    let turns = (0..TURNS_MAX).take_while(|_| scene.engine.turn(at(0)) > 0).count();
    assert!(turns < TURNS_MAX, "it ends when the socket is full");
    assert!(scene.connection().asks_for_writing());
    assert!(scene.engine.arm(Waker::noop()), "the worker may sleep");
    scene.engine.disarm(Waker::noop());
    assert!(scene.cq.poll().is_none(), "not all of it has gone");
    // With room the rest is sent, and no unneeded event is requested.
    let reader = std::thread::spawn(move || {
        let mut octets = vec![0; 1 << 20];
        let mut read = 0;
        while read < LEN {
            read += peer.read(&mut octets).unwrap();
        }
        peer
    });
    scene.turn_until(at(0), "sent", |scene| scene.connection().layered.bytes_sent() > LEN as u64);
    let _peer = reader.join().unwrap();
    scene.settle(at(0));
    assert_eq!(scene.cq.poll().map(|wc| wc.status), Some(WcStatus::Success));
    assert!(!scene.connection().asks_for_writing());
}

/// The front page of the crate says this, and names the option for a stronger completion.
#[test]
fn a_completed_send_says_only_that_the_socket_has_taken_it() {
    for completion in [CompletionLevel::Taken, CompletionLevel::Placed] {
        let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        scene.completion = completion;
        let (qp, peer) = scene.open(at(0), &peers);
        // Drops all that arrives: its TCP acknowledges nothing, like a link that is down.
        let drop_all = [SockFilter::new(6, 0, 0, 0)];
        if let Err(error) = SockRef::from(&peer).attach_filter(&drop_all) {
            let reason = format!("no filter on a socket: {error}");
            return urnic_testkit::skip("what a completed Send says", &reason);
        }
        let memory = scene.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        qp.post_send(SendWr::send(WrId(1), [memory.sge(0..8)])).unwrap();
        scene.settle(at(0));
        let unacknowledged = undelivered(scene.connection().socket.as_fd()).unwrap();
        assert!(unacknowledged > 0, "{completion:?}");
        let status = scene.cq.poll().map(|wc| wc.status);
        let expected = (completion == CompletionLevel::Taken).then_some(WcStatus::Success);
        assert_eq!(status, expected, "{completion:?}");
    }
}

/// After a peer closes instead of answering, a second attempt uses revision 1 of MPA.
#[test]
fn a_second_attempt_is_opened_as_the_first_was() {
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let idle = Duration::from_secs(77);
    let keepalive = Some(KeepAliveTimes { idle, ..KeepAliveTimes::default() });
    let local = Some(SocketAddr::from(([127, 0, 0, 1], urnic_testkit::ports::free_port())));
    let options = ConnectOptions { keepalive, local, ..ConnectOptions::default() };
    let (_qp, _told) = scene.connect_with(at(0), &peers, options);
    let (mut first, from) = peers.accept().unwrap();
    assert_eq!(Some(from), local);
    first.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    scene.turn_until(at(0), "the Request is sent", |scene| {
        scene.connection().layered.bytes_sent() > 0
    });
    let sent = scene.connection().layered.bytes_sent();
    first.read_exact(&mut vec![0; usize::try_from(sent).unwrap()]).unwrap();
    first.shutdown(std::net::Shutdown::Write).unwrap();
    peers.set_nonblocking(true).unwrap();
    let second = RefCell::new(None);
    scene.turn_until(at(0), "there is a second attempt", |_| {
        *second.borrow_mut() = peers.accept().ok();
        second.borrow().is_some()
    });
    let (_second, again) = second.into_inner().unwrap();
    assert_eq!(again.ip(), from.ip());
    assert_ne!(again.port(), from.port(), "the first may still be in use");
    assert_eq!(scene.connection().keepalive(), keepalive);
    assert_eq!(scene.connection().socket.tcp_keepalive_time().unwrap(), idle);
}

/// RFC 5044 §4.5.
#[test]
fn fpdus_are_cut_for_the_segments_of_the_socket() {
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (_qp, _peer) = scene.open(at(0), &peers);
    // Loopback has long segments, which grow with the amount of data.
    assert!(scene.connection().emss() > 1448, "{}", scene.connection().emss());
}

#[test]
fn pending_work_falls_from_octets_to_the_end_of_the_peer() {
    let (mut scene, peers) = (Scene::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (_qp, peer) = scene.open(at(0), &peers);
    assert_eq!(scene.engine.owed(), Owed::Octets, "the FIN");
    scene.engine.close_all(at(0));
    scene.turn_until(at(0), "all is acknowledged", |scene| scene.engine.owed() == Owed::Answers);
    drop(peer);
    scene.turn_until(at(0), "the peer has closed", |scene| scene.engine.owed() == Owed::Nothing);
}

/// A child process has the sockets of its parent. Without the shutdown, the kernel would go on to
/// accept connections there.
#[test]
fn listener_inherited_by_a_child_stops_listening() {
    let mut scene = Scene::new();
    let (local, _requests) = scene.listen();
    let _of_a_child = scene.engine.listeners[0].socket.try_clone().unwrap();
    scene.engine.unlisten(local);
    let refused = TcpStream::connect(local).map(drop).map_err(|error| error.kind());
    assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
}

#[test]
fn connection_of_a_closed_listener_has_no_entry_in_the_next_backlog() {
    let mut scene = Scene::new();
    let (local, _requests) = scene.listen();
    let _old = TcpStream::connect(local).unwrap();
    scene.turn_until(at(0), "the first", |scene| scene.engine.connections.len() == 1);
    scene.engine.unlisten(local);
    let (local, _more_requests) = scene.listen();
    let _new = TcpStream::connect(local).unwrap();
    scene.turn_until(at(0), "the second", |scene| scene.engine.connections.len() == 2);
    scene.engine.remove(0);
    assert_eq!(scene.engine.listeners[0].waiting.pending(), 1);
}

#[test]
fn dropping_the_engine_flushes_what_was_posted() {
    let mut scene = Scene::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (qp, _told) = scene.connect(at(0), &silent);
    let memory = scene.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    qp.post_recv(RecvWr::new(WrId(3), [memory.sge(0..8)])).unwrap();
    drop(scene.engine);
    let wc = scene.cq.poll().expect("flushed");
    assert_eq!((wc.wr_id, wc.status), (WrId(3), WcStatus::WrFlushErr));
}
