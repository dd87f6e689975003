//! Draws a plan from a seed: the space that is searched.

mod fabric;
mod moving;
mod ready;
mod shared;
mod trials;

use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_engine::tcp::CongestionKind;
use urnic_netdev::impair::{BurstLoss, ImpairConfig};

use crate::plan::{
    Change, Ending, Event, FlowPlan, Kind, LinkPlan, Mishap, NodePlan, Op, Plan, SidePlan, Silence,
    Start,
};
use crate::random::Random;
use crate::scenario::Scenario;

impl Plan {
    /// Returns the plan of a seed, for one scenario if `only` names one.
    #[must_use]
    pub fn of_seed(seed: u64, only: Option<Scenario>) -> Self {
        let mut random = Random::new(seed);
        let drawn = Scenario::draw(&mut random);
        let vanishes = Random::new(seed ^ VANISH_BITS).one_in(VANISH_ONE_IN);
        let drawn = if vanishes { Scenario::Vanish } else { drawn };
        let drawn = trials::draw(seed).unwrap_or(drawn);
        let drawn = if fabric::is_drawn(seed) { Scenario::Ipoib } else { drawn };
        let drawn = if moving::is_drawn(seed) { Scenario::Moving } else { drawn };
        let drawn = if shared::is_drawn(seed) { Scenario::Shared } else { drawn };
        Drawing { random, scenario: only.unwrap_or(drawn) }.plan(seed)
    }
}

struct Drawing {
    random: Random,
    scenario: Scenario,
}

/// Once this message is delivered and complete, all earlier ones are (RFC 5040 §5.5).
const LAST: Op = Op { solicited: true, ..Op::new(Kind::Send, 3) };
/// More frames than windows permit in flight.
const HELD_MAX: usize = 4096;
const MILLISECOND_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const VANISH_BITS: u64 = 0x7661_6e69_7368_6564;
const VANISH_ONE_IN: u64 = 16;
const PLACED_BITS: u64 = 0x0070_6c61_6365_6421;

/// Scenarios without an event that stops all faults: they have none, or keep them.
const WITHOUT_AN_END: [Scenario; 7] = [
    Scenario::Clean,
    Scenario::BlackHole,
    Scenario::Vanish,
    Scenario::Exhausted,
    Scenario::Guesses,
    Scenario::Pause,
    Scenario::Shared,
];

impl Drawing {
    fn plan(mut self, seed: u64) -> Plan {
        let node_count = match self.scenario {
            Scenario::Star => self.random.len(3, 6),
            Scenario::Exhausted | Scenario::Guesses => self.random.len(3, 4),
            Scenario::Moving => self.random.len(3, 4),
            Scenario::Shared => 4,
            Scenario::Ipoib => self.random.len(2, 3),
            _ => 2,
        };
        let link = self.link();
        let nodes: Vec<_> = (0..node_count).map(|_| self.node()).collect();
        let flows = self.flows(node_count);
        let changes = self.changes(&nodes);
        let silence = (self.scenario == Scenario::Vanish).then(|| self.silence(&link, &flows));
        let (idlers, guesses, shared) = (Vec::new(), None, None);
        let scenario = self.scenario;
        let sabotage = None;
        let mut plan = Plan {
            seed,
            scenario,
            nodes,
            link,
            flows,
            changes,
            silence,
            idlers,
            guesses,
            shared,
            sabotage,
        };
        self.make_trial(&mut plan);
        let mut random = Random::new(seed ^ PLACED_BITS);
        for side in plan.flows.iter_mut().flat_map(|flow| &mut flow.sides) {
            side.placed = random.one_in(3);
        }
        ready::vary(&mut plan);
        plan
    }

    fn link(&mut self) -> LinkPlan {
        let random = &mut self.random;
        let mtu = match self.scenario {
            Scenario::Large | Scenario::BlackHole => random.pick(&[1500, 9000]),
            Scenario::Mtu => random.pick(&[1280, 1500, 9000]),
            Scenario::Ipoib => random.pick(&[2044, 4092]),
            _ => random.pick(&[296, 576, 1280, 1500, 1500, 1501, 4000, 9000]),
        };
        let latency_ns = random.pick(&[0, 1_000, 20_000, 100_000, 1_000_000, 10_000_000]);
        // A switch forwards frames as they are. Devices that rewrite frames refuse super-frames.
        let is_fabric = self.scenario == Scenario::Ipoib;
        let is_switched = matches!(
            self.scenario,
            Scenario::Star
                | Scenario::Exhausted
                | Scenario::Guesses
                | Scenario::Moving
                | Scenario::Shared
        );
        let super_frames = !is_switched && !is_fabric && random.one_in(3);
        let has_bottleneck = match self.scenario {
            Scenario::Bottleneck => true,
            Scenario::Clean
            | Scenario::Exhausted
            | Scenario::Guesses
            | Scenario::Ipoib
            | Scenario::Pause
            | Scenario::Shared => false,
            _ => random.one_in(8),
        };
        let rate_bits_per_second = has_bottleneck
            .then(|| random.pick(&[2_000_000, 20_000_000, 100_000_000, 1_000_000_000]));
        let queue_frames = match self.scenario {
            Scenario::Bottleneck if !super_frames => random.len(4, 64),
            // Room for all segments of 256 bytes that the windows permit in flight during a pause.
            Scenario::Pause => 1 << 16,
            _ => 4096,
        };
        LinkPlan { mtu, latency_ns, rate_bits_per_second, queue_frames, super_frames, is_fabric }
    }

    fn node(&mut self) -> NodePlan {
        let impair = self.impair();
        let random = &mut self.random;
        let window_bytes = match self.scenario {
            Scenario::Stall | Scenario::Changing => random.pick(&[1500, 3000, 9000, 20_000]),
            Scenario::Large | Scenario::Pressure => 4 << 20,
            _ => random.pick(&[3000, 20_000, 65_535, 1 << 20, 4 << 20]),
        };
        let small_store = self.scenario == Scenario::Pressure || random.one_in(6);
        NodePlan {
            window_bytes,
            out_of_order_placement: !random.one_in(5),
            piece_blocks: if small_store { 0 } else { usize::MAX },
            congestion: random.pick(&[CongestionKind::Cubic, CongestionKind::NewReno]),
            sack: !random.one_in(6),
            timestamps: !random.one_in(4),
            user_timeout_ns: if self.scenario == Scenario::Vanish {
                random.pick(&[2, 20, 100]) * SECOND_NS
            } else {
                100 * SECOND_NS
            },
            keepalive_ns: (self.scenario == Scenario::Vanish)
                .then(|| random.pick(&[1, 30, 7200]) * SECOND_NS),
            impair,
        }
    }

    /// During connection setup, at any time, in the middle of the work, or while connections close.
    fn silence(&mut self, link: &LinkPlan, flows: &[FlowPlan]) -> Silence {
        let random = &mut self.random;
        // A handshake and a startup take a few round trips.
        let round_ns = 2 * link.latency_ns + 100_000;
        match random.below(4) {
            0 => Silence::At(random.below(6 * round_ns)),
            1 => {
                let longest_ns = random.pick(&[MILLISECOND_NS, 50 * MILLISECOND_NS, SECOND_NS]);
                Silence::At(random.below(longest_ns))
            }
            2 => {
                let sides = flows.iter().flat_map(|flow| &flow.sides);
                let requests: usize = sides.map(|side| side.work.len()).sum();
                Silence::Completions(random.len(1, 2 * requests))
            }
            _ => {
                let longest_ns = if random.one_in(3) { 1 } else { 4 * round_ns };
                Silence::Closing(random.below(longest_ns))
            }
        }
    }

    fn impair(&mut self) -> ImpairConfig {
        let random = &mut self.random;
        let quiet = ImpairConfig { held_max: HELD_MAX, ..ImpairConfig::default() };
        let perhaps = |random: &mut Random, percent_max| {
            if random.one_in(3) { 0.0 } else { random.chance(percent_max) }
        };
        match self.scenario {
            Scenario::Clean
            | Scenario::Exhausted
            | Scenario::Guesses
            | Scenario::Pause
            | Scenario::Shared => ImpairConfig::default(),
            Scenario::Changing => trials::unchanging(random, quiet),
            Scenario::Ipoib => fabric::impair(random, quiet),
            Scenario::Loss => ImpairConfig { loss: random.chance(12), ..quiet },
            Scenario::Burst => ImpairConfig {
                burst: BurstLoss {
                    enter: random.chance(3),
                    leave: 0.02 + random.chance(50),
                    loss: 0.3 + random.chance(70),
                },
                ..quiet
            },
            Scenario::Reorder => ImpairConfig {
                reorder: random.chance(40),
                reorder_frames_max: random.between(0, 30),
                reorder_delay_ns: random.pick(&[10_000, 1_000_000, 20_000_000]),
                jitter: perhaps(random, 50),
                jitter_ns_max: random.pick(&[10_000, 1_000_000, 20_000_000]),
                ..quiet
            },
            Scenario::Duplicate => ImpairConfig {
                duplicate: random.chance(100),
                reorder: perhaps(random, 10),
                ..quiet
            },
            Scenario::Corrupt => {
                ImpairConfig { corrupt: random.chance(10), loss: perhaps(random, 2), ..quiet }
            }
            Scenario::Recut | Scenario::Pressure => ImpairConfig {
                resegment: random.chance(100),
                resegment_pieces_max: random.len(2, 16),
                coalesce: perhaps(random, 80),
                loss: perhaps(random, 5),
                reorder: perhaps(random, 20),
                mtu: None,
                ..quiet
            },
            Scenario::AckLoss => {
                ImpairConfig { ack_loss: random.chance(80), loss: perhaps(random, 2), ..quiet }
            }
            Scenario::Mixed => ImpairConfig {
                loss: perhaps(random, 8),
                duplicate: perhaps(random, 10),
                corrupt: perhaps(random, 3),
                reorder: perhaps(random, 20),
                resegment: perhaps(random, 40),
                coalesce: perhaps(random, 40),
                jitter: perhaps(random, 10),
                ack_loss: perhaps(random, 20),
                ..quiet
            },
            Scenario::Large => ImpairConfig { loss: perhaps(random, 1), ..quiet },
            _ if random.one_in(3) => ImpairConfig {
                loss: perhaps(random, 3),
                reorder: perhaps(random, 5),
                duplicate: perhaps(random, 3),
                ..quiet
            },
            _ => quiet,
        }
    }

    fn changes(&mut self, nodes: &[NodePlan]) -> Vec<Change> {
        let is_fabric = self.scenario == Scenario::Ipoib;
        let of_fabric = is_fabric.then(|| fabric::changes(&mut self.random, nodes.len()));
        let (mut changes, mut at_ns) = of_fabric.unwrap_or_default();
        let mut push = |at_ns, what| changes.push(Change { at_ns, what });
        let random = &mut self.random;
        let mut soon = |random: &mut Random, longer_ns: u64| {
            at_ns += longer_ns;
            at_ns += match random.below(3) {
                0 => random.below(200_000),
                1 => random.below(20 * MILLISECOND_NS),
                _ => random.below(SECOND_NS),
            };
            at_ns
        };
        match self.scenario {
            Scenario::Clean => {}
            Scenario::Flap => {
                for _ in 0..random.between(1, 4) {
                    push(soon(random, 0), Event::Link(false));
                    push(soon(random, 0), Event::Link(true));
                }
            }
            Scenario::Outage => {
                for _ in 0..random.between(1, 3) {
                    let node = random.len(0, nodes.len() - 1);
                    let down = ImpairConfig { outage: true, ..nodes[node].impair };
                    push(soon(random, 0), Event::Impair(node, down));
                    let most_ns = if random.one_in(4) { 10 * SECOND_NS } else { 0 };
                    let longer_ns = random.below(most_ns + 1);
                    push(soon(random, longer_ns), Event::Impair(node, nodes[node].impair));
                }
            }
            Scenario::Path => {
                for _ in 0..random.between(1, 6) {
                    let latency_ns = random.pick(&[0, 10_000, MILLISECOND_NS, 30 * MILLISECOND_NS]);
                    push(soon(random, 0), Event::Latency(latency_ns));
                }
            }
            Scenario::Mtu => {
                for _ in 0..random.between(1, 6) {
                    let mtu = random.pick(&[1280, 1281, 1500, 1999, 4000, 9000]);
                    push(soon(random, 0), Event::Mtu(mtu));
                }
            }
            Scenario::BlackHole => {
                for _ in 0..random.between(1, 2) {
                    let node = random.len(0, nodes.len() - 1);
                    let path_mtu = Some(random.pick(&[1280, 1400, 1492, 4000]));
                    let narrow = ImpairConfig { path_mtu, ..nodes[node].impair };
                    push(soon(random, 0), Event::Impair(node, narrow));
                }
            }
            _ => {}
        }
        // All faults stop, so that the oracle can demand progress. A bottleneck is no fault.
        if !WITHOUT_AN_END.contains(&self.scenario) {
            let longest_ns = random.pick(&[100 * MILLISECOND_NS, 3 * SECOND_NS, 20 * SECOND_NS]);
            let end_ns = at_ns + random.below(longest_ns);
            let quiet = ImpairConfig { held_max: HELD_MAX, ..ImpairConfig::default() };
            for node in 0..nodes.len() {
                push(end_ns, Event::Impair(node, quiet));
            }
        }
        changes
    }

    // ---- connections ----

    fn flows(&mut self, node_count: usize) -> Vec<FlowPlan> {
        let count = match self.scenario {
            Scenario::Churn => self.random.len(3, 12),
            Scenario::Star => self.random.len(node_count - 1, 2 * node_count),
            Scenario::Large => 1,
            Scenario::Pressure => self.random.len(1, 4),
            _ if self.random.one_in(4) => self.random.len(2, 4),
            _ => 1,
        };
        let mut flows: Vec<FlowPlan> = Vec::with_capacity(count);
        for index in 0..count {
            let flow = self.flow(index, node_count);
            flows.push(flow);
        }
        flows
    }

    fn flow(&mut self, index: usize, node_count: usize) -> FlowPlan {
        let nodes = match self.scenario {
            Scenario::Star if !self.random.one_in(4) => [1 + index % (node_count - 1), 0],
            _ => {
                let from = self.random.len(0, node_count - 1);
                let step = self.random.len(1, node_count - 1);
                [from, (from + step) % node_count]
            }
        };
        let start = match self.scenario {
            Scenario::Churn if index > 0 && !self.random.one_in(4) => Start::After(index - 1),
            _ if self.random.one_in(2) => Start::At(0),
            _ => Start::At(self.random.below(30 * MILLISECOND_NS)),
        };
        let peer_to_peer = self.random.one_in(2);
        let sides = [self.side(peer_to_peer), self.side(peer_to_peer)];
        let mut flow = FlowPlan {
            nodes,
            ipv6: self.random.one_in(3),
            listener: u16::try_from(index).expect("few flows"),
            start,
            sides,
            ending: if self.random.one_in(3) {
                Ending::CloseBoth
            } else {
                Ending::Close(self.random.len(0, 1))
            },
            rejects: 0,
            waits: false,
            shares: false,
            is_hostile: false,
        };
        match self.scenario {
            Scenario::Abort => {
                let side = self.random.len(0, 1);
                let completions = self.random.len(0, flow.sides[side].work.len());
                flow.ending = Ending::Abort { side, completions };
            }
            Scenario::Mishap => self.mishap(&mut flow),
            _ => {}
        }
        flow
    }

    fn mishap(&mut self, flow: &mut FlowPlan) {
        const ALL: [Mishap; 8] = [
            Mishap::WriteBounds,
            Mishap::WriteStag,
            Mishap::WriteAccess,
            Mishap::ReadAccess,
            Mishap::ReadBounds,
            Mishap::NoReceive,
            Mishap::TooLong,
            Mishap::Invalidate,
        ];
        let side = self.random.len(0, 1);
        if self.random.one_in(8) {
            flow.ending = Ending::Overflow(side);
            // A side that never polls cannot know when there is room again.
            flow.sides[side].send_depth = 256;
            return;
        }
        let what = self.random.pick(&ALL);
        let kind = match what {
            Mishap::WriteBounds | Mishap::WriteStag | Mishap::WriteAccess | Mishap::WriteGuess => {
                Kind::Write
            }
            Mishap::ReadAccess | Mishap::ReadBounds => Kind::Read,
            Mishap::NoReceive | Mishap::TooLong => Kind::Send,
            Mishap::Invalidate => Kind::SendInvalidate,
        };
        let work = &mut flow.sides[side].work;
        let at = self.random.len(0, work.len() - 1);
        let len = self.random.len(1, 5000);
        // Without one Read in each direction no Read can fail.
        flow.sides.iter_mut().for_each(|side| side.depths = side.depths.map(|depth| depth.max(1)));
        let work = &mut flow.sides[side].work;
        work.insert(at, Op::new(kind, len));
        flow.ending = Ending::Mishap { side, at, what };
    }

    fn side(&mut self, peer_to_peer: bool) -> SidePlan {
        let mut work = self.work();
        let random = &mut self.random;
        let send_depth = random.pick(&[1, 2, 8, 64, 256]);
        // A side that never asks for a completion never learns that the queue has room again.
        for op in work.iter_mut().skip(send_depth - 1).step_by(send_depth) {
            op.signaled = true;
        }
        let lower_layer =
            if random.one_in(4) { LowerLayer::Layered } else { LowerLayer::Optimized };
        let stalls = self.scenario == Scenario::Stall;
        let lazy = stalls || random.one_in(6);
        SidePlan {
            startup: StartupConfig {
                markers: random.one_in(2),
                crc: !random.one_in(4),
                peer_to_peer,
                immediates: true,
                ..StartupConfig::default()
            },
            lower_layer,
            depths: [0, 1].map(|_| random.pick(&[1, 1, 2, 4, 16])),
            work,
            placed: false,
            send_depth,
            receives_posted: random.pick(&[1, 2, 8, 64]),
            poll_period_ns: if lazy { random.pick(&[1000, 50_000, 5_000_000]) } else { 0 },
            pause_ns: stalls.then(|| (random.below(5_000_000), random.below(10 * SECOND_NS))),
        }
    }

    fn work(&mut self) -> Vec<Op> {
        let count = match self.scenario {
            Scenario::Churn | Scenario::Star => self.random.len(0, 4),
            Scenario::Large => self.random.len(1, 12),
            // Deep queues of small requests.
            _ if self.random.one_in(10) => self.random.len(30, 200),
            _ => self.random.len(0, 16),
        };
        let len_max = match self.scenario {
            Scenario::Large => 1 << 20,
            Scenario::Churn => 3000,
            Scenario::Pressure if count < 20 => self.random.pick(&[10_000, 100_000, 300_000]),
            _ if count > 20 => 600,
            _ => self.random.pick(&[100, 3000, 10_000, 10_000, 40_000]),
        };
        let mut work: Vec<_> = (0..count).map(|_| self.op(len_max)).collect();
        work.push(LAST);
        work
    }

    fn op(&mut self, len_max: usize) -> Op {
        let random = &mut self.random;
        let kind = match random.below(20) {
            0..4 => Kind::Send,
            4 => Kind::SendInvalidate,
            5..10 => Kind::Write,
            10..13 => Kind::Read,
            13..15 => Kind::ReadBack,
            15 | 16 => Kind::Immediate,
            17 => Kind::FetchAdd,
            18 => Kind::CmpSwap,
            _ => Kind::LocalInvalidate,
        };
        let len = match random.below(8) {
            0 => random.len(0, 2),
            1 | 2 => random.len(0, 200),
            _ => random.len(0, len_max),
        };
        Op {
            kind,
            len,
            pieces: random.len(1, 4),
            fence: random.one_in(5),
            signaled: !random.one_in(5),
            solicited: random.one_in(2),
        }
    }
}
