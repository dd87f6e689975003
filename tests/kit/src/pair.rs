//! Two connected ends on a memory link, for tests.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a setup that fails fails its test")]
#![allow(clippy::cast_possible_truncation, reason = "test patterns are made of low octets")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::poll::{Lockstep, Poller};
use urnic_engine::port::{
    ConnectParams, ConnectionId, ListenParams, LowerLayer, Port, PortConfig, PortEvent,
};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Duration;
use urnic_engine::verbs::{
    CompletionLevel, Cq, Mr, Pd, Qp, QpConfig, QpRules, Rnic, RnicConfig, Wc,
};
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};
use urnic_netdev::{Device, Medium};

/// Address of the initiator.
pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Address of the responder.
pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Port of the responder's listener.
pub const TCP_PORT: u16 = 7174;

/// Objects of one application.
pub struct End {
    pub rnic: Rnic,
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub connection: Option<ConnectionId>,
    pub events: Vec<StreamEvent>,
}

impl End {
    pub fn new(seed: u64) -> Self {
        Self::with_depths(seed, 4096, 256)
    }

    /// Makes an end with a completion queue and two work queues of these depths.
    pub fn with_depths(seed: u64, cq_depth: usize, depth: usize) -> Self {
        Self::with_config(seed, cq_depth, |cq| QpConfig {
            send_depth: depth,
            recv_depth: depth,
            ..QpConfig::new(cq)
        })
    }

    /// Makes an end with a completion queue of this depth, and a queue pair with this
    /// configuration.
    pub fn with_config(seed: u64, cq_depth: usize, config: impl Fn(&Cq) -> QpConfig) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let (pd, cq) =
            (rnic.alloc_pd(), rnic.create_cq(cq_depth).expect("a depth within CQ_DEPTH_MAX"));
        let qp = pd.create_qp(config(&cq)).unwrap();
        Self { rnic, pd, cq, qp, connection: None, events: Vec::new() }
    }

    /// Makes a queue pair like the first.
    pub fn another_qp(&self) -> Qp {
        let (send_cq, recv_cq) = (self.cq.clone(), self.cq.clone());
        let config =
            QpConfig { send_depth: 64, recv_depth: 64, ..QpConfig::with_cqs(send_cq, recv_cq) };
        self.pd.create_qp(config).unwrap()
    }
}

/// Returns a link of 1 Gbit/s with this one-way latency, and room for this many frames.
pub const fn gigabit(latency_ns: u64, queue_frames: usize) -> LinkConfig {
    LinkConfig {
        mtu: 1500,
        latency_ns,
        rate_bits_per_second: Some(1_000_000_000),
        queue_frames,
        medium: Medium::Ethernet,
        super_frame_len_max: None,
        tx_checksum: false,
    }
}

/// Configuration of a pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    pub link: LinkConfig,
    pub impair: ImpairConfig,
    pub startup: StartupConfig,
    pub lower_layer: LowerLayer,
    pub ipv6: bool,
    pub rules: QpRules,
    pub completion: CompletionLevel,
    pub seed: u64,
}

/// The link type of most tests.
pub type Link = Lockstep<Impair<MemoryDevice>, Impair<MemoryDevice>>;

/// Two ends with a port each, on the two ends of a link. `a` is the initiator.
pub struct Pair<D = Impair<MemoryDevice>> {
    pub link: Lockstep<D, D>,
    pub a: End,
    pub b: End,
}

/// Returns the configuration of an end's port, with both versions of IP.
pub fn config(address: Ipv4Addr) -> PortConfig {
    PortConfig { ipv6: Some((v6(address), 64)), ..PortConfig::for_ipv4(address) }
}

pub fn poller<D: Device>(rnic: &Rnic, address: Ipv4Addr, device: D) -> Poller<D> {
    poller_of(rnic, config(address), device)
}

/// Does the same for a port with this configuration.
pub fn poller_of<D: Device>(rnic: &Rnic, config: PortConfig, device: D) -> Poller<D> {
    let port = Port::new(rnic, config, device.capabilities());
    Poller::new(port, device)
}

impl Pair {
    /// Connects `a` to `b`; panics if that takes more than a minute of virtual time.
    pub fn connect(setup: Setup) -> Self {
        let Setup { link, impair, startup, lower_layer, ipv6, .. } = setup;
        let Setup { rules, completion, seed, .. } = setup;
        let (device_a, device_b) = memory::pair(link);
        let device_a = Impair::new(device_a, impair, seed.wrapping_mul(2) + 11);
        let device_b = Impair::new(device_b, impair, seed.wrapping_mul(2) + 12);
        let ends = [1, 2].map(|index| {
            End::with_config(seed.wrapping_add(index), 4096, |cq| QpConfig {
                send_depth: 256,
                recv_depth: 256,
                rules,
                completion,
                ..QpConfig::new(cq)
            })
        });
        let mut pair = Self::new(ends, [config(A), config(B)], [device_a, device_b]);
        let offer = Offer { private_data: b"hello", ird: 8, ord: 8 };
        let address = if ipv6 { IpAddr::V6(v6(B)) } else { IpAddr::V4(B) };
        pair.establish(&ConnectParams { startup, offer, lower_layer }, address, &offer);
        pair
    }
}

impl<D: Device> Pair<D> {
    /// Makes ends with these ports on these devices, not connected yet.
    pub fn new(ends: [End; 2], configs: [PortConfig; 2], devices: [D; 2]) -> Self {
        let ([a, b], [config_a, config_b], [device_a, device_b]) = (ends, configs, devices);
        let link = Lockstep::new(
            poller_of(&a.rnic, config_a, device_a),
            poller_of(&b.rnic, config_b, device_b),
        );
        Self { link, a, b }
    }

    /// Makes `b` listen, connects `a` to `address`, which belongs to `b`, and accepts with
    /// `answer`; panics if that takes more than a minute of virtual time.
    pub fn establish(&mut self, params: &ConnectParams<'_>, address: IpAddr, answer: &Offer<'_>) {
        let ConnectParams { startup, offer, lower_layer } = *params;
        let listen = ListenParams { startup, lower_layer, ..ListenParams::default() };
        self.link.b.port.listen(TCP_PORT, listen).unwrap();
        let (now, remote) = (self.link.now(), SocketAddr::new(address, TCP_PORT));
        let id = self.link.a.port.connect(now, remote, &self.a.qp, params).unwrap();
        self.a.connection = Some(id);
        let mut is_accepted = false;
        let connected = self.run_for(Duration::from_secs(60), |pair| {
            let requested = pair.b.events.iter().any(|event| {
                matches!(event, StreamEvent::Request(request)
                    if request.private_data == offer.private_data)
            });
            if requested && !is_accepted {
                is_accepted = true;
                let id = pair.b.connection.unwrap();
                pair.link.b.port.accept(id, &pair.b.qp, answer).unwrap();
            }
            pair.a.events.iter().any(|event| matches!(event, StreamEvent::Established(_)))
        });
        assert!(connected, "connected within a minute: {:?} {:?}", self.a.events, self.b.events);
    }

    /// Runs until `done` returns true, for at most `limit` of virtual time. Collects events.
    pub fn run_for(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
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

    /// Connects two more queue pairs in the same way, and runs until the link is idle.
    pub fn connect_another(&mut self, a: &Qp, b: &Qp) {
        let offer = Offer { private_data: b"hello", ird: 8, ord: 8 };
        let params = ConnectParams { offer, ..ConnectParams::default() };
        let (now, remote) = (self.link.now(), SocketAddr::from((B, TCP_PORT)));
        self.link.a.port.connect(now, remote, a, &params).unwrap();
        self.b.connection = None;
        let (is_request, is_up) = (
            |event: &StreamEvent| matches!(event, StreamEvent::Request(_)),
            |event: &StreamEvent| matches!(event, StreamEvent::Established(_)),
        );
        self.a.events.clear();
        self.b.events.clear();
        let connected = self.run_for(Duration::from_secs(60), |pair| {
            if pair.b.events.iter().any(is_request) {
                pair.b.events.clear();
                let id = pair.b.connection.unwrap();
                pair.link.b.port.accept(id, b, &offer).unwrap();
            }
            pair.a.events.iter().any(is_up)
        });
        assert!(connected, "{:?} {:?}", self.a.events, self.b.events);
        self.a.events = Vec::new();
        self.b.events = Vec::new();
        self.run_for(Duration::from_secs(10), |_| false);
    }

    /// Collects the events of the ports.
    pub fn collect_events(&mut self) {
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

    /// Waits for the next completion of a queue, for at most a minute of virtual time.
    pub fn wait(&mut self, cq: &Cq) -> Wc {
        let mut wc = None;
        self.run_for(Duration::from_secs(60), |_| {
            wc = wc.or_else(|| cq.poll());
            wc.is_some()
        });
        wc.unwrap_or_else(|| panic!("no completion; {:?} {:?}", self.a.events, self.b.events))
    }
}

/// Runs the link of a scene until `done` returns true, for at most `limit` of virtual time.
pub fn run_for<S, A: Device, B: Device>(
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

/// Returns the IPv6 address of an end.
pub fn v6(address: Ipv4Addr) -> Ipv6Addr {
    let [.., last] = address.octets();
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last))
}

/// Returns all access rights.
pub fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// Returns the bytes of a pattern.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// Fills a region with a pattern and returns it.
pub fn fill(mr: &Mr, seed: u8) -> Vec<u8> {
    let octets = pattern(seed, mr.len());
    mr.copy_in(0, &octets);
    octets
}

/// Returns the bytes of a region.
pub fn content(mr: &Mr) -> Vec<u8> {
    let mut octets = vec![0; mr.len()];
    mr.copy_out(0, &mut octets);
    octets
}
