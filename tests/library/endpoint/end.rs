//! Ends of connections: aborted, with their endpoint, with their handle, with their worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;

use super::{Host, LOOPBACK, PATIENCE, hosts_on_a_link};
use urnic::{
    Access, ConnectOptions, ConnectionEvent, Cq, Error, ListenParams, Offer, PostError, QpConfig,
    QpState, RecvWr, SendWr, StartupConfig, WcStatus, WrId,
};

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
    assert_eq!(connection.next_event(PATIENCE), Err(Error::Down));
    accepting.join().unwrap();
}

/// Asserts that work posted before a handle is dropped completes, though the peer closes its half
/// meanwhile.
fn a_dropped_handle_finishes_its_work(server: &Host, client: &Host, local: SocketAddr) {
    const WRITES: usize = 32;
    const LEN: usize = 1 << 20;
    let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
    let (qp, peer_qp) = (client.qp(), server.qp());
    let connecting =
        client.endpoint.connect(listener.local(), &qp, &ConnectOptions::default()).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("comes");
    let peer = request.accept(&peer_qp, &Offer::default()).unwrap().wait(PATIENCE).unwrap();
    let connection = connecting.wait(PATIENCE).unwrap();
    let source = client.pd.reg_mr(LEN, Access::empty()).unwrap();
    let sink = server.pd.reg_mr(LEN, Access::REMOTE_WRITE).unwrap();
    for id in 0..WRITES as u64 {
        qp.post_send(SendWr::write(WrId(id), sink.remote(0), [source.sge(0..LEN)])).unwrap();
    }
    peer.disconnect();
    drop(connection);
    client.complete(WRITES);
    assert_eq!(peer.next_event(PATIENCE).unwrap(), Some(ConnectionEvent::PeerClosed));
    let last = peer.next_event(PATIENCE).unwrap();
    assert!(matches!(last, Some(ConnectionEvent::Closed(_))), "{last:?}");
}

#[test]
fn a_handle_that_is_dropped_finishes_its_work_over_sockets() {
    let (server, client) = (Host::new(true, 1), Host::new(true, 2));
    a_dropped_handle_finishes_its_work(&server, &client, LOOPBACK.parse().unwrap());
}

#[test]
fn a_handle_that_is_dropped_finishes_its_work_on_a_device() {
    let ([server, client], local) = hosts_on_a_link();
    a_dropped_handle_finishes_its_work(&server, &client, local);
}

/// Panics in the thread that calls it.
struct Trap;

impl Wake for Trap {
    fn wake(self: Arc<Self>) {
        panic!("a trap of this test");
    }
}

/// Asserts that a worker that panics ends its connections, and that every waiting call returns.
fn a_worker_panics(server: &Host, client: &Host, local: SocketAddr) {
    let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
    let trap = server.rnic.create_cq(8).unwrap();
    let queues = |cq: &Cq| {
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::with_cqs(send_cq, recv_cq) }
    };
    let qps = [&trap, &server.cq].map(|cq| server.pd.create_qp(queues(cq)).unwrap());
    let inbox = server.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    let mut open = Vec::new();
    for qp in &qps {
        qp.post_recv(RecvWr::new(WrId(7), [inbox.sge(0..8)])).unwrap();
        let peer = client.qp();
        let options = ConnectOptions::default();
        let connecting = client.endpoint.connect(listener.local(), &peer, &options).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("comes");
        let accepted = request.accept(qp, &Offer::default()).unwrap();
        open.push((connecting.wait(PATIENCE).unwrap(), peer, accepted.wait(PATIENCE).unwrap()));
    }
    trap.req_notify(&Waker::from(Arc::new(Trap)));
    open[0].1.post_send(SendWr::send(WrId(1), [])).unwrap();
    let wc = server.endpoint.wait(&server.cq, PATIENCE).unwrap().expect("is flushed");
    assert_eq!((wc.wr_id, wc.status), (WrId(7), WcStatus::WrFlushErr));
    let late = qps[1].post_recv(RecvWr::new(WrId(8), [inbox.sge(0..8)]));
    assert_eq!(late, Err(PostError::State(QpState::Error)));
    for (_, _, connection) in &open {
        assert_eq!(connection.next_event(PATIENCE), Err(Error::Down));
        assert!(connection.counters().is_err());
    }
    assert!(matches!(listener.next_request(PATIENCE), Err(Error::Down)));
}

#[test]
fn panic_of_a_socket_worker_ends_all_waits() {
    a_worker_panics(&Host::new(true, 1), &Host::new(true, 2), LOOPBACK.parse().unwrap());
}

#[test]
fn panic_of_a_device_worker_ends_all_waits() {
    let ([server, client], local) = hosts_on_a_link();
    a_worker_panics(&server, &client, local);
}
