//! Two connected ends on a memory link, for tests.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a setup that fails fails its test")]
#![allow(clippy::cast_possible_truncation, reason = "test patterns are made of low octets")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use urnic::driver::{Lockstep, Poller};
use urnic::mem::Access;
use urnic::mpa::startup::{Offer, StartupConfig};
use urnic::port::{
    ConnectParams, ConnectionId, ListenParams, LowerLayer, Port, PortConfig, PortEvent,
};
use urnic::stream::StreamEvent;
use urnic::time::{Duration, Instant};
use urnic::verbs::{Cq, Mr, Pd, Qp, QpConfig, Rnic, RnicConfig, Wc};
use urnic_netdev::Device;
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};

/// Address of the initiator.
pub(crate) const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Address of the responder.
pub(crate) const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Where the responder listens.
pub(crate) const TCP_PORT: u16 = 7174;

/// What one application holds.
pub(crate) struct End {
    pub(crate) rnic: Rnic,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) events: Vec<StreamEvent>,
}

impl End {
    pub(crate) fn new(seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed });
        let pd = rnic.alloc_pd();
        let cq = rnic.create_cq(4096);
        let config =
            QpConfig { send_cq: cq.clone(), recv_cq: cq.clone(), send_depth: 256, recv_depth: 256 };
        let qp = pd.create_qp(config).unwrap();
        Self { rnic, pd, cq, qp, connection: None, events: Vec::new() }
    }
}

/// How a pair is set up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup {
    pub(crate) link: LinkConfig,
    pub(crate) impair: ImpairConfig,
    pub(crate) startup: StartupConfig,
    pub(crate) lower_layer: LowerLayer,
    pub(crate) ipv6: bool,
    pub(crate) seed: u64,
}

/// The link type of the tests.
pub(crate) type Link = Lockstep<Impair<MemoryDevice>, Impair<MemoryDevice>>;

/// Two ends with an MPA connection between them.
pub(crate) struct Pair {
    pub(crate) link: Link,
    pub(crate) a: End,
    pub(crate) b: End,
}

pub(crate) fn poller<D: Device>(rnic: &Rnic, address: Ipv4Addr, device: D) -> Poller<D> {
    let ipv6 = Some((v6(address), 64));
    let config = PortConfig { ipv6, ..PortConfig::for_ipv4(address) };
    let port = Port::new(rnic, config, device.capabilities());
    Poller::new(port, device)
}

impl Pair {
    /// Connects `a` to `b`; panics if that takes more than a minute of virtual time.
    pub(crate) fn connect(setup: Setup) -> Self {
        let Setup { link, impair, startup, lower_layer, ipv6, seed } = setup;
        let (device_a, device_b) = memory::pair(link);
        let device_a = Impair::new(device_a, impair, seed.wrapping_mul(2) + 11);
        let device_b = Impair::new(device_b, impair, seed.wrapping_mul(2) + 12);
        let (a, b) = (End::new(seed.wrapping_add(1)), End::new(seed.wrapping_add(2)));
        let link = Lockstep::new(poller(&a.rnic, A, device_a), poller(&b.rnic, B, device_b));
        let mut pair = Self { link, a, b };
        let listen = ListenParams { startup, lower_layer, ..ListenParams::default() };
        pair.link.b.port.listen(TCP_PORT, listen).unwrap();
        let offer = Offer { private_data: b"hello", ird: 8, ord: 8 };
        let params = ConnectParams { startup, offer, lower_layer };
        let address = if ipv6 { IpAddr::V6(v6(B)) } else { IpAddr::V4(B) };
        let remote = SocketAddr::new(address, TCP_PORT);
        let id = pair.link.a.port.connect(Instant::ZERO, remote, &pair.a.qp, &params).unwrap();
        pair.a.connection = Some(id);
        let connected = pair.run_for(Duration::from_secs(60), |pair| {
            let requested = pair.b.events.iter().any(|event| {
                matches!(event, StreamEvent::Request(request) if request.private_data == b"hello")
            });
            if requested && pair.b.events.len() == 1 {
                let id = pair.b.connection.unwrap();
                pair.link.b.port.accept(id, &pair.b.qp, &offer).unwrap();
            }
            pair.a.events.iter().any(|event| matches!(event, StreamEvent::Established(_)))
        });
        assert!(connected, "connected within a minute: {:?} {:?}", pair.a.events, pair.b.events);
        pair
    }

    /// Runs until `done`, at most for `limit` of virtual time. Collects events.
    pub(crate) fn run_for(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        run_for(
            self,
            limit,
            |pair| &mut pair.link,
            |pair| {
                pair.collect_events();
                done(pair)
            },
        )
    }

    fn collect_events(&mut self) {
        for (port, end) in
            [(&mut self.link.a.port, &mut self.a), (&mut self.link.b.port, &mut self.b)]
        {
            while let Some(event) = port.poll_event() {
                match event {
                    PortEvent::Incoming { connection, .. } => end.connection = Some(connection),
                    PortEvent::Stream { event, .. } => end.events.push(event),
                    PortEvent::Closed { .. } => end.connection = None,
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
    }

    /// The next completion of a queue, within a minute of virtual time.
    pub(crate) fn wait(&mut self, cq: &Cq) -> Wc {
        let mut wc = None;
        self.run_for(Duration::from_secs(60), |_| {
            wc = wc.or_else(|| cq.poll());
            wc.is_some()
        });
        wc.unwrap_or_else(|| panic!("no completion; {:?} {:?}", self.a.events, self.b.events))
    }
}

/// Runs the link of a scene until `done`, at most for `limit` of virtual time.
pub(crate) fn run_for<S, A: Device, B: Device>(
    scene: &mut S,
    limit: Duration,
    link: impl Fn(&mut S) -> &mut Lockstep<A, B>,
    mut done: impl FnMut(&mut S) -> bool,
) -> bool {
    let deadline = link(scene).now() + limit;
    loop {
        if done(scene) {
            return true;
        }
        if link(scene).now() >= deadline || !link(scene).step() {
            return done(scene);
        }
    }
}

/// The IPv6 address of an end.
pub(crate) fn v6(address: Ipv4Addr) -> Ipv6Addr {
    let [.., last] = address.octets();
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last))
}

/// All rights.
pub(crate) fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// The octets of a pattern.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// Fills a region with a pattern and returns it.
pub(crate) fn fill(mr: &Mr, seed: u8) -> Vec<u8> {
    let octets = pattern(seed, mr.len());
    mr.copy_in(0, &octets);
    octets
}

/// The octets of a region.
pub(crate) fn content(mr: &Mr) -> Vec<u8> {
    let mut octets = vec![0; mr.len()];
    mr.copy_out(0, &mut octets);
    octets
}
