//! Queue pairs by the rules of InfiniBand: work is posted at any time, and connecting can be
//! repeated.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use super::{Host, LOOPBACK, PATIENCE, hosts_on_a_link};
use urnic::{
    Access, ConnectOptions, Connection, ConnectionEvent, Error, ListenParams, Listener, Mr, Offer,
    PortError, PostError, Qp, QpConfig, QpRules, QpState, RecvWr, RemoteBuffer, SendOp, SendWr,
    Stag, StartupConfig, TaggedOffset, WcStatus, WrId, monotonic_now,
};

const FLUSHED: WcStatus = WcStatus::WrFlushErr;

fn qp(host: &Host) -> Qp {
    let rules = QpRules::InfiniBand;
    host.pd.create_qp(QpConfig { rules, ..QpConfig::new(&host.cq) }).unwrap()
}

fn memory(host: &Host) -> Mr {
    host.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap()
}

fn send(qp: &Qp, id: u64, mr: &Mr) {
    qp.post_send(SendWr::send(WrId(id), [mr.sge(0..8)])).unwrap();
}

fn receive(qp: &Qp, id: u64, mr: &Mr) {
    qp.post_recv(RecvWr::new(WrId(id), [mr.sge(0..64)])).unwrap();
}

/// Waits for the next completions.
fn completions(host: &Host, count: usize) -> Vec<(u64, WcStatus)> {
    let next = |_| host.endpoint.wait(&host.cq, PATIENCE).unwrap().expect("completes in time");
    (0..count).map(next).map(|wc| (wc.wr_id.0, wc.status)).collect()
}

fn nothing_completes(host: &Host) {
    assert_eq!(host.endpoint.wait(&host.cq, Duration::from_millis(50)), Ok(None));
}

fn connect(
    client: &Host,
    listener: &Listener,
    [server_qp, client_qp]: [&Qp; 2],
) -> [Connection; 2] {
    let options = ConnectOptions { ird: 4, ord: 4, ..ConnectOptions::default() };
    let connecting = client.endpoint.connect(listener.local(), client_qp, &options).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("comes");
    let accepted = request.accept(server_qp, &Offer { ird: 4, ..Offer::default() }).unwrap();
    let ours = connecting.wait(PATIENCE).unwrap();
    [accepted.wait(PATIENCE).unwrap(), ours]
}

/// Runs the test on both engines.
fn on_both(test: impl Fn(&Host, &Host, SocketAddr)) {
    test(&Host::new(true, 1), &Host::new(true, 2), LOOPBACK.parse().unwrap());
    let ([server, client], local) = hosts_on_a_link();
    test(&server, &client, local);
}

#[test]
fn work_waits_for_the_connection_and_attempts_that_fail_leave_it() {
    on_both(|server, client, local| {
        let (a, b) = (qp(server), qp(client));
        let [inbox, outbox] = [server, client].map(memory);
        receive(&a, 1, &inbox);
        receive(&a, 2, &inbox);
        send(&b, 3, &outbox);
        receive(&b, 4, &outbox);
        // Nothing listens there, then a listener rejects this peer.
        let options = ConnectOptions::default();
        let nowhere = SocketAddr::new(local.ip(), 1);
        let failed = client.endpoint.connect(nowhere, &b, &options).unwrap().wait(PATIENCE);
        failed.expect_err("nothing listens");
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        let connecting = client.endpoint.connect(listener.local(), &b, &options).unwrap();
        listener.next_request(PATIENCE).unwrap().expect("comes").reject(b"").unwrap();
        connecting.wait(PATIENCE).expect_err("is rejected");
        assert_eq!((b.state(), b.sends_outstanding()), (QpState::Init, 1));
        nothing_completes(client);

        let connections = connect(client, &listener, [&a, &b]);
        assert_eq!(completions(server, 1), [(1, WcStatus::Success)]);
        assert_eq!(completions(client, 1), [(3, WcStatus::Success)]);
        // The doorbell belongs to the last connection.
        send(&b, 5, &outbox);
        assert_eq!(completions(server, 1), [(2, WcStatus::Success)]);
        drop(connections);
    });
}

#[test]
fn a_queue_pair_that_is_given_up_flushes_in_order_and_takes_work_to_flush() {
    on_both(|_, client, _| {
        let (b, outbox) = (qp(client), memory(client));
        send(&b, 1, &outbox);
        send(&b, 2, &outbox);
        receive(&b, 3, &outbox);
        assert!(b.give_up(WcStatus::RetryExcErr));
        let flushed = [(1, WcStatus::RetryExcErr), (2, FLUSHED), (3, FLUSHED)];
        assert_eq!(completions(client, 3), flushed);
        assert_eq!(b.state(), QpState::Error);
        send(&b, 4, &outbox);
        receive(&b, 5, &outbox);
        assert_eq!(completions(client, 2), [(4, FLUSHED), (5, FLUSHED)]);
        assert!(!b.give_up(WcStatus::RetryExcErr), "once");
    });
}

#[test]
fn a_queue_pair_given_up_during_an_attempt_is_flushed_when_that_fails() {
    on_both(|server, client, local| {
        let (b, outbox) = (qp(client), memory(client));
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        send(&b, 1, &outbox);
        let options = ConnectOptions::default();
        let connecting = client.endpoint.connect(listener.local(), &b, &options).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("comes");
        assert!(!b.give_up(FLUSHED), "an attempt has it");
        nothing_completes(client);
        request.reject(b"").unwrap();
        connecting.wait(PATIENCE).expect_err("is rejected");
        assert_eq!(completions(client, 1), [(1, FLUSHED)]);
        assert_eq!(b.state(), QpState::Error);
    });
}

#[test]
fn receives_stay_when_the_peer_closes() {
    on_both(|server, client, local| {
        let (a, b) = (qp(server), qp(client));
        let inbox = memory(server);
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        let [ours, theirs] = connect(client, &listener, [&a, &b]);
        receive(&a, 1, &inbox);
        theirs.disconnect();
        assert_eq!(ours.next_event(PATIENCE), Ok(Some(ConnectionEvent::PeerClosed)));
        nothing_completes(server);
        receive(&a, 2, &inbox);
        nothing_completes(server);
        ours.disconnect();
        assert_eq!(completions(server, 2), [(1, FLUSHED), (2, FLUSHED)]);
    });
}

#[test]
fn a_queue_pair_whose_completions_have_ended_completes_nothing() {
    for end in [Qp::discard_completions, Qp::end_completions] {
        on_both(|server, client, local| {
            let (a, b) = (qp(server), qp(client));
            let outbox = memory(client);
            let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
            let connections = connect(client, &listener, [&a, &b]);
            receive(&b, 1, &outbox);
            end(&b);
            drop(connections);
            let deadline = monotonic_now() + PATIENCE;
            while b.state() != QpState::Error {
                assert!(monotonic_now() < deadline, "the connection ends");
                sleep(Duration::from_millis(1));
            }
            nothing_completes(client);
        });
    }
}

/// Unsent requests are dropped; data that was sent arrives with its bytes at the time of sending.
#[test]
fn memory_of_a_released_queue_pair_returns_to_the_application() {
    const LEN: usize = 1 << 20;
    on_both(|server, client, local| {
        let (a, b) = (qp(server), qp(client));
        let sink = server.pd.reg_mr(LEN, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        let source = client.pd.reg_mr(LEN, Access::REMOTE_WRITE).unwrap();
        source.copy_in(0, &[1; LEN]);
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        let [ours, theirs] = connect(client, &listener, [&a, &b]);
        let inbox = memory(client);
        receive(&b, 99, &inbox);
        let to = RemoteBuffer { stag: sink.stag(), to: TaggedOffset(0) };
        for id in 0..60 {
            b.post_send(SendWr::write(WrId(id), to, [source.sge(0..LEN)])).unwrap();
        }
        client.endpoint.release(&b).unwrap();
        // From here on, no new byte of it may reach the peer.
        source.copy_in(0, &[2; LEN]);
        assert_eq!(b.state(), QpState::Error);
        let completed = completions(client, 61);
        let done = completed.iter().take_while(|(_, status)| *status == WcStatus::Success).count();
        assert!(completed[done..].iter().all(|(_, status)| *status == FLUSHED), "{completed:?}");
        drop(theirs);
        let end = loop {
            match ours.next_event(PATIENCE).unwrap().expect("ends in time") {
                ConnectionEvent::PeerClosed => ours.disconnect(),
                other => break other,
            }
        };
        assert!(matches!(end, ConnectionEvent::Closed(_) | ConnectionEvent::Failed(_)), "{end:?}");
        let mut octets = vec![0; LEN];
        sink.copy_out(0, &mut octets);
        assert!(octets.iter().all(|octet| *octet < 2), "memory was read after it was given back");
        // A second call does no harm, nor does a call for one that was never connected.
        client.endpoint.release(&b).unwrap();
        client.endpoint.release(&qp(client)).unwrap();
    });
}

/// A queue pair may restrict the rights of a steering tag.
#[test]
fn queue_pair_limits_the_remote_rights_of_its_peer() {
    on_both(|server, client, local| {
        for rights in [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::empty()] {
            let (a, b) = (qp(server), qp(client));
            let sink = server.pd.reg_mr(64, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
            let source = memory(client);
            a.set_remote_rights(rights);
            let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
            let connections = connect(client, &listener, [&a, &b]);
            let there = RemoteBuffer { stag: sink.stag(), to: TaggedOffset(0) };
            b.post_send(SendWr::write(WrId(1), there, [source.sge(0..8)]).unsignaled()).unwrap();
            b.post_send(SendWr::read(WrId(2), there, source.sge(0..8))).unwrap();
            // A Write is refused first, and all later requests with it.
            let done = completions(client, 1)[0];
            assert_ne!(done.1, WcStatus::Success, "{rights:?}: not both are allowed");
            drop(connections);
            listener.close();
        }
        // Initially it has all rights.
        let (a, b) = (qp(server), qp(client));
        let sink = server.pd.reg_mr(64, Access::FOR_ATOMIC).unwrap();
        let source = memory(client);
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        let _connections = connect(client, &listener, [&a, &b]);
        let there = RemoteBuffer { stag: sink.stag(), to: TaggedOffset(0) };
        b.post_send(SendWr::write(WrId(1), there, [source.sge(0..8)])).unwrap();
        b.post_send(SendWr::read(WrId(2), there, source.sge(0..8))).unwrap();
        let fetch = SendOp::FetchAdd { remote: there, add: 1, mask: 0 };
        b.post_send(SendWr::new(WrId(3), fetch, [])).unwrap();
        let success = [1, 2, 3].map(|id| (id, WcStatus::Success));
        assert_eq!(completions(client, 3), success);
    });
}

#[test]
fn an_attempt_of_a_released_queue_pair_is_given_up() {
    on_both(|server, client, local| {
        let (b, outbox) = (qp(client), memory(client));
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        send(&b, 1, &outbox);
        let options = ConnectOptions::default();
        let connecting = client.endpoint.connect(listener.local(), &b, &options).unwrap();
        client.endpoint.release(&b).unwrap();
        connecting.wait(PATIENCE).expect_err("is given up");
        assert_eq!(completions(client, 1), [(1, FLUSHED)]);
        assert_eq!(b.state(), QpState::Error);
    });
}

#[test]
fn the_address_of_a_closed_listener_is_free_at_once() {
    on_both(|server, _, any| {
        let (mut local, mut taken) = (any, 0);
        for _ in 0..50 {
            let listener = match server.endpoint.listen(local, ListenParams::default()) {
                Ok(listener) => listener,
                // The kernel gave the port to another process: the test goes on with a new one.
                Err(Error::Port(PortError::PortTaken(_))) if local.ip().is_loopback() => {
                    (local, taken) = (any, taken + 1);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            local = listener.local();
            listener.close();
            if !local.ip().is_loopback() {
                continue;
            }
            if let Err(error) = TcpListener::bind(local) {
                assert_eq!(error.kind(), ErrorKind::AddrInUse);
                (local, taken) = (any, taken + 1);
            }
        }
        assert!(taken <= 3, "{taken} were not free at once: that is no other program");
    });
}

#[test]
fn a_read_that_was_posted_before_the_connection_forbade_it_fails() {
    on_both(|server, client, local| {
        let (a, b) = (qp(server), qp(client));
        let outbox = memory(client);
        let remote = RemoteBuffer { stag: Stag(1), to: TaggedOffset(0) };
        let read = |id| SendWr::read(WrId(id), remote, outbox.sge(0..8));
        b.post_send(read(1)).unwrap();
        send(&b, 2, &outbox);
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        let options = ConnectOptions { ord: 0, ..ConnectOptions::default() };
        let connecting = client.endpoint.connect(listener.local(), &b, &options).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().expect("comes");
        let accepted = request.accept(&a, &Offer::default()).unwrap();
        let _connections = [connecting.wait(PATIENCE), accepted.wait(PATIENCE)];
        assert_eq!(completions(client, 2), [(1, WcStatus::LocQpOpErr), (2, FLUSHED)]);
    });
}

#[test]
fn by_the_rules_of_iwarp_a_send_needs_a_connection() {
    on_both(|_, client, _| {
        let (b, outbox) = (client.qp(), memory(client));
        let early = b.post_send(SendWr::send(WrId(1), [outbox.sge(0..8)]));
        assert_eq!(early, Err(PostError::State(QpState::Init)));
        receive(&b, 2, &outbox);
        assert!(b.give_up(FLUSHED));
        assert_eq!(completions(client, 1), [(2, FLUSHED)]);
        let late = b.post_recv(RecvWr::new(WrId(3), [outbox.sge(0..8)]));
        assert_eq!(late, Err(PostError::State(QpState::Error)));
    });
}

#[expect(clippy::disallowed_methods, reason = "nothing tells of the end of such a queue pair")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// The peer's support for immediate data is known once there is a connection.
#[test]
fn immediate_data_that_was_posted_before_the_connection_forbade_it_fails_in_its_turn() {
    for agreed in [true, false] {
        on_both(|server, client, local| {
            let (a, b) = (qp(server), qp(client));
            let (inbox, outbox) = (memory(server), memory(client));
            for id in 0..3 {
                receive(&a, id, &inbox);
            }
            send(&b, 1, &outbox);
            let op = SendOp::SendImmediate { immediate: 7, solicited: false };
            b.post_send(SendWr::new(WrId(2), op, [outbox.sge(0..8)])).unwrap();
            send(&b, 3, &outbox);
            let startup = StartupConfig { immediates: agreed, ..StartupConfig::default() };
            let params = ListenParams { startup, ..ListenParams::default() };
            let listener = server.endpoint.listen(local, params).unwrap();
            let startup = StartupConfig { immediates: true, ..startup };
            let options = ConnectOptions { startup, ..ConnectOptions::default() };
            let connecting = client.endpoint.connect(listener.local(), &b, &options).unwrap();
            let request = listener.next_request(PATIENCE).unwrap().expect("comes");
            let accepted = request.accept(&a, &Offer::default()).unwrap();
            let _connections = [connecting.wait(PATIENCE), accepted.wait(PATIENCE)];
            let ok = WcStatus::Success;
            let [second, third] = if agreed { [ok; 2] } else { [WcStatus::LocQpOpErr, FLUSHED] };
            assert_eq!(completions(client, 3), [(1, ok), (2, second), (3, third)]);
            let received = completions(server, 3);
            assert_eq!(received, [(0, ok), (1, if agreed { ok } else { FLUSHED }), (2, third)]);
        });
    }
}

#[test]
fn a_request_without_access_fails_in_its_turn() {
    on_both(|server, client, local| {
        let (a, b) = (qp(server), qp(client));
        let (inbox, outbox) = (memory(server), memory(client));
        receive(&a, 0, &inbox);
        send(&b, 1, &outbox);
        b.post_send(SendWr::send(WrId(2), []).inaccessible()).unwrap();
        send(&b, 3, &outbox);
        let listener = server.endpoint.listen(local, ListenParams::default()).unwrap();
        let _connections = connect(client, &listener, [&a, &b]);
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, FLUSHED)];
        assert_eq!(completions(client, 3), expected);
        assert_eq!(completions(server, 1), [(0, WcStatus::Success)]);
    });
}
