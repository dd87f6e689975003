//! Memory that several sides use at once: changed while it is read, and by Atomics.

use std::thread;

use super::{Host, LOOPBACK, PATIENCE, contents};
use urnic::{
    Access, ConnectOptions, Connection, Endpoint, EndpointConfig, ListenParams, Offer, Qp,
    QpConfig, Rnic, RnicConfig, SendWr, WcStatus, WrId,
};

/// Applications change memory that peers read: a Response has the bytes of one moment, and its CRC
/// matches them.
#[test]
fn memory_that_changes_is_read_without_an_error() {
    for (len, at, reads) in [(8, 0, 3000), (4096, 8, 1000), (64 << 10, 8, 200)] {
        let (server, client) = (Host::new(true, 61), Host::new(true, 62));
        let memory = server.pd.reg_mr(len, Access::REMOTE_READ).unwrap();
        let (server_qp, client_qp) = (server.qp(), client.qp());
        let address = LOOPBACK.parse().unwrap();
        let listener = server.endpoint.listen(address, ListenParams::default()).unwrap();
        let connecting = client
            .endpoint
            .connect(listener.local(), &client_qp, &ConnectOptions::default())
            .unwrap();
        let request = listener.next_request(PATIENCE).unwrap().unwrap();
        let offer = Offer { ird: 8, ord: 8, private_data: b"" };
        let _serving = request.accept(&server_qp, &offer).unwrap().wait(PATIENCE).unwrap();
        let _connection = connecting.wait(PATIENCE).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let (sink, remote) =
            (client.pd.reg_mr(len, Access::LOCAL_WRITE).unwrap(), memory.remote(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0_u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    memory.copy_in(at.min(len - 8), &value.to_le_bytes());
                    value += 1;
                    if value.is_multiple_of(16) {
                        thread::yield_now();
                    }
                }
            });
            let mut status = WcStatus::Success;
            for id in 0..reads {
                let read = SendWr::read(WrId(id), remote, sink.sge(0..len));
                client_qp.post_send(read).unwrap();
                status = client.endpoint.wait(&client.cq, PATIENCE).unwrap().unwrap().status;
                if status != WcStatus::Success {
                    break;
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(status, WcStatus::Success, "{len} octets");
        });
    }
}

/// RFC 7306 §5: Atomics of all streams of an RNIC are atomic against each other, even if threads of
/// several endpoints execute them.
// spec: EXT-5-1, EXT-5.4-2
#[test]
fn atomics_of_several_streams_and_endpoints_lose_none() {
    const STREAMS: usize = 4;
    const ADDS: u64 = 300;
    let rnic = Rnic::new(RnicConfig { seed: 71.into() });
    let config = EndpointConfig { own_thread: true, ..EndpointConfig::default() };
    let endpoints = [(); 2].map(|()| Endpoint::kernel(&rnic, &config).unwrap());
    let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(64).unwrap());
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let word = pd.reg_mr(8, access).unwrap();
    let remote = word.remote(0);
    let listeners = endpoints.each_ref().map(|endpoint| {
        endpoint.listen(LOOPBACK.parse().unwrap(), ListenParams::default()).unwrap()
    });
    let serving: std::sync::Mutex<Vec<(Connection, Qp)>> = std::sync::Mutex::default();
    let mut seen = thread::scope(|scope| {
        let clients: Vec<_> = (0..STREAMS)
            .map(|number| {
                let address = listeners[number % 2].local();
                scope.spawn(move || {
                    let client = Host::new(true, 80 + number as u64);
                    let qp = client.qp();
                    let options = ConnectOptions::default();
                    let connecting = client.endpoint.connect(address, &qp, &options).unwrap();
                    let _connection = connecting.wait(PATIENCE).unwrap();
                    let mut values = Vec::new();
                    for id in 0..ADDS {
                        let add = urnic::SendOp::FetchAdd { remote, add: 1, mask: 0 };
                        qp.post_send(SendWr::new(WrId(id), add, [])).unwrap();
                        let wc = client.endpoint.wait(&client.cq, PATIENCE).unwrap().unwrap();
                        assert_eq!(wc.status, WcStatus::Success);
                        values.push(wc.value);
                    }
                    values
                })
            })
            .collect();
        for number in 0..STREAMS {
            let request = listeners[number % 2].next_request(PATIENCE).unwrap().unwrap();
            let (send_cq, recv_cq) = (cq.clone(), cq.clone());
            let qp = pd
                .create_qp(QpConfig {
                    send_depth: 8,
                    recv_depth: 8,
                    ..QpConfig::with_cqs(send_cq, recv_cq)
                })
                .unwrap();
            let offer = Offer { ird: 8, ord: 8, private_data: b"" };
            let connection = request.accept(&qp, &offer).unwrap().wait(PATIENCE).unwrap();
            serving.lock().unwrap().push((connection, qp));
        }
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<u64>>()
    });
    seen.sort_unstable();
    let total = STREAMS as u64 * ADDS;
    assert!(seen.into_iter().eq(0..total), "every value was returned exactly once");
    assert_eq!(contents(&word, 8), total.to_ne_bytes());
}
