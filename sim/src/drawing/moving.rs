//! Draws hosts that get another link address while data is in flight.

use crate::plan::{Change, Event, Kind, Op, Plan};
use crate::random::Random;

use super::{Drawing, SECOND_NS};

const MOVING_BITS: u64 = 0x006d_6f76_696e_6721;
const MOVING_ONE_IN: u64 = 32;
/// Made-up hosts at once: fewer, and more, than a neighbour table holds.
const CROWD: [u64; 2] = [300, 1500];

pub(super) fn is_drawn(seed: u64) -> bool {
    Random::new(seed ^ MOVING_BITS).one_in(MOVING_ONE_IN)
}

impl Drawing {
    /// Crowds of made-up hosts evict entries of neighbour tables, during long transfers.
    pub(super) fn moving(&mut self, plan: &mut Plan) {
        let random = &mut self.random;
        for node in &mut plan.nodes {
            node.window_bytes = random.pick(&[3000, 20_000, 65_535]);
        }
        for side in plan.flows.iter_mut().flat_map(|flow| &mut flow.sides) {
            side.depths = side.depths.map(|depth| depth.max(1));
            // Sometimes only one side has much to send, and the other side mostly acknowledges.
            let more = if random.one_in(3) { 0 } else { random.len(1, 6) };
            for _ in 0..more {
                let kind = random.pick(&[Kind::Write, Kind::Write, Kind::Send, Kind::Read]);
                let at = random.len(0, side.work.len() - 1);
                side.work.insert(at, Op::new(kind, random.len(5000, 60_000)));
            }
        }
        let round_ns = 4 * plan.link.latency_ns + 100_000;
        let mut at_ns = 0;
        for _ in 0..random.between(1, 5) {
            at_ns += match random.below(4) {
                0 => random.below(4 * round_ns),
                1 | 2 => random.below(40 * round_ns),
                _ => random.below(2 * SECOND_NS),
            };
            let node = random.len(0, plan.nodes.len() - 1);
            let [least, most] = CROWD;
            let mut push = |what| plan.changes.push(Change { at_ns, what });
            if random.one_in(3) {
                for of in 0..plan.nodes.len() {
                    let hosts = u32::try_from(random.between(least, most)).unwrap_or(0);
                    if random.one_in(2) {
                        push(Event::Crowd(of, hosts));
                    }
                }
            }
            push(Event::Move(node, random.one_in(2)));
        }
        plan.changes.sort_by_key(|change| change.at_ns);
    }
}
