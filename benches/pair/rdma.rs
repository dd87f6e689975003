//! urnic's side: a stream of RDMA Writes between two ports.

use std::net::{Ipv4Addr, SocketAddr};

use urnic::driver::{Lockstep, Poller};
use urnic::mem::Access;
use urnic::mpa::startup::{Offer, StartupConfig};
use urnic::port::{ConnectParams, ListenParams, Port, PortConfig, PortEvent};
use urnic::stream::StreamEvent;
use urnic::types::WrId;
use urnic::verbs::{Cq, Mr, Pd, Qp, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_netdev::Device;
use urnic_netdev::memory::{self, MemoryDevice};

use crate::case::{self, MEMORY_LEN, MESSAGE_LEN, WINDOW};

const INITIATOR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const RESPONDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const TCP_PORT: u16 = 7174;

/// What one application holds.
struct End {
    rnic: Rnic,
    pd: Pd,
    cq: Cq,
    qp: Qp,
}

impl End {
    fn new(seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed });
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(2 * WINDOW);
        let config = QpConfig {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            send_depth: WINDOW,
            recv_depth: WINDOW,
        };
        let qp = pd.create_qp(config).expect("a legal queue pair");
        Self { rnic, pd, cq, qp }
    }

    fn poller(&self, address: Ipv4Addr, device: MemoryDevice) -> Poller<MemoryDevice> {
        let port = Port::new(&self.rnic, PortConfig::for_ipv4(address), device.capabilities());
        Poller::new(port, device)
    }
}

/// Two ports with a connection in full operation between them.
pub(crate) struct Pair {
    link: Lockstep<MemoryDevice, MemoryDevice>,
    initiator: End,
    _responder: End,
    source: Mr,
    sink: Mr,
    posted: usize,
    completed: u64,
    target: u64,
}

impl Pair {
    /// Connects, moves some messages, and checks that every octet arrived.
    pub(crate) fn connect(case: &case::Rdma) -> Self {
        let (a, b) = (End::new(1), End::new(2));
        let (device_a, device_b) = memory::pair(case.link.config());
        let link = Lockstep::new(a.poller(INITIATOR, device_a), b.poller(RESPONDER, device_b));
        let source = a.pd.reg_mr(MEMORY_LEN, Access::LOCAL_WRITE).expect("memory");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let sink = b.pd.reg_mr(MEMORY_LEN, access).expect("memory");
        let mut pair = Self {
            link,
            initiator: a,
            _responder: b,
            source,
            sink,
            posted: 0,
            completed: 0,
            target: 0,
        };
        let startup =
            StartupConfig { crc: case.crc, markers: case.markers, ..StartupConfig::default() };
        pair.start(startup);
        let expected = case::pattern();
        pair.source.copy_in(0, &expected);
        pair.advance(4 * WINDOW as u64);
        let mut arrived = vec![0; MEMORY_LEN];
        pair.sink.copy_out(0, &mut arrived);
        assert!(arrived == expected, "every octet arrives with {case:?}");
        pair
    }

    fn start(&mut self, startup: StartupConfig) {
        let listen = ListenParams { startup, ..ListenParams::default() };
        self.link.b.port.listen(TCP_PORT, listen).expect("a free TCP port");
        let offer = Offer::default();
        let params = ConnectParams { startup, offer, ..ConnectParams::default() };
        let remote = SocketAddr::from((RESPONDER, TCP_PORT));
        let now = self.link.now();
        self.link.a.port.connect(now, remote, &self.initiator.qp, &params).expect("a route");
        let mut established = false;
        while !established {
            assert!(self.link.step(), "the startup goes on");
            while let Some(event) = self.link.b.port.poll_event() {
                if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                    let qp = &self._responder.qp;
                    self.link.b.port.accept(connection, qp, &offer).expect("a request to accept");
                }
            }
            while let Some(event) = self.link.a.port.poll_event() {
                let event_is_start =
                    matches!(event, PortEvent::Stream { event: StreamEvent::Established(_), .. });
                established |= event_is_start;
            }
        }
    }

    /// Goes on until `messages` more have completed, with the window always full.
    pub(crate) fn advance(&mut self, messages: u64) {
        self.target += messages;
        loop {
            while let Some(wc) = self.initiator.cq.poll() {
                assert_eq!(wc.status, WcStatus::Success);
                self.completed += 1;
            }
            if self.completed >= self.target {
                return;
            }
            while (self.posted as u64) < self.completed + WINDOW as u64 {
                self.post();
            }
            assert!(self.link.step(), "something is under way");
        }
    }

    fn post(&mut self) {
        let id = WrId(self.posted as u64);
        let write = SendWr::write(id, self.sink.remote(0), [self.source.sge(0..MESSAGE_LEN)]);
        self.initiator.qp.post_send(write).expect("the window fits the queue");
        self.posted += 1;
    }
}
