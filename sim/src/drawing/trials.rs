//! Draws further scenarios: endings in every order, exhausted resources, memory that changes while
//! it is read, guessed secrets, and messages that arrive before their receives.

use urnic_engine::limits::HELD_BYTES_MAX;
use urnic_engine::port::LowerLayer;
use urnic_netdev::impair::ImpairConfig;

use crate::plan::{
    Act, Change, Deed, Ending, Event, FlowPlan, Guesses, Idler, Kind, Mishap, Op, Plan, Says,
    Silence, Start,
};
use crate::random::Random;
use crate::scenario::Scenario;

use super::{Drawing, MILLISECOND_NS, SECOND_NS};

const TRIAL_BITS: u64 = 0x0074_7269_616c_7321;
const TRIAL_ONE_IN: u64 = 4;
const TRIALS: [Scenario; 4] =
    [Scenario::Ends, Scenario::Exhausted, Scenario::Changing, Scenario::Guesses];

const UNREADY_BITS: u64 = 0x756e_7265_6164_7921;
const UNREADY_ONE_IN: u64 = 16;

const PAUSE_BITS: u64 = 0x0070_6175_7365_7321;
const PAUSE_ONE_IN: u64 = 24;
/// Milliseconds: of a scheduler, and of a machine that is moved to another host.
const PAUSES_MS: [u64; 5] = [20, 120, 600, 2000, 4000];

pub(super) fn draw(seed: u64) -> Option<Scenario> {
    if Random::new(seed ^ PAUSE_BITS).one_in(PAUSE_ONE_IN) {
        return Some(Scenario::Pause);
    }
    if Random::new(seed ^ UNREADY_BITS).one_in(UNREADY_ONE_IN) {
        return Some(Scenario::Unready);
    }
    let mut random = Random::new(seed ^ TRIAL_BITS);
    random.one_in(TRIAL_ONE_IN).then(|| random.pick(&TRIALS))
}

/// Damages no frame, since the CRCs must stay right while memory changes.
pub(super) fn unchanging(random: &mut Random, quiet: ImpairConfig) -> ImpairConfig {
    let mut perhaps = |percent_max| if random.one_in(3) { 0.0 } else { random.chance(percent_max) };
    ImpairConfig {
        loss: perhaps(10),
        reorder: perhaps(10),
        duplicate: perhaps(5),
        resegment: perhaps(40),
        ack_loss: perhaps(20),
        ..quiet
    }
}

impl Drawing {
    /// Adapts the plan if the scenario needs more than faults of links.
    pub(super) fn make_trial(&mut self, plan: &mut Plan) {
        match self.scenario {
            Scenario::Ends => self.ends(plan),
            Scenario::Exhausted => self.exhausted(plan),
            Scenario::Changing => self.changing(plan),
            Scenario::Guesses => self.guesses(plan),
            Scenario::Unready => self.unready(plan),
            Scenario::Pause => self.pauses(plan),
            Scenario::Moving => self.moving(plan),
            Scenario::Shared => self.shared(plan),
            _ => {}
        }
    }

    /// Hosts stop, one after the other. A pause begins after the effects of the last one are over.
    fn pauses(&mut self, plan: &mut Plan) {
        let random = &mut self.random;
        let mut at_ns = 0;
        for _ in 0..random.between(1, 4) {
            let node = random.len(0, plan.nodes.len() - 1);
            let longest_ns = random.pick(&PAUSES_MS) * MILLISECOND_NS;
            let length_ns = longest_ns / 2 + random.below(longest_ns / 2);
            let most_ns = random.pick(&[200_000, 20 * MILLISECOND_NS, SECOND_NS]);
            at_ns += random.below(most_ns);
            plan.changes.push(Change { at_ns, what: Event::Pause(node, length_ns) });
            at_ns += length_ns + SECOND_NS;
        }
    }

    /// Each side ends the connection by its own action at any time, Requests are rejected,
    /// listeners are replaced, and a peer vanishes while the other one closes.
    fn ends(&mut self, plan: &mut Plan) {
        let round_ns = 2 * plan.link.latency_ns + 100_000;
        for flow in &mut plan.flows {
            if self.random.one_in(3) {
                flow.rejects = u32::try_from(self.random.between(1, 3)).unwrap_or(1);
            }
            if self.random.one_in(5) {
                continue;
            }
            let mut acts = [0, 1].map(|_| self.act(round_ns));
            if acts.iter().all(|act| act.what == Deed::Nothing) {
                acts[self.random.len(0, 1)].what = Deed::Disconnect;
            }
            flow.ending = Ending::Acts(acts);
        }
        let random = &mut self.random;
        for _ in 0..random.below(4) {
            let at_ns = random.below(30 * MILLISECOND_NS);
            let node = random.len(0, plan.nodes.len() - 1);
            plan.changes.push(Change { at_ns, what: Event::ListenAgain(node) });
        }
        plan.changes.sort_by_key(|change| change.at_ns);
        if random.one_in(4) {
            plan.silence = Some(if random.one_in(2) {
                Silence::At(random.below(20 * round_ns))
            } else {
                Silence::Closing(random.below(4 * round_ns))
            });
            for node in &mut plan.nodes {
                node.user_timeout_ns = random.pick(&[2, 20]) * SECOND_NS;
                node.keepalive_ns = Some(random.pick(&[1, 30]) * SECOND_NS);
            }
        }
    }

    fn act(&mut self, round_ns: u64) -> Act {
        let random = &mut self.random;
        let what = random.pick(&[
            Deed::Nothing,
            Deed::Disconnect,
            Deed::Disconnect,
            Deed::Abort,
            Deed::Leave,
        ]);
        let after_ns = match random.below(3) {
            0 => 0,
            1 => random.below(4 * round_ns),
            _ => random.below(50 * round_ns),
        };
        Act { what, after_ns }
    }

    /// Node 0 has few resources, which node 1 needs; all other nodes take what they can get.
    fn exhausted(&mut self, plan: &mut Plan) {
        let random = &mut self.random;
        plan.nodes[0].piece_blocks = 0;
        for node in &mut plan.nodes {
            node.window_bytes = random.pick(&[20_000, 1 << 20, 4 << 20]);
            node.user_timeout_ns = random.pick(&[2, 20]) * SECOND_NS;
            node.keepalive_ns = Some(random.pick(&[1, 30]) * SECOND_NS);
        }
        let hostile = 2..plan.nodes.len();
        // One connection that works, and some that hold bytes for ever.
        plan.flows.truncate(1);
        let holders = random.len(0, 6);
        let honest = &mut plan.flows[0];
        honest.ipv6 = false;
        // The listeners are at node 0.
        honest.nodes = [1, 0];
        honest.start = Start::At(random.below(200 * MILLISECOND_NS));
        let template = honest.clone();
        for index in 0..holders {
            let node = self.random.len(hostile.start, hostile.end - 1);
            let flow = self.holder(&template, index + 1, node);
            plan.flows.push(flow);
        }
        for node in hostile {
            self.harm(plan, node);
        }
        plan.idlers.sort_by_key(|idler| idler.at_ns);
        plan.changes.sort_by_key(|change| change.at_ns);
    }

    /// A hostile node, which sends a lot. Little of that arrives in order.
    fn holder(&mut self, honest: &FlowPlan, index: usize, node: usize) -> FlowPlan {
        let mut flow = honest.clone();
        flow.nodes = [node, 0];
        flow.listener = u16::try_from(index).expect("few flows");
        flow.is_hostile = true;
        flow.start = Start::At(self.random.below(20 * MILLISECOND_NS));
        flow.ending = Ending::CloseBoth;
        flow.sides[0].startup.markers = self.random.one_in(2);
        flow.sides[1].startup.markers = self.random.one_in(2);
        flow.sides[0].lower_layer = LowerLayer::Optimized;
        let len = self.random.len(30_000, 300_000);
        flow.sides[0].work = vec![Op::new(Kind::Write, len); 4];
        flow.sides[1].work = Vec::new();
        flow
    }

    /// Frames of a hostile node arrive in pieces and out of order; it opens connections and stays
    /// silent on them, and it vanishes.
    fn harm(&mut self, plan: &mut Plan, node: usize) {
        let random = &mut self.random;
        let bad = ImpairConfig {
            loss: 0.05 + random.chance(30),
            reorder: random.chance(50),
            resegment: 1.0,
            resegment_pieces_max: random.len(2, 16),
            held_max: 4096,
            ..ImpairConfig::default()
        };
        plan.nodes[node].impair = bad;
        let gone_ns = random.between(1, 300) * MILLISECOND_NS;
        let gone = ImpairConfig { outage: true, ..bad };
        plan.changes.push(Change { at_ns: gone_ns, what: Event::Impair(node, gone) });
        for _ in 0..random.below(4) {
            let says = match random.below(5) {
                0 => Says::Nothing,
                1 => Says::HalfRequest,
                2 => Says::Request { rejected: true },
                3 => Says::Request { rejected: false },
                _ => Says::Garbage,
            };
            let count = random.pick(&[1, 20, 260, 600]);
            let at_ns = random.below(gone_ns);
            plan.idlers.push(Idler { node, at_ns, count, says });
        }
    }

    /// Reads of memory that its owner keeps writing, through windows that are closed at times, and
    /// perhaps invalidated while Reads are in flight.
    fn changing(&mut self, plan: &mut Plan) {
        for flow in &mut plan.flows {
            for side in 0..2 {
                let len_max = self.random.pick(&[64, 3000, 20_000, 60_000]);
                let reads = self.random.len(1, 12);
                let side = &mut flow.sides[side];
                side.work.truncate(6);
                for _ in 0..reads {
                    let len = 8 * self.random.len(0, len_max / 8);
                    let at = self.random.len(0, side.work.len());
                    side.work.insert(at, Op::new(Kind::ReadLive, len));
                }
                side.work.push(Op { solicited: true, ..Op::new(Kind::Send, 3) });
                side.work.iter_mut().for_each(|op| op.signaled = true);
                side.depths = side.depths.map(|depth| depth.max(1));
            }
            if self.random.one_in(2) {
                let side = self.random.len(0, 1);
                let round_ns = 2 * plan.link.latency_ns + 100_000;
                let after_ns = self.random.below(20 * round_ns);
                flow.ending = Ending::Invalidate { side, after_ns };
            }
        }
    }

    /// Draws forged frames, and connections whose Writes guess a tag.
    fn guesses(&mut self, plan: &mut Plan) {
        let random = &mut self.random;
        plan.guesses = Some(Guesses {
            count: random.between(50, 1500),
            period_ns: random.pick(&[500, 10_000, 200_000]),
        });
        for flow in plan.flows.iter_mut().skip(1) {
            let at = random.len(0, flow.sides[0].work.len() - 1);
            let len = random.len(1, 3000);
            flow.sides[0].work.insert(at, Op::new(Kind::Write, len));
            flow.ending = Ending::Mishap { side: 0, at, what: Mishap::WriteGuess };
        }
    }

    /// Applications poll late, or not for a while. Sometimes more is sent than may wait, or a
    /// message is too long.
    fn unready(&mut self, plan: &mut Plan) {
        let much = self.random.one_in(10);
        for flow in &mut plan.flows {
            let random = &mut self.random;
            flow.waits = true;
            for side in &mut flow.sides {
                side.poll_period_ns = random.pick(&[0, 1000, 50_000, 1_000_000]);
                if random.one_in(2) {
                    side.pause_ns = Some((random.below(5_000_000), random.below(3 * SECOND_NS)));
                }
                let messages = random.len(0, 8);
                for _ in 0..messages {
                    let at = random.len(0, side.work.len() - 1);
                    let len = random.len(0, 20_000);
                    side.work.insert(at, Op { pieces: 2, ..Op::new(Kind::Send, len) });
                }
            }
            if much {
                let len = HELD_BYTES_MAX / random.len(4, 12);
                let side = &mut flow.sides[0];
                side.work.splice(0..0, vec![Op::new(Kind::Send, len); 14]);
                side.send_depth = 256;
            } else if random.one_in(4) {
                let side = random.len(0, 1);
                let work = &mut flow.sides[side].work;
                let at = random.len(0, work.len() - 1);
                work.insert(at, Op::new(Kind::Send, random.len(1, 5000)));
                flow.ending = Ending::Mishap { side, at, what: Mishap::TooLong };
            } else if random.one_in(6) {
                let side = random.len(0, 1);
                let completions = random.len(0, flow.sides[side].work.len());
                flow.ending = Ending::Abort { side, completions };
            }
        }
        if much {
            plan.nodes.iter_mut().for_each(|node| node.window_bytes = 4 << 20);
        }
    }
}
