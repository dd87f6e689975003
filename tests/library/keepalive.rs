//! Keep-alive: an end that has nothing to send gives up a vanished peer, on both engines, whichever
//! end has opened the connection. It does not if keep-alive is off.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use socket2::SockRef;
use urnic::{
    Access, ConnectOptions, Connection, ConnectionEvent, Cq, Endpoint, EndpointConfig,
    KeepAliveTimes, ListenParams, Mr, Offer, PortConfig, Qp, QpConfig, RecvWr, Rnic, RnicConfig,
    SendWr, WcStatus, WrId, monotonic_now,
};
use urnic_engine::time::{Duration, Instant};
use urnic_netdev::memory::{self, LinkConfig};
use urnic_testkit::silence::drop_all_segments;

const PATIENCE: Duration = Duration::from_secs(20);
/// A second of silence, then two probes without an answer, a second apart.
const TIMES: KeepAliveTimes =
    KeepAliveTimes { idle: Duration::from_secs(1), interval: Duration::from_secs(1), probes: 2 };
/// Raised to the minimum: a second, and one probe.
const NOTHING: KeepAliveTimes =
    KeepAliveTimes { idle: Duration::ZERO, interval: Duration::ZERO, probes: 0 };
/// Reduced to the maximum.
const EVERYTHING: KeepAliveTimes =
    KeepAliveTimes { idle: Duration::MAX, interval: Duration::MAX, probes: u32::MAX };

/// An endpoint with a queue pair.
struct Host {
    endpoint: Endpoint,
    cq: Cq,
    qp: Qp,
    memory: Mr,
}

impl Host {
    fn new(endpoint: impl FnOnce(&Rnic) -> Endpoint) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: urnic::random_seed().unwrap() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16).unwrap());
        let qp = pd.create_qp(QpConfig::new(&cq)).unwrap();
        let memory = pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        Self { endpoint: endpoint(&rnic), cq, qp, memory }
    }

    fn kernel() -> Self {
        Self::new(|rnic| Endpoint::kernel(rnic, &EndpointConfig::default()).unwrap())
    }

    /// The endpoint with keep-alive has a thread; the other one works only while it waits, and so
    /// can vanish.
    fn link() -> [Self; 2] {
        let (near, far) = memory::pair(LinkConfig::default());
        let on = |device, last, own_thread| {
            let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
            let port = PortConfig::for_ipv4(Ipv4Addr::new(10, 0, 0, last));
            Self::new(|rnic| Endpoint::on_device(rnic, device, port, &config).unwrap())
        };
        [on(near, 1, true), on(far, 2, false)]
    }

    fn post_receive(&self) {
        self.qp.post_recv(RecvWr::new(WrId(1), [self.memory.sge(0..8)])).unwrap();
    }

    fn post_send(&self) {
        self.qp.post_send(SendWr::send(WrId(2), [self.memory.sge(0..8)])).unwrap();
    }

    fn completes(&self) {
        let wc = self.endpoint.wait(&self.cq, PATIENCE).unwrap().expect("completes");
        assert_eq!(wc.status, WcStatus::Success);
    }
}

/// Connects two hosts; a message crosses each way. The second host may have no thread.
fn connect(
    [from, to]: [&Host; 2],
    at: &str,
    keepalive: [Option<KeepAliveTimes>; 2],
) -> [Connection; 2] {
    let params = ListenParams { keepalive: keepalive[1], ..ListenParams::default() };
    let listener = to.endpoint.listen(at.parse().unwrap(), params).unwrap();
    let options = ConnectOptions { keepalive: keepalive[0], ..ConnectOptions::default() };
    for host in [from, to] {
        host.post_receive();
    }
    thread::scope(|scope| {
        let connecting = from.endpoint.connect(listener.local(), &from.qp, &options).unwrap();
        let opened = scope.spawn(|| {
            let connection = connecting.wait(PATIENCE).unwrap();
            from.post_send();
            from.completes();
            from.completes();
            connection
        });
        let request = listener.next_request(PATIENCE).unwrap().expect("comes");
        let accepted = request.accept(&to.qp, &Offer::default()).unwrap().wait(PATIENCE).unwrap();
        to.post_send();
        to.completes();
        to.completes();
        [opened.join().unwrap(), accepted]
    })
}

/// Checks if and when the connection ends by itself. `started` is before it was opened, so that the
/// time of a busy machine until this call counts.
fn check(what: &str, started: Instant, connection: &Connection, keepalive: Option<KeepAliveTimes>) {
    let ends = [Some(TIMES), Some(NOTHING)].contains(&keepalive);
    let wait = if ends { PATIENCE } else { Duration::from_secs(5) };
    let event = connection.next_event(wait).unwrap();
    let waited = monotonic_now() - started;
    match event {
        Some(ConnectionEvent::Failed(_) | ConnectionEvent::Closed(_)) => {
            assert!(ends, "{what}: not for so long, {event:?}");
            // The last exchanged data may have been acknowledged some time ago.
            let least = if keepalive == Some(TIMES) { 2500 } else { 1500 };
            assert!(waited >= Duration::from_millis(least), "{what}: {waited:?}");
        }
        other => assert!(!ends && other.is_none(), "{what}: {other:?}"),
    }
}

const CASES: [Option<KeepAliveTimes>; 4] = [Some(TIMES), Some(NOTHING), Some(EVERYTHING), None];

#[test]
fn a_peer_that_vanishes_is_given_up_on_a_device() {
    thread::scope(|scope| {
        for keepalive in CASES {
            scope.spawn(move || {
                let [own, peer] = Host::link();
                let started = monotonic_now();
                let [opened, _accepted] =
                    connect([&own, &peer], "10.0.0.2:7174", [keepalive, None]);
                check(&format!("{keepalive:?}, opened here"), started, &opened, keepalive);
            });
            scope.spawn(move || {
                let [own, peer] = Host::link();
                let started = monotonic_now();
                let [_opened, accepted] =
                    connect([&peer, &own], "10.0.0.1:7174", [None, keepalive]);
                let what = format!("{keepalive:?}, opened by the peer");
                check(&what, started, &accepted, keepalive);
            });
        }
    });
}

/// Makes a relay with two sockets. The returned function makes one of them receive nothing, not
/// even as TCP.
fn silent_relay(to: SocketAddr) -> Option<(SocketAddr, impl FnOnce() -> [TcpStream; 2])> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    if let Err(error) = drop_all_segments(&listener) {
        urnic_testkit::skip("keep-alive over the kernel", &format!("no filter: {error}"));
        return None;
    }
    SockRef::from(&listener).detach_filter().unwrap();
    let relay = thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(to).unwrap();
        let copy = |mut from: TcpStream, mut to: TcpStream| {
            thread::spawn(move || drop(std::io::copy(&mut from, &mut to)))
        };
        copy(near.try_clone().unwrap(), far.try_clone().unwrap());
        copy(far.try_clone().unwrap(), near.try_clone().unwrap());
        [near, far]
    });
    Some((at, move || {
        let sockets = relay.join().unwrap();
        for socket in &sockets {
            drop_all_segments(socket).unwrap();
        }
        sockets
    }))
}

#[test]
fn a_peer_that_vanishes_is_given_up_over_the_kernel() {
    thread::scope(|scope| {
        for keepalive in CASES {
            scope.spawn(move || {
                let (own, peer) = (Host::kernel(), Host::kernel());
                let params = ListenParams { keepalive, ..ListenParams::default() };
                let listener =
                    peer.endpoint.listen("127.0.0.1:0".parse().unwrap(), params).unwrap();
                let Some((at, vanish)) = silent_relay(listener.local()) else { return };
                own.post_receive();
                peer.post_receive();
                let options = ConnectOptions { keepalive, ..ConnectOptions::default() };
                let started = monotonic_now();
                let connecting = own.endpoint.connect(at, &own.qp, &options).unwrap();
                let request = listener.next_request(PATIENCE).unwrap().expect("comes");
                let accepting = request.accept(&peer.qp, &Offer::default()).unwrap();
                let opened = connecting.wait(PATIENCE).unwrap();
                own.post_send();
                let accepted = accepting.wait(PATIENCE).unwrap();
                peer.post_send();
                for host in [&own, &peer] {
                    host.completes();
                    host.completes();
                }
                // From now on each end has lost the other.
                let _silent = vanish();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        let what = format!("{keepalive:?}, opened here");
                        check(&what, started, &opened, keepalive);
                    });
                    let what = format!("{keepalive:?}, opened by the peer");
                    check(&what, started, &accepted, keepalive);
                });
            });
        }
    });
}
