//! Endpoints that finish before their process ends, and connections of an interface to itself.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use urnic::{
    Access, ConnectOptions, Connection, ConnectionEvent, Cq, Endpoint, EndpointConfig, Error,
    ListenParams, Mr, Offer, PortConfig, Qp, QpConfig, RecvWr, Rnic, RnicConfig, SendWr, WcStatus,
    WrId, monotonic_now,
};
use urnic_netdev::memory::{LinkConfig, MemoryDevice, pair};

const PATIENCE: Duration = Duration::from_secs(20);
const MESSAGES: u64 = 16;
const MESSAGE_LEN: usize = 256 << 10;

/// A queue pair and its memory.
struct End {
    qp: Qp,
    cq: Cq,
    memory: Mr,
}

struct Host {
    rnic: Rnic,
    endpoint: Endpoint,
}

impl Host {
    fn kernel(own_thread: bool) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let config = EndpointConfig { own_thread, polled: own_thread, ..EndpointConfig::default() };
        Self { endpoint: Endpoint::kernel(&rnic, &config).unwrap(), rnic }
    }

    fn on(device: MemoryDevice, last: u8, own_thread: bool) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: u64::from(last).into() });
        let config = EndpointConfig { own_thread, polled: own_thread, ..EndpointConfig::default() };
        let port = PortConfig::for_ipv4([10, 0, 0, last].into());
        Self { endpoint: Endpoint::on_device(&rnic, device, port, &config).unwrap(), rnic }
    }

    fn end(&self) -> End {
        let (pd, cq) = (self.rnic.alloc_pd(), self.rnic.create_cq(64).unwrap());
        let qp = pd.create_qp(QpConfig::new(&cq)).unwrap();
        let memory = pd.reg_mr(MESSAGE_LEN, Access::LOCAL_WRITE).unwrap();
        End { qp, cq, memory }
    }
}

/// Connects two ends, of one host or of two.
fn connect(from: (&Host, &End), to: (&Host, &End), at: &str) -> [Connection; 2] {
    let at: SocketAddr = at.parse().unwrap();
    let listener = to.0.endpoint.listen(at, ListenParams::default()).unwrap();
    let options = ConnectOptions::default();
    let connecting = from.0.endpoint.connect(listener.local(), &from.1.qp, &options).unwrap();
    thread::scope(|scope| {
        let near = scope.spawn(|| connecting.wait(PATIENCE).unwrap());
        let request = listener.next_request(PATIENCE).unwrap().expect("a peer connects");
        let far = request.accept(&to.1.qp, &Offer::default()).unwrap().wait(PATIENCE).unwrap();
        [near.join().unwrap(), far]
    })
}

fn post_receives(end: &End) {
    for id in 0..MESSAGES {
        end.qp.post_recv(RecvWr::new(WrId(id), [end.memory.sge(0..MESSAGE_LEN)])).unwrap();
    }
}

fn post_sends(end: &End) {
    for id in 0..MESSAGES {
        end.qp.post_send(SendWr::send(WrId(id), [end.memory.sge(0..MESSAGE_LEN)])).unwrap();
    }
}

#[test]
fn finish_sends_posted_work_and_then_closes() {
    for own_thread in [true, false] {
        for is_kernel in [true, false] {
            let (client, server, at) = if is_kernel {
                (Host::kernel(own_thread), Host::kernel(true), "127.0.0.1:0")
            } else {
                let (a, b) = pair(LinkConfig::default());
                (Host::on(a, 1, own_thread), Host::on(b, 2, true), "10.0.0.2:7")
            };
            let (near, far) = (client.end(), server.end());
            post_receives(&far);
            let [_kept, accepted] = connect((&client, &near), (&server, &far), at);
            post_sends(&near);
            assert_eq!(client.endpoint.finish(PATIENCE), Ok(()));
            // From here on only the kernel works, or nothing.
            for _ in 0..MESSAGES {
                let wc = server.endpoint.wait(&far.cq, PATIENCE).unwrap().expect("a message");
                assert_eq!(wc.status, WcStatus::Success, "kernel {is_kernel}, {own_thread}");
            }
            let told = accepted.next_event(PATIENCE).unwrap();
            assert_eq!(told, Some(ConnectionEvent::PeerClosed), "kernel {is_kernel}");
        }
    }
}

#[test]
fn a_peer_that_does_not_answer_is_reset_when_the_time_is_over() {
    let (a, b) = pair(LinkConfig::default());
    let (client, server) = (Host::on(a, 1, true), Host::on(b, 2, false));
    let (near, far) = (client.end(), server.end());
    let [_kept, accepted] = connect((&client, &near), (&server, &far), "10.0.0.2:7");
    // No thread polls the server now.
    post_sends(&near);
    let begin = monotonic_now();
    assert_eq!(client.endpoint.finish(Duration::from_millis(300)), Err(Error::Timeout));
    let took = monotonic_now() - begin;
    assert!(took >= Duration::from_millis(300) && took < PATIENCE / 2, "{took:?}");
    let until = monotonic_now() + PATIENCE;
    while !matches!(accepted.next_event(PATIENCE).unwrap(), Some(ConnectionEvent::Closed(_))) {
        assert!(monotonic_now() < until, "the reset comes");
    }
}

#[test]
fn pending_connect_does_not_delay_finish() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Host::kernel(true);
    let near = client.end();
    let at = silent.local_addr().unwrap();
    let _kept = client.endpoint.connect(at, &near.qp, &ConnectOptions::default()).unwrap();
    let begin = monotonic_now();
    // Any result is accepted.
    let _refused = client.endpoint.finish(Duration::from_millis(300));
    assert!(monotonic_now() - begin < PATIENCE / 2);
    // Without connections there is nothing to wait for.
    let begin = monotonic_now();
    assert_eq!(Host::kernel(true).endpoint.finish(PATIENCE), Ok(()));
    assert!(monotonic_now() - begin < PATIENCE / 2);
}

#[test]
fn an_interface_connects_to_itself() {
    for own_thread in [true, false] {
        let (a, _b) = pair(LinkConfig::default());
        let host = Host::on(a, 1, own_thread);
        let (near, far) = (host.end(), host.end());
        post_receives(&far);
        let _kept = connect((&host, &near), (&host, &far), "10.0.0.1:7");
        post_sends(&near);
        for _ in 0..MESSAGES {
            let wc = host.endpoint.wait(&far.cq, PATIENCE).unwrap().expect("a message");
            assert_eq!(wc.status, WcStatus::Success);
        }
        let (nothing, options) = ("10.0.0.1:9".parse().unwrap(), ConnectOptions::default());
        let alone = host.end();
        let connecting = host.endpoint.connect(nothing, &alone.qp, &options).unwrap();
        let refused = connecting.wait(PATIENCE).unwrap_err();
        assert_ne!(refused, Error::Timeout, "nothing listens there");
        assert_eq!(host.endpoint.finish(PATIENCE), Ok(()));
    }
}
