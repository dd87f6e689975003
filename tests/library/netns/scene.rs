//! Two engines on two devices, in one thread, by the real clock.
#![allow(dead_code, reason = "each device's tests use their part")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use urnic::{
    Access, ConnectionCounters, ListenParams, LowerLayer, Mr, Offer, PortConfig, RecvWr, Region,
    SendWr, StartupConfig, WcStatus, WrId,
};
use urnic_engine::poll::Poller;
use urnic_engine::port::{ConnectParams, Port, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::{Duration, Instant};
use urnic_netdev::Device;

use urnic_testkit::pair::{A, B, End, TCP_PORT, all_access, content, fill, pattern, v6};

/// Configuration of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) ipv6: bool,
    pub(crate) startup: StartupConfig,
    pub(crate) lower_layer: LowerLayer,
    pub(crate) user_timeout: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            ipv6: false,
            startup: StartupConfig::default(),
            lower_layer: LowerLayer::default(),
            user_timeout: Duration::from_secs(100),
        }
    }
}

impl Setup {
    /// Returns every combination of IPv4, IPv6, markers on and off.
    pub(crate) fn matrix() -> impl Iterator<Item = Self> {
        [(false, false), (false, true), (true, false), (true, true)].into_iter().map(
            |(ipv6, markers)| {
                let startup = StartupConfig { markers, ..StartupConfig::default() };
                Self { ipv6, startup, ..Self::default() }
            },
        )
    }
}

/// The real clock.
#[derive(Debug)]
pub(crate) struct Clock(std::time::Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "devices of the kernel live in real time")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap())
    }
}

/// One engine on its device.
pub(crate) struct Side<D> {
    pub(crate) poller: Poller<D>,
    pub(crate) end: End,
    /// Counters of the connection, once it is over.
    pub(crate) closed: Option<Box<ConnectionCounters>>,
    /// Changes of the link that the port reported: true for up.
    pub(crate) links: Vec<bool>,
}

impl<D: Device> Side<D> {
    fn new(end: End, address: Ipv4Addr, device: D, setup: &Setup) -> Self {
        let mut config =
            PortConfig { ipv6: Some((v6(address), 64)), ..PortConfig::for_ipv4(address) };
        config.tcp.user_timeout = setup.user_timeout;
        let port = Port::new(&end.rnic, config, device.capabilities());
        Self { poller: Poller::new(port, device), end, closed: None, links: Vec::new() }
    }

    fn poll(&mut self, now: Instant) {
        self.poller.poll(now);
        while let Some(event) = self.poller.port.poll_event() {
            match event {
                PortEvent::Incoming { connection, .. } => self.end.connection = Some(connection),
                PortEvent::Stream { event, .. } => self.end.events.push(event),
                PortEvent::Closed { counters, .. } => self.closed = Some(counters),
                PortEvent::LinkDown => self.links.push(false),
                PortEvent::LinkUp => self.links.push(true),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Returns the counters of the connection so far.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        self.poller.port.counters(self.end.connection.unwrap()).unwrap()
    }
}

/// Two engines with an MPA connection between them.
pub(crate) struct Scene<DA, DB> {
    pub(crate) a: Side<DA>,
    pub(crate) b: Side<DB>,
    clock: Clock,
    /// Regions of requests whose completions are not awaited.
    kept: Vec<Mr>,
}

impl<DA: Device, DB: Device> Scene<DA, DB> {
    /// Makes two engines that are not connected.
    pub(crate) fn new(device_a: DA, device_b: DB, setup: &Setup) -> Self {
        Self::of([End::new(1), End::new(2)], device_a, device_b, setup)
    }

    fn of([a, b]: [End; 2], device_a: DA, device_b: DB, setup: &Setup) -> Self {
        let a = Side::new(a, A, device_a, setup);
        let b = Side::new(b, B, device_b, setup);
        Self { a, b, clock: Clock::start(), kept: Vec::new() }
    }

    /// Connects two engines.
    pub(crate) fn connect(device_a: DA, device_b: DB, setup: &Setup) -> Self {
        Self::connect_ends([End::new(1), End::new(2)], device_a, device_b, setup)
    }

    /// Connects two engines of these ends.
    pub(crate) fn connect_ends(ends: [End; 2], device_a: DA, device_b: DB, setup: &Setup) -> Self {
        let mut scene = Self::of(ends, device_a, device_b, setup);
        let Setup { ipv6, startup, lower_layer, .. } = *setup;
        let listen = ListenParams { startup, lower_layer, ..ListenParams::default() };
        scene.b.poller.port.listen(TCP_PORT, listen).unwrap();
        let offer = Offer { private_data: b"hello", ird: 8, ord: 8 };
        let params = ConnectParams { startup, offer, lower_layer };
        let address = if ipv6 { IpAddr::V6(v6(B)) } else { IpAddr::V4(B) };
        let remote = SocketAddr::new(address, TCP_PORT);
        let now = scene.clock.now();
        let id = scene.a.poller.port.connect(now, remote, &scene.a.end.qp, &params).unwrap();
        scene.a.end.connection = Some(id);
        let mut accepted = false;
        let connected = scene.run_for(Duration::from_secs(10), |scene| {
            let b = &mut scene.b;
            let requests = |event: &StreamEvent| matches!(event, StreamEvent::Request(_));
            if !accepted && b.end.events.iter().any(requests) {
                let id = b.end.connection.unwrap();
                b.poller.port.accept(id, &b.end.qp, &offer).unwrap();
                accepted = true;
            }
            let established = |event: &StreamEvent| matches!(event, StreamEvent::Established(_));
            scene.a.end.events.iter().any(established) && scene.b.end.events.iter().any(established)
        });
        let (a, b) = (&scene.a.end.events, &scene.b.end.events);
        assert!(connected, "connected in 10 s with {setup:?}: {a:?} {b:?}");
        scene
    }

    /// Lets both engines work until `done` returns true; `false` if that takes longer than `limit`.
    pub(crate) fn run_for(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let deadline = self.clock.now() + limit;
        loop {
            let now = self.clock.now();
            self.a.poll(now);
            self.b.poll(now);
            if done(self) {
                return true;
            }
            if now >= deadline {
                return false;
            }
        }
    }

    /// Lets both sides at once write, read and send `len` bytes, and checks every byte.
    pub(crate) fn exchange(&mut self, len: usize, what: &str) {
        self.exchange_in(len, what, [&private, &private]);
    }

    /// Does the same, in memory that these functions make for the two sides.
    pub(crate) fn exchange_in(&mut self, len: usize, what: &str, memory: [&Memory<'_>; 2]) {
        let ends = [&self.a.end, &self.b.end];
        let mut works = [0, 1].map(|i| Work::within(ends[i], len, [3, 5][i], memory[i]));
        let remote = [works[1].buffers(), works[0].buffers()];
        let finished = self.run_for(Duration::from_secs(60), |scene| {
            works[0].go_on(&scene.a.end, remote[0]);
            works[1].go_on(&scene.b.end, remote[1]);
            works.iter().all(Work::is_done)
        });
        assert!(
            finished,
            "{what}: {works:?} {:?} {:?} {:?} {:?}",
            self.a.end.events,
            self.b.end.events,
            self.a.counters(),
            self.b.counters()
        );
        for (own, peer) in [(0, 1), (1, 0)] {
            let expected = pattern(works[peer].seed, len);
            assert!(content(&works[own].written) == expected, "{what}: octets written to {own}");
            assert!(content(&works[own].received) == expected, "{what}: octets sent to {own}");
            assert!(content(&works[own].read) == expected, "{what}: octets read by {own}");
        }
    }
}

impl<DA: Device, DB: Device> Scene<DA, DB> {
    /// Posts `count` Writes of 64 KiB from each end to the other, without waiting for them.
    pub(crate) fn post_writes(&mut self, count: u64) {
        for (from, to) in [(&self.a.end, &self.b.end), (&self.b.end, &self.a.end)] {
            let source = from.pd.reg_mr(64 << 10, Access::LOCAL_WRITE).unwrap();
            let sink = to.pd.reg_mr(64 << 10, all_access()).unwrap();
            for i in 0..count {
                let wr = SendWr::write(WrId(i), sink.remote(0), [source.sge(0..64 << 10)]);
                from.qp.post_send(wr).unwrap();
            }
            self.kept.extend([source, sink]);
        }
    }

    /// Returns true if `count` posted Writes of each end complete within 20 seconds.
    pub(crate) fn completes(&mut self, count: usize) -> bool {
        let mut completed = [0; 2];
        self.run_for(Duration::from_secs(20), |scene| {
            for (completed, end) in completed.iter_mut().zip([&scene.a.end, &scene.b.end]) {
                while let Some(wc) = end.cq.poll() {
                    assert_eq!(wc.status, WcStatus::Success, "{:?}", end.events);
                    *completed += 1;
                }
            }
            completed == [count; 2]
        })
    }
}

/// Bytes of one message, an odd number.
const MESSAGE_LEN: usize = 65_521;
/// Work requests in flight.
const DEPTH: usize = 32;

/// One side's share of an exchange.
pub(crate) struct Work {
    pub(crate) seed: u8,
    len: usize,
    source: Mr,
    /// Destination of the peer's Writes.
    pub(crate) written: Mr,
    /// Destination of the peer's messages.
    pub(crate) received: Mr,
    /// Destination of Reads from the peer's source.
    pub(crate) read: Mr,
    posted: usize,
    completed: usize,
    arrived: usize,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (posted, completed, arrived) = (self.posted, self.completed, self.arrived);
        write!(f, "{posted} posted, {completed} done, {arrived} messages here")
    }
}

/// Makes memory of a given length.
pub(crate) type Memory<'a> = dyn Fn(usize) -> Arc<Region> + 'a;

fn private(len: usize) -> Arc<Region> {
    Region::anonymous(len).unwrap()
}

impl Work {
    pub(crate) fn new(end: &End, len: usize, seed: u8) -> Self {
        Self::within(end, len, seed, &private)
    }

    fn within(end: &End, len: usize, seed: u8, memory: &Memory<'_>) -> Self {
        let register = |access| end.pd.reg_region(memory(len), access).unwrap();
        let source = register(all_access());
        fill(&source, seed);
        let written = register(all_access());
        let received = register(Access::LOCAL_WRITE);
        let read = register(Access::LOCAL_WRITE);
        for at in (0..len).step_by(MESSAGE_LEN) {
            let range = at..len.min(at + MESSAGE_LEN);
            end.qp.post_recv(RecvWr::new(WrId(at as u64), [received.sge(range)])).unwrap();
        }
        Self { seed, len, source, written, received, read, posted: 0, completed: 0, arrived: 0 }
    }

    /// Returns the buffers for the peer: one to write to, one to read from.
    pub(crate) fn buffers(&self) -> [urnic_engine::verbs::RemoteBuffer; 2] {
        [self.written.remote(0), self.source.remote(0)]
    }

    fn messages(&self) -> usize {
        self.len.div_ceil(MESSAGE_LEN)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.completed == 3 * self.messages() && self.arrived == self.messages()
    }

    /// Takes completions and posts more: a Write, a Send and a Read for each part of the buffer.
    pub(crate) fn go_on(
        &mut self,
        end: &End,
        [write_to, read_from]: [urnic_engine::verbs::RemoteBuffer; 2],
    ) {
        while let Some(wc) = end.cq.poll() {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?} {:?}", end.events);
            // Receives are numbered by offset, below any work request posted here.
            if wc.wr_id.0 < FIRST_WR_ID {
                self.arrived += 1;
            } else {
                self.completed += 1;
            }
        }
        while self.posted < 3 * self.messages() && self.posted < self.completed + DEPTH {
            let at = self.posted / 3 * MESSAGE_LEN;
            let range = at..self.len.min(at + MESSAGE_LEN);
            let id = WrId(FIRST_WR_ID + self.posted as u64);
            let offset = |mut buffer: urnic_engine::verbs::RemoteBuffer| {
                buffer.to.0 += at as u64;
                buffer
            };
            let wr = match self.posted % 3 {
                0 => SendWr::write(id, offset(write_to), [self.source.sge(range)]),
                1 => SendWr::send(id, [self.source.sge(range)]),
                _ => SendWr::read(id, offset(read_from), self.read.sge(range)),
            };
            end.qp.post_send(wr).unwrap();
            self.posted += 1;
        }
    }
}

const FIRST_WR_ID: u64 = 1 << 40;
