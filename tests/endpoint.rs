//! Endpoints on the kernel's TCP over loopback: connecting, moving data, ending, and every way in
//! which that fails.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use urnic::driver::{
    CompChannel, ConnectOptions, Connection, ConnectionEvent, Endpoint, EndpointConfig,
    EndpointError,
};
use urnic::mem::Access;
use urnic::mpa::startup::{Offer, Revision, StartupConfig};
use urnic::port::ListenParams;
use urnic::stream::StartupFailure;
use urnic::time::Duration;
use urnic::types::{Stag, TaggedOffset, WrId};
use urnic::verbs::{
    Cq, Mr, Pd, Qp, QpConfig, RecvWr, RemoteBuffer, Rnic, RnicConfig, SendWr, WcStatus,
};

const PATIENCE: Duration = Duration::from_secs(20);
const LOOPBACK: &str = "127.0.0.1:0";

/// An endpoint with what a program needs for one queue pair.
struct Host {
    endpoint: Endpoint,
    pd: Pd,
    cq: Cq,
}

impl Host {
    fn new(own_thread: bool, seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed });
        let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
        let endpoint = Endpoint::kernel(&rnic, &config).unwrap();
        Self { endpoint, pd: rnic.alloc_pd(), cq: rnic.create_cq(256) }
    }

    fn qp(&self) -> Qp {
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        self.pd.create_qp(QpConfig { send_cq, recv_cq, send_depth: 64, recv_depth: 64 }).unwrap()
    }

    fn complete(&self, count: usize) {
        for _ in 0..count {
            let wc = self.endpoint.wait(&self.cq, PATIENCE).unwrap().expect("completes in time");
            assert_eq!(wc.status, WcStatus::Success);
        }
    }
}

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ salt).collect()
}

fn filled(pd: &Pd, octets: &[u8], access: Access) -> Mr {
    let mr = pd.reg_mr(octets.len(), access).unwrap();
    mr.copy_in(0, octets);
    mr
}

fn contents(mr: &Mr, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    mr.copy_out(0, &mut octets);
    octets
}

/// Accepts one peer whose memory may be written and read, and serves it until it closes.
fn serve_one(own_thread: bool, len: usize) -> (SocketAddr, thread::JoinHandle<Vec<u8>>) {
    let host = Host::new(own_thread, 2);
    let listener =
        host.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let address = listener.local();
    let server = thread::spawn(move || {
        let memory = host.pd.reg_mr(len, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        let inbox = host.pd.reg_mr(len, Access::LOCAL_WRITE).unwrap();
        let qp = host.qp();
        qp.post_recv(RecvWr::new(WrId(9), [inbox.sge(0..len)])).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("a peer connects");
        assert_eq!(request.request().private_data, b"hello");
        let stag = memory.remote(0).stag.0.to_be_bytes();
        assert_eq!(memory.remote(0).to, TaggedOffset(0));
        let offer = Offer { private_data: &stag, ird: 4, ord: 4 };
        let connection = request.accept(&qp, &offer).unwrap().wait(PATIENCE).unwrap();
        host.complete(1);
        wait_closed(&connection);
        assert_eq!(contents(&memory, len), contents(&inbox, len));
        contents(&memory, len)
    });
    (address, server)
}

fn wait_closed(connection: &Connection) {
    let mut reports = 0;
    loop {
        match connection.next_event(PATIENCE).unwrap().expect("ends in time") {
            ConnectionEvent::PeerClosed => {
                reports += 1;
                connection.disconnect();
            }
            ConnectionEvent::Closed(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(reports <= 1);
}

fn moves_data(own_thread: bool) {
    let len = 3_000_001;
    let (address, server) = serve_one(own_thread, len);
    let host = Host::new(own_thread, 1);
    let qp = host.qp();
    let options = ConnectOptions { private_data: b"hello".to_vec(), ..ConnectOptions::default() };
    let connection = host.endpoint.connect(address, &qp, &options).unwrap().wait(PATIENCE).unwrap();
    let remote = advertised(&connection);
    let octets = pattern(len, 5);
    let source = filled(&host.pd, &octets, Access::empty());
    qp.post_send(SendWr::write(WrId(1), remote, [source.sge(0..len)])).unwrap();
    let copy = host.pd.reg_mr(len, Access::LOCAL_WRITE).unwrap();
    host.complete(1);
    qp.post_send(SendWr::read(WrId(2), remote, copy.sge(0..len))).unwrap();
    host.complete(1);
    assert_eq!(contents(&copy, len), octets, "what was written is read");
    let counters = connection.counters().unwrap();
    assert_eq!(counters.rdma.bytes_placed, len as u64);
    qp.post_send(SendWr::send(WrId(3), [source.sge(0..len)])).unwrap();
    host.complete(1);
    connection.disconnect();
    wait_closed(&connection);
    assert_eq!(connection.counters(), Err(EndpointError::Closed));
    assert_eq!(server.join().unwrap(), octets);
}

/// The buffer that the server tells of in its Private Data.
fn advertised(connection: &Connection) -> RemoteBuffer {
    let stag = connection.terms().private_data[..].try_into().map(u32::from_be_bytes).unwrap();
    RemoteBuffer { stag: Stag(stag), to: TaggedOffset(0) }
}

#[test]
fn writes_reads_and_sends_arrive_with_a_thread_of_the_endpoint() {
    moves_data(true);
}

#[test]
fn writes_reads_and_sends_arrive_within_the_waiting_thread() {
    moves_data(false);
}

#[test]
fn a_completion_channel_becomes_readable() {
    let (address, server) = serve_one(true, 100);
    let host = Host::new(true, 1);
    let channel = CompChannel::new(&host.cq).unwrap();
    let qp = host.qp();
    let options = ConnectOptions { private_data: b"hello".to_vec(), ..ConnectOptions::default() };
    let connection = host.endpoint.connect(address, &qp, &options).unwrap().wait(PATIENCE).unwrap();
    let remote = advertised(&connection);
    let source = filled(&host.pd, &pattern(100, 1), Access::empty());
    channel.req_notify();
    assert!(host.cq.is_empty());
    qp.post_send(SendWr::write(WrId(1), remote, [source.sge(0..100)])).unwrap();
    let fd = channel.as_fd();
    let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let readable = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(readable, 1, "the descriptor tells of the completion");
    channel.clear();
    assert!(channel.wait(Some(PATIENCE)).unwrap().is_some());
    assert!(channel.wait(Some(Duration::from_millis(5))).unwrap().is_none());
    qp.post_send(SendWr::send(WrId(3), [source.sge(0..100)])).unwrap();
    assert!(channel.wait(Some(PATIENCE)).unwrap().is_some());
    drop(connection);
    server.join().unwrap();
}

#[test]
fn fifty_connections_at_once_are_all_served() {
    const CONNECTIONS: usize = 50;
    let server = Host::new(true, 2);
    let listener =
        server.endpoint.listen("[::1]:0".parse().unwrap(), ListenParams::default()).unwrap();
    let address = listener.local();
    let client = Host::new(true, 1);
    let qps: Vec<_> = (0..CONNECTIONS).map(|_| client.qp()).collect();
    let connecting: Vec<_> = qps
        .iter()
        .map(|qp| client.endpoint.connect(address, qp, &ConnectOptions::default()).unwrap())
        .collect();
    let inbox = server.pd.reg_mr(CONNECTIONS * 8, Access::LOCAL_WRITE).unwrap();
    let mut accepted = Vec::new();
    for i in 0..CONNECTIONS {
        let request = listener.next_request(PATIENCE).unwrap().expect("all come");
        let qp = server.qp();
        qp.post_recv(RecvWr::new(WrId(i as u64), [inbox.sge(i * 8..i * 8 + 8)])).unwrap();
        accepted.push((request.accept(&qp, &Offer::default()).unwrap(), qp));
    }
    let open: Vec<_> = connecting.into_iter().map(|c| c.wait(PATIENCE).unwrap()).collect();
    let source = filled(&client.pd, &7_u64.to_be_bytes(), Access::empty());
    for qp in &qps {
        qp.post_send(SendWr::send(WrId(0), [source.sge(0..8)])).unwrap();
    }
    client.complete(CONNECTIONS);
    server.complete(CONNECTIONS);
    assert_eq!(contents(&inbox, 400), 7_u64.to_be_bytes().repeat(CONNECTIONS));
    drop(open);
    for (connecting, _qp) in accepted {
        wait_closed(&connecting.wait(PATIENCE).unwrap());
    }
}

#[test]
fn one_thread_turns_an_endpoint_that_connects_to_itself() {
    let host = Host::new(false, 1);
    let listener =
        host.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let (qp, peer_qp) = (host.qp(), host.qp());
    let options = ConnectOptions::default();
    let mut opening = Some(host.endpoint.connect(listener.local(), &qp, &options).unwrap());
    let (mut accepting, mut open) = (None, Vec::new());
    for _ in 0..1_000 {
        host.endpoint.turn(Duration::from_millis(20)).unwrap();
        if let Some(request) = listener.next_request(Duration::ZERO).unwrap() {
            accepting = Some(request.accept(&peer_qp, &Offer::default()).unwrap());
        }
        for place in [&mut opening, &mut accepting] {
            match place.take().map(|connecting| connecting.poll().unwrap()) {
                Some(Ok(connection)) => open.push(connection),
                Some(Err(not_yet)) => *place = Some(not_yet),
                None => {}
            }
        }
        if open.len() == 2 {
            return;
        }
    }
    panic!("both ends are open after a second or two");
}

#[test]
fn a_sleeping_turn_ends_when_it_is_woken() {
    let host = Host::new(false, 1);
    let waker = host.endpoint.waker();
    let started = urnic::driver::monotonic_now();
    let asleep = thread::spawn(move || waker.wake());
    while urnic::driver::monotonic_now() - started < Duration::from_millis(5) {
        host.endpoint.turn(Duration::ZERO).unwrap();
    }
    asleep.join().unwrap();
    // Rung before it sleeps: it does not sleep.
    host.endpoint.waker().wake();
    host.endpoint.turn(PATIENCE).unwrap();
    assert!(urnic::driver::monotonic_now() - started < PATIENCE, "nobody slept that long");
}

#[test]
fn a_closed_port_refuses() {
    let unused = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    for own_thread in [true, false] {
        let host = Host::new(own_thread, 1);
        let qp = host.qp();
        let connecting = host.endpoint.connect(unused, &qp, &ConnectOptions::default()).unwrap();
        let error = connecting.wait(PATIENCE).unwrap_err();
        assert_eq!(error, EndpointError::Io(std::io::ErrorKind::ConnectionRefused));
    }
}

#[test]
fn a_listener_on_a_taken_address_is_refused() {
    let taken = TcpListener::bind(LOOPBACK).unwrap();
    let host = Host::new(true, 1);
    let local = taken.local_addr().unwrap();
    let error = host.endpoint.listen(local, ListenParams::default()).unwrap_err();
    assert_eq!(error, EndpointError::Io(std::io::ErrorKind::AddrInUse));
}

#[test]
fn a_peer_that_does_not_speak_mpa_fails_the_startup() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let mut rest = Vec::new();
        // The connection may end with a RST.
        let _reset = stream.read_to_end(&mut rest);
    });
    let host = Host::new(true, 1);
    let qp = host.qp();
    let connecting = host.endpoint.connect(address, &qp, &ConnectOptions::default()).unwrap();
    let error = connecting.wait(PATIENCE).unwrap_err();
    assert!(matches!(error, EndpointError::Startup(StartupFailure::Protocol(_))), "{error:?}");
    peer.join().unwrap();
}

#[test]
fn a_client_that_does_not_speak_mpa_leaves_nothing_behind() {
    let host = Host::new(true, 1);
    let listener =
        host.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let mut stream = TcpStream::connect(listener.local()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _reset = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "no answer to what is no MPA request");
    assert!(listener.next_request(Duration::from_millis(50)).unwrap().is_none());
}

#[test]
fn a_rejection_carries_private_data() {
    let server = Host::new(true, 2);
    let listener =
        server.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let client = Host::new(true, 1);
    let qp = client.qp();
    let connecting =
        client.endpoint.connect(listener.local(), &qp, &ConnectOptions::default()).unwrap();
    listener.next_request(PATIENCE).unwrap().expect("comes").reject(b"not today").unwrap();
    match connecting.wait(PATIENCE) {
        Err(EndpointError::Rejected(rejection)) => {
            assert_eq!(rejection.private_data, b"not today");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_aborted_connection_flushes_the_work_of_both_ends() {
    let server = Host::new(true, 2);
    let listener =
        server.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let client = Host::new(true, 1);
    let (qp, peer_qp) = (client.qp(), server.qp());
    let options = ConnectOptions {
        startup: StartupConfig { crc: false, ..StartupConfig::default() },
        ..ConnectOptions::default()
    };
    let connecting = client.endpoint.connect(listener.local(), &qp, &options).unwrap();
    let inbox = server.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    peer_qp.post_recv(RecvWr::new(WrId(0), [inbox.sge(0..8)])).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("comes");
    let accepted = request.accept(&peer_qp, &Offer::default()).unwrap();
    let connection = connecting.wait(PATIENCE).unwrap();
    let peer = accepted.wait(PATIENCE).unwrap();
    connection.abort();
    let wc = server.endpoint.wait(&server.cq, PATIENCE).unwrap().expect("is flushed");
    assert_eq!(wc.status, WcStatus::WrFlushErr);
    loop {
        match peer.next_event(PATIENCE).unwrap().expect("ends in time") {
            ConnectionEvent::Closed(_) => break,
            _earlier => {}
        }
    }
}

#[test]
fn an_endpoint_that_goes_away_ends_its_connections() {
    let server = Host::new(true, 2);
    let listener =
        server.endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap();
    let client = Host::new(false, 1);
    let qp = client.qp();
    let connecting =
        client.endpoint.connect(listener.local(), &qp, &ConnectOptions::default()).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    let accepting = thread::spawn(move || {
        let request = listener.next_request(PATIENCE).unwrap().expect("comes");
        let qp = server.qp();
        tx.send(()).unwrap();
        let peer = request.accept(&qp, &Offer::default()).unwrap().wait(PATIENCE).unwrap();
        loop {
            match peer.next_event(PATIENCE).unwrap().expect("ends in time") {
                ConnectionEvent::Closed(_) => break,
                _earlier => {}
            }
        }
    });
    let connection = connecting.wait(PATIENCE).unwrap();
    rx.recv().unwrap();
    drop(client.endpoint);
    loop {
        match connection.next_event(PATIENCE).unwrap().expect("ends in time") {
            ConnectionEvent::Closed(_) => break,
            _earlier => {}
        }
    }
    assert_eq!(connection.next_event(PATIENCE), Err(EndpointError::Down));
    accepting.join().unwrap();
}

/// Octets of an MPA startup frame without Private Data.
const STARTUP_LEN: usize = 20;

fn read_startup(peer: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; STARTUP_LEN];
    peer.read_exact(&mut header).unwrap();
    let mut private_data = vec![0; usize::from(u16::from_be_bytes([header[18], header[19]]))];
    peer.read_exact(&mut private_data).unwrap();
    (header[17], private_data)
}

#[test]
fn a_peer_that_knows_only_rfc_5044_is_connected_to_in_revision_1() {
    for own_thread in [false, true] {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            let (revision, private_data) = read_startup(&mut first);
            assert_eq!((revision, private_data.len()), (2, 4 + 5));
            // RFC 6581 §10: it takes the Request for malformed, and closes.
            drop(first);
            let (mut second, _) = listener.accept().unwrap();
            let (revision, private_data) = read_startup(&mut second);
            assert_eq!((revision, &private_data[..]), (1, &b"hello"[..]));
            second.write_all(b"MPA ID Rep Frame\x40\x01\x00\x00").unwrap();
            // The first FPDU is the Send that was posted before anything was agreed.
            let mut fpdu = [0; 2 + 18 + 4 + 4];
            second.read_exact(&mut fpdu).unwrap();
            assert_eq!(fpdu[..2], [0, 22]);
            assert_eq!(fpdu[20..24], pattern(4, 9)[..]);
        });
        let host = Host::new(own_thread, 1);
        let qp = host.qp();
        let inbox = host.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvWr::new(WrId(1), [inbox.sge(0..8)])).unwrap();
        let options =
            ConnectOptions { private_data: b"hello".to_vec(), ..ConnectOptions::default() };
        let connecting = host.endpoint.connect(address, &qp, &options).unwrap();
        let connection = connecting.wait(PATIENCE).unwrap();
        assert_eq!(connection.terms().framing.revision, Revision::One);
        assert!(host.cq.is_empty(), "the receive is still posted");
        let source = filled(&host.pd, &pattern(4, 9), Access::empty());
        qp.post_send(SendWr::send(WrId(2), [source.sge(0..4)])).unwrap();
        host.complete(1);
        host.endpoint.run_for(Duration::from_millis(20)).unwrap();
        peer.join().unwrap();
    }
}

#[test]
fn a_peer_that_always_closes_is_given_up_after_every_fallback() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let address = listener.local_addr().unwrap();
    let peer = thread::spawn(move || {
        let asked: Vec<(u8, bool)> = (0..3)
            .map(|_| {
                let (mut peer, _) = listener.accept().unwrap();
                let mut header = [0; STARTUP_LEN];
                peer.read_exact(&mut header).unwrap();
                (header[17], header[16] & 0x80 != 0)
            })
            .collect();
        assert_eq!(asked, [(2, true), (1, true), (1, false)]);
    });
    let host = Host::new(true, 1);
    let startup = StartupConfig { markers: true, ..StartupConfig::default() };
    let options = ConnectOptions { startup, ..ConnectOptions::default() };
    let connecting = host.endpoint.connect(address, &host.qp(), &options).unwrap();
    let error = connecting.wait(PATIENCE).unwrap_err();
    assert_eq!(error, EndpointError::Startup(StartupFailure::ConnectionLost));
    peer.join().unwrap();
}
