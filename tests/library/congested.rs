//! A device whose descriptor is writable, but which takes no frame, like a packet socket whose
//! interface has a full queue. The worker neither spins nor loses the frame.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use urnic::{
    Access, ConnectOptions, Endpoint, EndpointConfig, ListenParams, Offer, PortConfig, QpConfig,
    RecvWr, Rnic, RnicConfig, SendWr, WcStatus, WrId, monotonic_now,
};
use urnic_engine::time::Duration;
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Capabilities, Device, RxFrame, TransmitError, TxFrame};

const PATIENCE: Duration = Duration::from_secs(20);
const CONGESTED_FOR: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Queue {
    is_full: AtomicBool,
    refused: AtomicU64,
}

/// A link in memory behind a queue that may be full.
#[derive(Debug)]
struct Congested {
    device: MemoryDevice,
    /// Always writable, never readable.
    descriptor: OwnedFd,
    queue: Arc<Queue>,
}

impl Device for Congested {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.device.receive(now_ns, burst, sink)
    }

    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.queue.is_full.load(Ordering::Relaxed) {
            self.queue.refused.fetch_add(1, Ordering::Relaxed);
            return Err(TransmitError::Full);
        }
        self.device.transmit(now_ns, frame)
    }

    fn flush(&mut self, now_ns: u64) {
        self.device.flush(now_ns);
    }

    fn check_interval_ns(&self) -> Option<u64> {
        // Received frames do not make this descriptor readable.
        Some(2_000_000)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }
}

#[test]
fn full_queue_behind_a_writable_descriptor_is_polled_periodically() {
    let (near, far) = memory::pair(LinkConfig::default());
    let queue = Arc::new(Queue::default());
    let descriptor = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let near = Congested { device: near, descriptor, queue: Arc::clone(&queue) };
    let config = EndpointConfig::default();
    let rnics = [1, 2].map(|seed: u64| Rnic::new(RnicConfig { seed: seed.into() }));
    let port = |last| PortConfig::for_ipv4(Ipv4Addr::new(10, 0, 0, last));
    let client = Endpoint::on_device(&rnics[0], near, port(1), &config).unwrap();
    let server = Endpoint::on_device(&rnics[1], far, port(2), &config).unwrap();
    let [(qp, cq, memory), (server_qp, server_cq, inbox)] = rnics.each_ref().map(|rnic| {
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16).unwrap());
        let qp = pd.create_qp(QpConfig::new(&cq)).unwrap();
        (qp, cq, pd.reg_mr(8, Access::LOCAL_WRITE).unwrap())
    });
    let at = SocketAddr::from(([10, 0, 0, 2], 7174));
    let listener = server.listen(at, ListenParams::default()).unwrap();
    let connecting = client.connect(at, &qp, &ConnectOptions::default()).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().expect("comes");
    let accepting = request.accept(&server_qp, &Offer::default()).unwrap();
    let _opened = connecting.wait(PATIENCE).unwrap();
    let _accepted = accepting.wait(PATIENCE).unwrap();
    server_qp.post_recv(RecvWr::new(WrId(1), [inbox.sge(0..8)])).unwrap();

    let began = monotonic_now();
    queue.is_full.store(true, Ordering::Relaxed);
    qp.post_send(SendWr::send(WrId(2), [memory.sge(0..8)])).unwrap();
    // On a busy machine the worker may run late: then it has more time to retry, and may retry more
    // often.
    let (refused, elapsed) = loop {
        thread::park_timeout(CONGESTED_FOR);
        let refused = queue.refused.load(Ordering::Relaxed);
        let elapsed = monotonic_now() - began;
        if refused >= 10 && elapsed >= CONGESTED_FOR {
            break (refused, elapsed);
        }
        assert!(elapsed < PATIENCE, "offered {refused} times in {elapsed:?}");
    };
    let most = 10 * elapsed.as_millis();
    assert!(u128::from(refused) < most, "offered {refused} times in {elapsed:?}");
    queue.is_full.store(false, Ordering::Relaxed);
    for (endpoint, cq) in [(&server, &server_cq), (&client, &cq)] {
        let wc = endpoint.wait(cq, PATIENCE).unwrap().expect("goes out in the end");
        assert_eq!(wc.status, WcStatus::Success);
    }
}
