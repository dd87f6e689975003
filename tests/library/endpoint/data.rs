//! Data arrives, however the endpoint is polled and its completions are waited for.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;

use super::{Host, LOOPBACK, PATIENCE, advertised, contents, filled, pattern, wait_closed};
use rustix::event::{PollFd, PollFlags, poll};
use urnic::{
    Access, CompChannel, ConnectOptions, Error, ListenParams, Offer, RecvWr, SendWr, TaggedOffset,
    WrId,
};
use urnic_engine::time::Duration;

/// Accepts one peer, which may write and read the memory, and serves it until it closes.
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
    assert_eq!(connection.counters(), Err(Error::Closed));
    assert_eq!(server.join().unwrap(), octets);
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
    if !urnic_testkit::has_ipv6_loopback() {
        return urnic_testkit::skip("fifty_connections_at_once_are_all_served", "no IPv6 on lo");
    }
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
            let Some(connecting) = place.take() else { continue };
            match connecting.poll().unwrap() {
                Ok(connection) => open.push(connection),
                Err(not_yet) => *place = Some(not_yet),
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
    let started = urnic::monotonic_now();
    let asleep = thread::spawn(move || waker.wake());
    while urnic::monotonic_now() - started < Duration::from_millis(5) {
        host.endpoint.turn(Duration::ZERO).unwrap();
    }
    asleep.join().unwrap();
    // Rung before the call: it does not sleep.
    host.endpoint.waker().wake();
    host.endpoint.turn(PATIENCE).unwrap();
    assert!(urnic::monotonic_now() - started < PATIENCE, "nobody slept that long");
}
