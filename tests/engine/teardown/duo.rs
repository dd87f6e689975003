//! Two ports with any number of connections between them.

use std::net::{Ipv4Addr, SocketAddr};

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::Offer;
use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{
    ConnectParams, ConnectionCounters, ConnectionId, ListenParams, Port, PortConfig, PortEvent,
};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{
    Cq, Mr, Pd, Qp, QpConfig, RecvWr, Rnic, RnicConfig, SendWr, Wc, WcStatus,
};
use urnic_netdev::Device;
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, Link, LinkConfig, MemoryDevice};
use urnic_testkit::pair::{self, A, B, TCP_PORT};

const ADDRESSES: [Ipv4Addr; 2] = [A, B];
pub(crate) const OFFER: Offer<'static> = Offer { private_data: b"", ird: 8, ord: 8 };

/// A link whose round trip is long enough for messages to cross.
pub(crate) const LINK: LinkConfig = pair::gigabit(100_000, 1024);

/// One end of the link: a port and its objects.
pub(crate) struct Side {
    pub(crate) rnic: Rnic,
    pub(crate) pd: Pd,
    pub(crate) memory: Mr,
    pub(crate) events: Vec<(ConnectionId, StreamEvent)>,
    pub(crate) incoming: Vec<ConnectionId>,
    pub(crate) closed: Vec<(ConnectionId, Box<ConnectionCounters>)>,
}

/// A queue pair and its queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub(crate) qp: Qp,
    pub(crate) send: Cq,
    pub(crate) recv: Cq,
}

pub(crate) struct Duo {
    pub(crate) lockstep: Lockstep<Impair<MemoryDevice>, Impair<MemoryDevice>>,
    pub(crate) sides: [Side; 2],
    /// The link.
    pub(crate) wire: Link,
}

impl Side {
    fn new(seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let pd = rnic.alloc_pd();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.reg_mr(1 << 20, access).unwrap();
        let octets: Vec<u8> = (0..memory.len()).map(|i| (i + (i >> 8)) as u8 | 1).collect();
        memory.copy_in(0, &octets);
        let (events, incoming, closed) = (Vec::new(), Vec::new(), Vec::new());
        Self { rnic, pd, memory, events, incoming, closed }
    }

    /// Makes a queue pair with completion queues of this depth.
    pub(crate) fn queues(&self, depth: usize) -> Queues {
        let (send, recv) =
            (self.rnic.create_cq(depth).unwrap(), self.rnic.create_cq(depth).unwrap());
        let config = QpConfig {
            send_depth: 64,
            recv_depth: 64,
            ..QpConfig::with_cqs(send.clone(), recv.clone())
        };
        Queues { qp: self.pd.create_qp(config).unwrap(), send, recv }
    }

    pub(crate) fn saw(&self, id: ConnectionId, matching: impl Fn(&StreamEvent) -> bool) -> bool {
        self.events.iter().any(|(connection, event)| *connection == id && matching(event))
    }
}

impl Queues {
    /// Takes all completions of the send queue.
    pub(crate) fn sent(&self) -> Vec<(u64, WcStatus)> {
        drain(&self.send)
    }

    /// Takes all completions of the receive queue.
    pub(crate) fn received(&self) -> Vec<(u64, WcStatus)> {
        drain(&self.recv)
    }

    pub(crate) fn post_receive(&self, id: u64, memory: &Mr, len: usize) {
        self.qp.post_recv(RecvWr::new(WrId(id), [memory.sge(0..len)])).unwrap();
    }

    pub(crate) fn post_send(&self, id: u64, memory: &Mr, len: usize) {
        self.qp.post_send(SendWr::send(WrId(id), [memory.sge(0..len)])).unwrap();
    }
}

fn drain(cq: &Cq) -> Vec<(u64, WcStatus)> {
    std::iter::from_fn(|| cq.poll()).map(|Wc { wr_id, status, .. }| (wr_id.0, status)).collect()
}

impl Duo {
    pub(crate) fn new(link: LinkConfig, impair: ImpairConfig, seed: u64) -> Self {
        let (a, b) = memory::pair(link);
        let wire = a.link();
        let sides = [Side::new(seed), Side::new(seed + 1)];
        let mut index = 0;
        let [a, b] = [a, b].map(|device| {
            let device = Impair::new(device, impair, seed * 2 + index as u64);
            let config = PortConfig::for_ipv4(ADDRESSES[index]);
            let port = Port::new(&sides[index].rnic, config, device.capabilities());
            index += 1;
            Poller::new(port, device)
        });
        Self { lockstep: Lockstep::new(a, b), sides, wire }
    }

    /// Returns two ends over a perfect link, with a listener at the second side.
    pub(crate) fn listening() -> Self {
        let mut duo = Self::new(LINK, ImpairConfig::default(), 1);
        duo.port(1).listen(TCP_PORT, ListenParams::default()).unwrap();
        duo
    }

    pub(crate) const fn port(&mut self, side: usize) -> &mut Port {
        if side == 0 { &mut self.lockstep.a.port } else { &mut self.lockstep.b.port }
    }

    pub(crate) const fn now(&self) -> Instant {
        self.lockstep.now()
    }

    pub(crate) fn listener() -> SocketAddr {
        SocketAddr::from((ADDRESSES[1], TCP_PORT))
    }

    /// Connects the first side to the second.
    pub(crate) fn connect(&mut self, queues: [&Queues; 2]) -> [ConnectionId; 2] {
        let params = ConnectParams { offer: OFFER, ..ConnectParams::default() };
        let (now, remote) = (self.now(), Self::listener());
        let initiator = self.port(0).connect(now, remote, &queues[0].qp, &params).unwrap();
        let before = self.sides[1].incoming.len();
        self.until(|duo| {
            let incoming = duo.sides[1].incoming.get(before);
            incoming.is_some_and(|&id| duo.sides[1].saw(id, is_request))
        });
        let responder = self.sides[1].incoming[before];
        self.port(1).accept(responder, &queues[1].qp, &OFFER).unwrap();
        self.until(|duo| duo.sides[0].saw(initiator, is_established));
        [initiator, responder]
    }

    /// Runs until `done` returns true, which must happen within ten minutes.
    pub(crate) fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let deadline = self.now() + Duration::from_secs(600);
        let mut silent = false;
        loop {
            self.collect();
            if done(self) {
                return;
            }
            let (a, b) = (&self.sides[0].events, &self.sides[1].events);
            let over = silent || self.now() >= deadline;
            assert!(!over, "it never happened, until {}: {a:?} {b:?}", self.now());
            silent = !self.lockstep.step();
        }
    }

    /// Lets some virtual time pass, or stops earlier if nothing will happen.
    pub(crate) fn run(&mut self, duration: Duration) {
        let deadline = self.now() + duration;
        while self.now() < deadline && self.lockstep.step_within(deadline) {
            self.collect();
        }
        self.collect();
    }

    fn collect(&mut self) {
        for side in [0, 1] {
            while let Some(event) = self.port(side).poll_event() {
                let world = &mut self.sides[side];
                match event {
                    PortEvent::Incoming { connection, .. } => world.incoming.push(connection),
                    PortEvent::Stream { connection, event } => {
                        world.events.push((connection, event));
                    }
                    PortEvent::Closed { connection, counters } => {
                        world.closed.push((connection, counters));
                    }
                    PortEvent::LinkDown | PortEvent::LinkUp => {}
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
    }

    /// Waits until every connection is gone; nothing may be left of any.
    pub(crate) fn ends_empty(&mut self) {
        self.until(|duo| [0, 1].iter().all(|side| duo.port(*side).connection_count() == 0));
        for side in [0, 1] {
            assert_eq!(self.port(side).bytes_held(), 0);
        }
    }
}

pub(crate) fn is_request(event: &StreamEvent) -> bool {
    matches!(event, StreamEvent::Request(_))
}

pub(crate) fn is_established(event: &StreamEvent) -> bool {
    matches!(event, StreamEvent::Established(_))
}
