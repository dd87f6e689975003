//! Two ends with wires that tests can cut, change and observe.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use urnic_engine::mpa::startup::Offer;
use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{
    ConnectParams, ConnectionCounters, ConnectionId, ListenParams, Port, PortConfig, PortEvent,
};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{SendWr, WcStatus};
use urnic_netdev::Device;
use urnic_netdev::memory::{self, Link, LinkConfig};

use crate::network::wire::{Middle, Verdict, Wire};
use urnic_testkit::pair::{self, A, B, End, TCP_PORT, all_access, content, fill};

pub(crate) const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Half a millisecond one way.
pub(crate) const LINK: LinkConfig = pair::gigabit(500_000, 4096);

/// Two ends: `a` connects, `b` listens.
pub(crate) struct Scene {
    pub(crate) link: Lockstep<Wire, Wire>,
    pub(crate) a: End,
    pub(crate) b: End,
    /// Events of the ports that do not belong to a stream.
    pub(crate) said: [Vec<PortEvent>; 2],
    pub(crate) closed: Vec<ConnectionCounters>,
    pub(crate) wire: Link,
    writes: u8,
}

pub(crate) fn config(address: Ipv4Addr, address_v6: Ipv6Addr) -> PortConfig {
    PortConfig { ipv6: Some((address_v6, 64)), ..PortConfig::for_ipv4(address) }
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(LINK, config(A, A6), config(B, B6))
    }

    pub(crate) fn with(link: LinkConfig, of_a: PortConfig, of_b: PortConfig) -> Self {
        let (device_a, device_b) = memory::pair(link);
        let wire = device_a.link();
        let (a, b) = (End::new(1), End::new(2));
        let poller = |end: &End, config: PortConfig, device| {
            let device = Wire::new(device, config.mac);
            Poller::new(Port::new(&end.rnic, config, device.capabilities()), device)
        };
        let mut link = Lockstep::new(poller(&a, of_a, device_a), poller(&b, of_b, device_b));
        link.b.port.listen(TCP_PORT, ListenParams::default()).unwrap();
        let said = [Vec::new(), Vec::new()];
        Self { link, a, b, said, closed: Vec::new(), wire, writes: 0 }
    }

    /// Inserts something between `a` and the link.
    pub(crate) fn behind_a(&mut self, middle: impl FnMut(&[u8]) -> Verdict + 'static) {
        let middle: Middle = Rc::new(RefCell::new(middle));
        self.link.a.device.middle = Some(middle);
    }

    /// Inserts something between `b` and the link.
    pub(crate) fn behind_b(&mut self, middle: impl FnMut(&[u8]) -> Verdict + 'static) {
        let middle: Middle = Rc::new(RefCell::new(middle));
        self.link.b.device.middle = Some(middle);
    }

    /// Starts to connect to `address`.
    pub(crate) fn begin(&mut self, address: IpAddr) {
        let remote = SocketAddr::new(address, TCP_PORT);
        let params = ConnectParams { offer: OFFER, ..ConnectParams::default() };
        let now = self.link.now();
        let id = self.link.a.port.connect(now, remote, &self.a.qp, &params).unwrap();
        self.a.connection = Some(id);
    }

    /// Connects to `address`.
    pub(crate) fn connect(&mut self, address: IpAddr) {
        self.begin(address);
        let connected = self.run_for(Duration::from_secs(60), |scene| {
            scene.a.events.iter().any(|event| matches!(event, StreamEvent::Established(_)))
        });
        assert!(connected, "{:?} {:?}", self.a.events, self.b.events);
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.a.connection.expect("connected")
    }

    /// Moves `len` bytes from `a` to `b` within `limit`; true if they arrived and are right.
    pub(crate) fn write_within(&mut self, len: usize, limit: Duration) -> bool {
        self.write_while(len, limit, |_| {})
    }

    /// Does the same; `meanwhile` is called at every step.
    pub(crate) fn write_while(
        &mut self,
        len: usize,
        limit: Duration,
        mut meanwhile: impl FnMut(&mut Self),
    ) -> bool {
        self.writes += 1;
        let source = self.a.pd.reg_mr(len, all_access()).unwrap();
        let target = self.b.pd.reg_mr(len, all_access()).unwrap();
        let octets = fill(&source, self.writes);
        let wr = SendWr::write(WrId(1), target.remote(0), [source.sge(0..len)]);
        self.a.qp.post_send(wr).unwrap();
        let cq = self.a.cq.clone();
        let mut wc = None;
        let done = self.run_for(limit, |scene| {
            meanwhile(scene);
            wc = wc.or_else(|| cq.poll());
            wc.is_some()
        });
        done && wc.is_some_and(|wc| wc.status == WcStatus::Success) && content(&target) == octets
    }

    /// Runs until `done` returns true, for at most `limit` of virtual time.
    pub(crate) fn run_for(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        pair::run_for(
            self,
            limit,
            |scene| &mut scene.link,
            |scene| {
                scene.collect_events();
                done(scene)
            },
        )
    }

    fn collect_events(&mut self) {
        while let Some(event) = self.link.a.port.poll_event() {
            match event {
                PortEvent::Stream { event, .. } => self.a.events.push(event),
                PortEvent::Closed { counters, .. } => self.closed.push(*counters),
                other => self.said[0].push(other),
            }
        }
        while let Some(event) = self.link.b.port.poll_event() {
            match event {
                PortEvent::Incoming { connection, .. } => self.b.connection = Some(connection),
                PortEvent::Stream { connection, event } => {
                    if matches!(event, StreamEvent::Request(_)) {
                        self.link.b.port.accept(connection, &self.b.qp, &OFFER).unwrap();
                    }
                    self.b.events.push(event);
                }
                other => self.said[1].push(other),
            }
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.link.now()
    }
}

const OFFER: Offer<'static> = Offer { private_data: b"", ird: 8, ord: 8 };
