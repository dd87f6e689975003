//! One run: messages over an impaired link in memory, under a virtual clock. The same seed gives the
//! same figures on every machine. `tests/markers.rs` asserts what the bench prints.

use std::net::{Ipv4Addr, SocketAddr};

use urnic::driver::{Lockstep, Poller};
use urnic::mem::Access;
use urnic::mpa::startup::{Offer, StartupConfig};
use urnic::port::{
    ConnectParams, ConnectionCounters, ConnectionId, ListenParams, LowerLayer, Port, PortConfig,
    PortEvent,
};
use urnic::stream::StreamEvent;
use urnic::time::Instant;
use urnic::types::WrId;
use urnic::verbs::{Cq, Mr, Pd, Qp, QpConfig, RecvWr, Rnic, RnicConfig, SendWr, WcStatus};
use urnic_netdev::Device;
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};

/// How MPA finds FPDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Segments are cut at FPDUs and carry markers: what lies beyond a gap is placed.
    Markers,
    /// Segments are cut at FPDUs: what lies beyond a gap waits for it to close.
    NoMarkers,
    /// TCP is a byte stream: FPDUs fall where they fall, and what lies beyond a gap waits.
    Layered,
}

/// The link, impaired from the sender to the receiver, plain for the acknowledgments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) rate_bits_per_second: u64,
    /// From one end to the other and back, without queue.
    pub(crate) round_trip_ns: u64,
    /// Frames that wait in front of the bottleneck.
    pub(crate) queue_frames: usize,
    /// Messages posted at a time: more than the path and its queue hold.
    pub(crate) depth: usize,
}

/// What a run counted.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Of the receiver.
    pub(crate) counters: ConnectionCounters,
    /// From the post of each Send to its delivery at the receiver.
    pub(crate) latencies_ns: Vec<u64>,
    /// From the first post to the last delivery.
    pub(crate) transfer_ns: u64,
}

/// Octets of one message.
pub(crate) const MESSAGE_LEN: usize = 64 << 10;

/// A gigabit over 20 ms, with a queue of one bandwidth-delay product.
pub(crate) const WIDE: Path = Path {
    rate_bits_per_second: 1_000_000_000,
    round_trip_ns: 20_000_000,
    queue_frames: 1650,
    depth: 64,
};

/// Sends `messages` one way over the path.
///
/// # Panics
/// When a message does not arrive as it was sent, or nothing moves any more.
pub(crate) fn run(
    path: &Path,
    impair: ImpairConfig,
    way: Way,
    messages: usize,
    seed: u64,
) -> Outcome {
    let mut pair = Pair::connect(path, impair, way, seed);
    let depth = path.depth;
    let source = pair.a.pd.reg_mr(MESSAGE_LEN, Access::LOCAL_WRITE).expect("memory");
    let sink = pair.b.pd.reg_mr(MESSAGE_LEN * depth, Access::LOCAL_WRITE).expect("memory");
    let expected: Vec<u8> = (0..=u8::MAX).cycle().take(MESSAGE_LEN).collect();
    source.copy_in(0, &expected);
    for slot in 0..depth {
        receive_into(&pair.b.qp, &sink, slot);
    }
    let mut posted_at: Vec<Instant> = Vec::with_capacity(messages);
    let mut latencies_ns = Vec::with_capacity(messages);
    let mut arrived = vec![0; MESSAGE_LEN];
    let (mut completed, start) = (0, pair.link.now());
    while latencies_ns.len() < messages {
        let now = pair.link.now();
        while posted_at.len() < messages && posted_at.len() < completed + depth {
            let wr = SendWr::send(WrId(posted_at.len() as u64), [source.sge(0..MESSAGE_LEN)]);
            pair.a.qp.post_send(wr).expect("the queue has room");
            posted_at.push(now);
        }
        assert!(pair.link.step(), "messages are under way");
        let now = pair.link.now();
        while let Some(wc) = pair.a.cq.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            completed += 1;
        }
        while let Some(wc) = pair.b.cq.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            let slot = usize::try_from(wc.wr_id.0).expect("a slot");
            sink.copy_out(slot * MESSAGE_LEN, &mut arrived);
            assert!(arrived == expected, "a message arrives as it was sent");
            sink.copy_in(slot * MESSAGE_LEN, &vec![0; MESSAGE_LEN]);
            latencies_ns.push(now.nanos_since(posted_at[latencies_ns.len()]));
            receive_into(&pair.b.qp, &sink, slot);
        }
    }
    let connection = pair.b.connection.expect("connected");
    let counters = pair.link.b.port.counters(connection).expect("still there");
    Outcome { counters, latencies_ns, transfer_ns: pair.link.now().nanos_since(start) }
}

fn receive_into(qp: &Qp, sink: &Mr, slot: usize) {
    let range = slot * MESSAGE_LEN..(slot + 1) * MESSAGE_LEN;
    qp.post_recv(RecvWr::new(WrId(slot as u64), [sink.sge(range)])).expect("the queue has room");
}

/// What one application holds.
struct End {
    rnic: Rnic,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    connection: Option<ConnectionId>,
}

impl End {
    fn new(seed: u64, depth: usize) -> Self {
        let rnic = Rnic::new(RnicConfig { seed });
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(2 * depth));
        let config = QpConfig {
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            send_depth: depth,
            recv_depth: depth,
        };
        let qp = pd.create_qp(config).expect("a legal queue pair");
        Self { rnic, pd, cq, qp, connection: None }
    }
}

type Bad = Impair<MemoryDevice>;

/// A sender and a receiver in full operation.
struct Pair {
    link: Lockstep<Bad, Bad>,
    a: End,
    b: End,
}

impl Pair {
    fn connect(path: &Path, impair: ImpairConfig, way: Way, seed: u64) -> Self {
        let plain = ImpairConfig {
            delay_ns: path.round_trip_ns / 2,
            rate_bits_per_second: Some(path.rate_bits_per_second),
            queue_frames_max: path.queue_frames,
            held_max: 1 << 14,
            // What is merged on the way may be longer than what the ends send.
            mtu: Some(MTU),
            ..ImpairConfig::default()
        };
        let ImpairConfig {
            delay_ns, rate_bits_per_second, queue_frames_max, held_max, mtu, ..
        } = plain;
        let impair = ImpairConfig {
            delay_ns,
            rate_bits_per_second,
            queue_frames_max,
            held_max,
            mtu,
            ..impair
        };
        let config = LinkConfig { mtu: 2 * MTU, queue_frames: 1 << 14, ..LinkConfig::default() };
        let (device_a, device_b) = memory::pair(config);
        let (a, b) = (End::new(2 * seed + 1, path.depth), End::new(2 * seed + 2, path.depth));
        let link = Lockstep::new(
            poller(&a.rnic, A, Impair::new(device_a, impair, seed)),
            poller(&b.rnic, B, Impair::new(device_b, plain, seed)),
        );
        let mut pair = Self { link, a, b };
        pair.start(way);
        pair
    }

    fn start(&mut self, way: Way) {
        let startup = StartupConfig { markers: way == Way::Markers, ..StartupConfig::default() };
        let lower_layer = match way {
            Way::Markers | Way::NoMarkers => LowerLayer::Optimized,
            Way::Layered => LowerLayer::Layered,
        };
        let offer = Offer::default();
        let listen = ListenParams { startup, lower_layer, ..ListenParams::default() };
        self.link.b.port.listen(TCP_PORT, listen).expect("a free TCP port");
        let remote = SocketAddr::from((B, TCP_PORT));
        let params = ConnectParams { startup, offer, lower_layer };
        let id = self.link.a.port.connect(self.link.now(), remote, &self.a.qp, &params);
        self.a.connection = Some(id.expect("a route"));
        loop {
            assert!(self.link.step(), "the startup goes on");
            while let Some(event) = self.link.b.port.poll_event() {
                if let PortEvent::Stream { connection, event: StreamEvent::Request(_) } = event {
                    self.b.connection = Some(connection);
                    let accepted = self.link.b.port.accept(connection, &self.b.qp, &offer);
                    accepted.expect("a request to accept");
                }
            }
            while let Some(event) = self.link.a.port.poll_event() {
                if let PortEvent::Stream { event: StreamEvent::Established(_), .. } = event {
                    return;
                }
            }
        }
    }
}

fn poller(rnic: &Rnic, address: Ipv4Addr, device: Bad) -> Poller<Bad> {
    let port = Port::new(rnic, PortConfig::for_ipv4(address), device.capabilities());
    Poller::new(port, device)
}

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const TCP_PORT: u16 = 7174;
/// Of the ends, in octets.
const MTU: usize = 1500;
