//! The maximum number of connections of one port, and messages over all of them.

use std::net::SocketAddr;

use urnic_engine::poll::Lockstep;
use urnic_engine::port::{ConnectParams, ConnectionId, PortConfig, PortError, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Cq, Mr, Pd, Qp, QpConfig, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_testkit::crowd;
use urnic_testkit::pair::{A, B, TCP_PORT, all_access, config, poller_of};

/// Bytes of a message.
const LEN: usize = 64;

/// One end, with `LEN` bytes of memory for each connection.
struct End {
    rnic: Rnic,
    pd: Pd,
    cq: Cq,
    qps: Vec<Qp>,
    memory: Mr,
}

impl End {
    fn new(seed: u64, count: usize) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(2 * count).unwrap());
        let qp = || QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(&cq) };
        let qps = (0..count).map(|_| pd.create_qp(qp()).unwrap()).collect();
        let memory = pd.reg_mr(LEN * count, all_access()).unwrap();
        Self { rnic, pd, cq, qps, memory }
    }
}

/// Two ports with their maximum of `count` connections.
struct Crowd {
    link: Lockstep<MemoryDevice, MemoryDevice>,
    ends: [End; 2],
    connections: [Vec<ConnectionId>; 2],
}

/// Returns the bytes of a connection at an end.
fn pattern(end: u8, index: usize) -> [u8; LEN] {
    let mut octets = [end; LEN];
    octets[..8].copy_from_slice(&index.to_be_bytes());
    octets
}

impl Crowd {
    fn new(count: usize) -> Self {
        let ends = [End::new(1, count), End::new(2, count)];
        let (device_a, device_b) = memory::pair(LinkConfig::default());
        let of = |address| PortConfig { connections_max: count, ..config(address) };
        let a = poller_of(&ends[0].rnic, of(A), device_a);
        let b = poller_of(&ends[1].rnic, of(B), device_b);
        let mut link = Lockstep::new(a, b);
        let connections = crowd::connect(&mut link, [&ends[0].qps, &ends[1].qps]);
        Self { link, ends, connections }
    }

    /// Writes over these connections from one end, each to its own memory at the other. The
    /// responder sends nothing before it has received an FPDU (RFC 5044 §7.1.2 (4)).
    fn write(&mut self, from: usize, indices: impl Iterator<Item = usize> + Clone) {
        let [near, far] = [&self.ends[from], &self.ends[1 - from]];
        let end = u8::try_from(from).unwrap();
        for index in indices.clone() {
            near.memory.region().write(LEN * index, &pattern(end, index)).unwrap();
            let local = near.memory.sge(LEN * index..LEN * (index + 1));
            let remote = far.memory.remote((LEN * index) as u64);
            near.qps[index].post_send(SendWr::write(WrId(index as u64), remote, [local])).unwrap();
        }
        let (count, mut completed) = (indices.clone().count(), 0);
        while completed < count {
            assert!(self.link.step(), "{completed} of {count}");
            while let Some(wc) = near.cq.poll() {
                assert_eq!(wc.status, WcStatus::Success);
                completed += 1;
            }
        }
        for index in indices {
            let mut octets = [0; LEN];
            far.memory.region().read(LEN * index, &mut octets).unwrap();
            assert_eq!(octets, pattern(end, index), "connection {index}");
        }
    }

    /// Closes all connections; `a` closes first.
    fn close(&mut self) {
        let (count, mut closed) = (self.connections[0].len(), [0; 2]);
        for id in &self.connections[0] {
            self.link.a.port.disconnect(*id).unwrap();
        }
        while closed != [count; 2] {
            assert!(self.link.step(), "{closed:?} of {count}");
            for (end, poller) in [&mut self.link.a, &mut self.link.b].into_iter().enumerate() {
                while let Some(event) = poller.port.poll_event() {
                    match event {
                        PortEvent::Stream { connection, event: StreamEvent::PeerClosed } => {
                            // It may have ended already at the end that closed first.
                            let _known = poller.port.disconnect(connection);
                        }
                        PortEvent::Closed { .. } => closed[end] += 1,
                        _ => {}
                    }
                }
            }
        }
    }
}

#[test]
fn messages_of_10_000_connections_of_a_port_arrive_and_all_of_them_close() {
    const COUNT: usize = 10_000;
    let mut crowd = Crowd::new(COUNT);
    for end in [0, 1] {
        crowd.write(end, 0..COUNT);
    }
    crowd.close();
    let waiting = crowd.link.a.port.time_wait_count();
    assert_eq!((crowd.link.a.port.connection_count(), waiting), (COUNT, COUNT));
    assert_eq!(crowd.link.b.port.connection_count(), 0);
}

#[test]
fn port_configured_for_100_000_connections_has_exactly_that_limit() {
    const COUNT: usize = 100_000;
    let mut crowd = Crowd::new(COUNT);
    let remote = SocketAddr::from((B, TCP_PORT));
    let [a, _] = &crowd.ends;
    let another = a.pd.create_qp(QpConfig::new(&a.cq)).unwrap();
    let (now, port) = (crowd.link.now(), &mut crowd.link.a.port);
    let refused = port.connect(now, remote, &another, &ConnectParams::default());
    assert_eq!(refused.unwrap_err(), PortError::Exhausted);
    crowd.write(0, (0..COUNT).step_by(99));
}
