//! Plans: the space of work and links in which the property is tested.

use proptest::prelude::*;
use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_netdev::impair::ImpairConfig;

/// Amount of data that a plan moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Messages of a few FPDUs, any MTU.
    Small,
    /// Messages of up to 200 000 bytes.
    Large,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// MPA settings of initiator and responder.
    pub(crate) startup: [StartupConfig; 2],
    pub(crate) lower_layer: LowerLayer,
    pub(crate) out_of_order_placement: bool,
    /// Maximum number of outstanding Reads and Atomics.
    pub(crate) depth: u16,
    /// Receive windows.
    pub(crate) window_bytes: u32,
    pub(crate) link: LinkPlan,
    /// Receives are posted one after the other, this many polls of the ends apart, and messages
    /// wait for them; `None` posts all before there is a connection.
    pub(crate) late_receives: Option<usize>,
    /// Completions of Writes and Sends mean that the data is placed.
    pub(crate) placed: bool,
    /// Requests of each end.
    pub(crate) work: [Vec<Op>; 2],
}

/// Link between the ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkPlan {
    pub(crate) mtu: usize,
    pub(crate) latency_ns: u64,
    pub(crate) super_frames: bool,
    pub(crate) impair: ImpairConfig,
    /// The end whose sequence numbers wrap, and the number of bytes before that; `None` leaves both
    /// to chance.
    pub(crate) wrap: Option<(usize, u32)>,
}

/// One posted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    /// Number of scatter elements, at the side that has them.
    pub(crate) pieces: usize,
    pub(crate) fence: bool,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendInvalidate,
    Write,
    /// Reads the peer's initial data.
    Read,
    /// Reads back the data that this end wrote last.
    ReadBack,
    Immediate,
    FetchAdd,
    CmpSwap,
    LocalInvalidate,
}

impl Plan {
    /// Returns the same work on a perfect link.
    pub(crate) fn on_a_perfect_link(&self) -> Self {
        let link = LinkPlan {
            mtu: 1500,
            latency_ns: 1000,
            super_frames: false,
            impair: ImpairConfig::default(),
            wrap: None,
        };
        Self { link, window_bytes: 4 << 20, late_receives: None, ..self.clone() }
    }
}

/// Once this message is delivered and complete, all earlier ones are (RFC 5040 §5.5).
const LAST: Op =
    Op { kind: Kind::Send, len: 3, pieces: 1, fence: false, signaled: true, solicited: true };

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Send),
        1 => Just(Kind::SendInvalidate),
        4 => Just(Kind::Write),
        3 => Just(Kind::Read),
        2 => Just(Kind::ReadBack),
        1 => Just(Kind::Immediate),
        1 => Just(Kind::FetchAdd),
        1 => Just(Kind::CmpSwap),
        1 => Just(Kind::LocalInvalidate),
    ]
}

fn any_op(size: Size) -> impl Strategy<Value = Op> {
    let len = match size {
        Size::Small => prop_oneof![0..200_usize, 0..6000_usize].boxed(),
        Size::Large => prop_oneof![0..2000_usize, 0..200_001_usize].boxed(),
    };
    let flags = (any::<bool>(), prop::bool::weighted(0.8), any::<bool>());
    (any_kind(), len, 1..=4_usize, flags).prop_map(
        |(kind, len, pieces, (fence, signaled, solicited))| Op {
            kind,
            len,
            pieces,
            fence,
            signaled,
            solicited,
        },
    )
}

fn any_startup() -> impl Strategy<Value = [StartupConfig; 2]> {
    let one = (any::<bool>(), prop::bool::weighted(0.8));
    (one, one, any::<bool>()).prop_map(|(a, b, peer_to_peer)| {
        [a, b].map(|(markers, crc)| StartupConfig {
            markers,
            crc,
            peer_to_peer,
            ..StartupConfig::default()
        })
    })
}

/// Draws a probability that is often 0.
fn any_chance(percent_max: u32) -> impl Strategy<Value = f64> {
    prop_oneof![1 => Just(0), 2 => 0..=percent_max * 10].prop_map(|mille| f64::from(mille) / 1000.0)
}

fn any_impairment() -> impl Strategy<Value = ImpairConfig> {
    let chances = (
        any_chance(8),
        any_chance(20),
        any_chance(10),
        any_chance(3),
        any_chance(40),
        any_chance(40),
        any_chance(10),
    );
    chances.prop_map(|(loss, reorder, duplicate, corrupt, resegment, coalesce, jitter)| {
        ImpairConfig {
            loss,
            reorder,
            duplicate,
            corrupt,
            resegment,
            coalesce,
            jitter,
            ..ImpairConfig::default()
        }
    })
}

fn any_link(size: Size) -> impl Strategy<Value = LinkPlan> {
    let mtu = match size {
        // Even the smallest MULPDU does not fit the smallest of these.
        Size::Small => prop::sample::select(vec![140, 296, 576, 1500, 4000, 9000]),
        Size::Large => prop::sample::select(vec![576, 1500, 1501, 9000]),
    };
    let latency_ns = prop::sample::select(vec![0, 1000, 50_000, 1_000_000]);
    let wrap = prop::option::of((0..2_usize, 0..20_000_u32));
    (mtu, latency_ns, any::<bool>(), any_impairment(), wrap).prop_map(
        |(mtu, latency_ns, super_frames, impair, wrap)| LinkPlan {
            mtu,
            latency_ns,
            super_frames,
            impair,
            wrap,
        },
    )
}

pub(crate) fn any_plan(size: Size) -> impl Strategy<Value = Plan> {
    let lower_layer = prop_oneof![
        4 => Just(LowerLayer::Optimized),
        1 => Just(LowerLayer::Layered),
    ];
    let window_bytes = prop::sample::select(vec![3000, 20_000, 65_535, 1 << 20]);
    let late_receives = prop::option::weighted(0.3, prop::sample::select(vec![1, 3, 20, 1000]));
    let settings = (
        lower_layer,
        prop::bool::weighted(0.8),
        1..=6_u16,
        window_bytes,
        (late_receives, any::<bool>()),
    );
    let most = if size == Size::Small { 14 } else { 5 };
    let work = [0, 1].map(|_| prop::collection::vec(any_op(size), 0..=most));
    (any::<u64>(), any_startup(), settings, any_link(size), work).prop_map(
        |(seed, startup, settings, link, work)| {
            let (lower_layer, out_of_order_placement, depth, window_bytes, receives) = settings;
            let (late_receives, placed) = receives;
            let work = work.map(|mut ops| {
                ops.push(LAST);
                ops
            });
            Plan {
                seed,
                startup,
                lower_layer,
                out_of_order_placement,
                depth,
                window_bytes,
                link,
                late_receives,
                placed,
                work,
            }
        },
    )
}
