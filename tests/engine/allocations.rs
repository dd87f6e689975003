//! Moving data allocates nothing: neither the engine nor the verbs nor the memory link allocate
//! from the heap per segment, per message or per acknowledgment, once buffers have their size.
//!
//! The allocator of this test counts the allocations of the test's own thread. A run that allocates
//! fails with the backtrace of its first allocation.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, LowerLayer};
use urnic_engine::stream::carrier::ByteStream;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, RecvWr, Rnic, RnicConfig, SendWr, WcOpcode, WcStatus};
use urnic_netdev::impair::ImpairConfig;
use urnic_netdev::memory::{self, LinkConfig};
use urnic_testkit::counting::{Census, live_bytes};
use urnic_testkit::pair::{self, A, B, End, Pair, Setup, all_access, content, fill};

/// Bytes of each message.
const MESSAGE_LEN: usize = 48 * 1024 + 13;
/// Messages in flight at a time.
const WINDOW: u64 = 12;
/// Data segments that must pass before, and during, the count.
const SEGMENTS: u64 = 20_000;

/// Two ends, their memory, and a stream of Writes, Reads and Sends from one to the other.
struct Traffic {
    pair: Pair,
    source: Mr,
    sink: Mr,
    posted: u64,
    completed: u64,
    received: u64,
}

impl Traffic {
    fn new(setup: Setup) -> Self {
        let pair = Pair::connect(setup);
        let source = pair.a.pd.reg_mr(MESSAGE_LEN, all_access()).unwrap();
        fill(&source, 5);
        let sink = pair.b.pd.reg_mr(3 * MESSAGE_LEN, all_access()).unwrap();
        let traffic = Self { pair, source, sink, posted: 0, completed: 0, received: 0 };
        for _ in 0..2 * WINDOW {
            traffic.post_recv();
        }
        traffic
    }

    fn post_recv(&self) {
        let inbox = self.sink.sge(2 * MESSAGE_LEN..3 * MESSAGE_LEN);
        self.pair.b.qp.post_recv(RecvWr::new(WrId(7), [inbox])).unwrap();
    }

    fn post(&mut self) {
        let id = WrId(self.posted);
        let local = || self.source.sge(0..MESSAGE_LEN);
        let wr = match self.posted % 3 {
            0 => SendWr::write(id, self.sink.remote(0), [local()]),
            1 => SendWr::read(id, self.sink.remote(0), self.source.sge(0..MESSAGE_LEN)),
            _ => SendWr::send(id, [local()]),
        };
        self.pair.a.qp.post_send(wr).unwrap();
        self.posted += 1;
    }

    /// Runs until this many more data segments were sent, in both directions together.
    fn run(&mut self, segments: u64) {
        let target = self.segments() + segments;
        while self.segments() < target {
            while self.posted < self.completed + WINDOW {
                self.post();
            }
            assert!(self.pair.link.step(), "something is under way");
            while let Some(wc) = self.pair.a.cq.poll() {
                assert_eq!((wc.wr_id, wc.status), (WrId(self.completed), WcStatus::Success));
                self.completed += 1;
            }
            while let Some(wc) = self.pair.b.cq.poll() {
                assert_eq!((wc.opcode, wc.status), (WcOpcode::Recv, WcStatus::Success));
                self.received += 1;
                self.post_recv();
            }
        }
    }

    /// Returns the number of data segments sent so far for the first time.
    fn segments(&self) -> u64 {
        let (a, b) = (&self.pair.link.a.port, &self.pair.link.b.port);
        let a = a.counters(self.pair.a.connection.unwrap()).unwrap();
        let b = b.counters(self.pair.b.connection.unwrap()).unwrap();
        a.alignment.segments + b.alignment.segments
    }
}

impl Traffic {
    /// Moves [`SEGMENTS`] segments and returns the number of allocations.
    fn count(&mut self, census: Census) -> u64 {
        let (completed, received) = (self.completed, self.received);
        self.run(SEGMENTS);
        let allocations = census.end();
        assert!(self.completed > completed + 100 && self.received > received + 30);
        let (source, sink) = (content(&self.source), content(&self.sink));
        assert!(sink[..MESSAGE_LEN] == source && sink[2 * MESSAGE_LEN..] == source);
        allocations
    }
}

/// Asserts that the first count after a warm-up, in which everything takes its size, is zero.
fn allocates_nothing(setup: Setup) {
    let mut traffic = Traffic::new(setup);
    traffic.run(SEGMENTS);
    let allocations = traffic.count(Census::begin());
    assert_eq!(allocations, 0, "heap allocations in {SEGMENTS} segments with {setup:?}");
}

/// Asserts that the count reaches zero after a few rounds. Pools grow, within their limits, when
/// chance brings more disorder than ever before. An allocation per segment or per loss never
/// reaches zero.
fn comes_to_allocate_nothing(setup: Setup) {
    const ROUNDS: usize = 8;
    let mut traffic = Traffic::new(setup);
    traffic.run(SEGMENTS);
    let mut counts = Vec::with_capacity(ROUNDS);
    while counts.last() != Some(&0) {
        assert!(counts.len() < ROUNDS, "{counts:?} allocations by round with {setup:?}");
        counts.push(traffic.count(Census::begin_quietly()));
    }
}

fn setup(markers: bool) -> Setup {
    let startup = StartupConfig { markers, ..StartupConfig::default() };
    let link = LinkConfig { latency_ns: 10_000, ..LinkConfig::default() };
    Setup { link, startup, ..Setup::default() }
}

#[test]
fn the_census_counts_every_kind_of_allocation() {
    let census = Census::begin_quietly();
    let boxed = std::hint::black_box(Box::new(1));
    assert_eq!(census.so_far(), 1);
    let mut vec = std::hint::black_box(vec![0_u8; 10]);
    assert_eq!(census.so_far(), 2);
    vec.reserve_exact(1000);
    assert_eq!(census.so_far(), 3, "growing counts");
    drop((boxed, vec));
    assert_eq!(census.end(), 3, "freeing does not");
}

#[test]
fn an_allocation_of_another_thread_is_not_counted() {
    let (go, gone) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            go.wait();
            drop(std::hint::black_box(vec![0_u8; 100]));
            gone.wait();
        });
        let census = Census::begin_quietly();
        go.wait();
        gone.wait();
        assert_eq!(census.end(), 0);
    });
}

#[test]
fn setting_up_a_connection_does_allocate() {
    let census = Census::begin_quietly();
    let traffic = Traffic::new(setup(false));
    assert!(census.end() > 20, "the census sees what the engine does");
    drop(traffic);
}

#[test]
fn a_clean_link_allocates_nothing() {
    allocates_nothing(setup(false));
}

#[test]
fn markers_allocate_nothing() {
    allocates_nothing(setup(true));
}

#[test]
fn super_frames_allocate_nothing() {
    let mut setup = setup(false);
    setup.link.super_frame_len_max = std::num::NonZeroUsize::new(65_000);
    setup.link.tx_checksum = true;
    allocates_nothing(setup);
}

#[test]
fn a_layered_lower_layer_allocates_nothing() {
    allocates_nothing(Setup { lower_layer: LowerLayer::Layered, ..setup(false) });
}

#[test]
fn loss_reordering_and_duplication_stop_allocating() {
    for markers in [false, true] {
        let impair = ImpairConfig {
            loss: 0.005,
            reorder: 0.02,
            duplicate: 0.005,
            corrupt: 0.001,
            ..ImpairConfig::default()
        };
        comes_to_allocate_nothing(Setup { impair, seed: 3, ..setup(markers) });
    }
}

#[test]
fn unaligned_arrival_stops_allocating() {
    for markers in [false, true] {
        let impair = ImpairConfig { resegment: 0.2, coalesce: 0.2, ..ImpairConfig::default() };
        comes_to_allocate_nothing(Setup { impair, seed: 4, ..setup(markers) });
    }
}

/// Maximum bytes of a byte stream before RDMA starts.
const BYTE_STREAM_BYTES_MAX: i64 = 2048;
/// Maximum bytes of the heap for an end of an idle established connection, besides its queue pair:
/// the stream, TCP, and the port's record of the connection.
const IDLE_BYTES_MAX: i64 = 4096;
/// Maximum bytes of the heap for a queue pair whose queues, of 64 requests, were never used.
const QP_BYTES_MAX: i64 = 1280;

/// A byte stream uses the buffers of the thread that polls it.
#[test]
fn byte_stream_takes_little_memory() {
    const COUNT: i64 = 64;
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let before = live_bytes();
    let mut streams = Vec::new();
    streams.extend((0..COUNT).map(|_| ByteStream::new(&rnic)));
    let each = (live_bytes() - before) / COUNT;
    assert!((1..=BYTE_STREAM_BYTES_MAX).contains(&each), "{each} octets");
}

/// A connection costs what it uses: queues grow when something is posted or sent.
#[test]
fn idle_connection_takes_little_memory() {
    const COUNT: i64 = 256;
    const BEFORE: usize = 255;
    let (device_a, device_b) = memory::pair(LinkConfig::default());
    let configs = [A, B].map(pair::config);
    let mut pair = Pair::new([1, 2].map(End::new), configs, [device_a, device_b]);
    pair.establish(&ConnectParams::default(), B.into(), &Offer::default());
    let before = live_bytes();
    // The existing connection and these fill the tables of the ports, which double then.
    let qps: Vec<_> = (0..2 * COUNT - 1).map(|_| [&pair.a, &pair.b].map(End::another_qp)).collect();
    let each = (live_bytes() - before) / (2 * (2 * COUNT - 1));
    assert!((1..=QP_BYTES_MAX).contains(&each), "{each} octets");
    let (first, others) = qps.split_at(BEFORE);
    for [a, b] in first {
        pair.connect_another(a, b);
    }
    let before = live_bytes();
    for [a, b] in others {
        pair.connect_another(a, b);
    }
    let each = (live_bytes() - before) / (2 * COUNT);
    assert!((1..=IDLE_BYTES_MAX).contains(&each), "{each} octets");
}
