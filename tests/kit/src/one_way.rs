//! One run of messages over an impaired link in memory, under a virtual clock. A seed gives the
//! same figures on every machine. `tests/engine/markers.rs` asserts the figures that the bench
//! `markers` prints.

use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectParams, ConnectionCounters, LowerLayer, PortConfig};
use urnic_engine::time::Instant;
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Mr, Qp, RecvWr, SendWr, WcStatus};
use urnic_netdev::impair::{Impair, ImpairConfig};
use urnic_netdev::memory::{self, LinkConfig, MemoryDevice};

use crate::pair::{A, B, End, Pair};

/// Method by which MPA finds FPDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Segments are cut at FPDUs and carry markers: FPDUs beyond a gap are placed.
    Markers,
    /// Segments are cut at FPDUs: FPDUs beyond a gap wait until it is closed.
    NoMarkers,
    /// TCP is a byte stream: FPDUs begin anywhere in segments, and bytes beyond a gap wait.
    Layered,
}

/// The link: impaired from the sender to the receiver, unimpaired for the acknowledgments.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub rate_bits_per_second: u64,
    /// Round trip without queue.
    pub round_trip_ns: u64,
    /// Maximum number of frames in the queue of the bottleneck.
    pub queue_frames: usize,
    /// Messages posted at a time: more than the path and its queue hold.
    pub depth: usize,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Counters of the receiver.
    pub counters: ConnectionCounters,
    /// Time from the post of each Send to its delivery at the receiver.
    pub latencies_ns: Vec<u64>,
    /// Time from the first post to the last delivery.
    pub transfer_ns: u64,
}

/// Bytes of one message.
pub const MESSAGE_LEN: usize = 64 << 10;

/// A gigabit over 20 ms, with a queue of one bandwidth-delay product.
pub const WIDE: Path = Path {
    rate_bits_per_second: 1_000_000_000,
    round_trip_ns: 20_000_000,
    queue_frames: 1650,
    depth: 64,
};

/// Sends `messages` one way over the path.
///
/// # Panics
/// If a message does not arrive as it was sent, or the transfer stops.
pub fn run(path: &Path, impair: ImpairConfig, way: Way, messages: usize, seed: u64) -> Outcome {
    let mut pair = connect(path, impair, way, seed);
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

type Bad = Impair<MemoryDevice>;

/// Connects a sender and a receiver in full operation.
fn connect(path: &Path, impair: ImpairConfig, way: Way, seed: u64) -> Pair<Bad> {
    let plain = ImpairConfig {
        delay_ns: path.round_trip_ns / 2,
        rate_bits_per_second: Some(path.rate_bits_per_second),
        queue_frames_max: path.queue_frames,
        held_max: 1 << 14,
        // Merged segments may be longer than the segments that the ends send.
        mtu: Some(MTU),
        ..ImpairConfig::default()
    };
    let ImpairConfig { delay_ns, rate_bits_per_second, queue_frames_max, held_max, mtu, .. } =
        plain;
    let impair =
        ImpairConfig { delay_ns, rate_bits_per_second, queue_frames_max, held_max, mtu, ..impair };
    let config = LinkConfig { mtu: 2 * MTU, queue_frames: 1 << 14, ..LinkConfig::default() };
    let (device_a, device_b) = memory::pair(config);
    let end = |seed| End::with_depths(seed, 2 * path.depth, path.depth);
    let mut pair = Pair::new(
        [end(2 * seed + 1), end(2 * seed + 2)],
        [A, B].map(PortConfig::for_ipv4),
        [Impair::new(device_a, impair, seed), Impair::new(device_b, plain, seed)],
    );
    let startup = StartupConfig { markers: way == Way::Markers, ..StartupConfig::default() };
    let lower_layer = match way {
        Way::Markers | Way::NoMarkers => LowerLayer::Optimized,
        Way::Layered => LowerLayer::Layered,
    };
    let offer = Offer::default();
    pair.establish(&ConnectParams { startup, offer, lower_layer }, B.into(), &offer);
    pair
}

/// MTU of the ends, in bytes.
const MTU: usize = 1500;
