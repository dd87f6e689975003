//! Draws two connections on one shared receive queue, and liars that use the same queue.

use urnic_netdev::impair::ImpairConfig;

use crate::liar::MESSAGE_LEN;
use crate::plan::{LiarPlan, Plan, SharedPlan, Start};
use crate::random::Random;

use super::{Drawing, HELD_MAX, MILLISECOND_NS};

const SHARED_BITS: u64 = 0x0073_6861_7265_6421;
const SHARED_ONE_IN: u64 = 32;
const LEN_MAX: usize = 3000;
/// Distance from the next message number: near ones, within the depth of a queue, the limit of what
/// an engine may accept, and half of the number space or more.
const LIES: [u32; 14] = [
    1,
    2,
    3,
    10,
    100,
    1000,
    16_383,
    16_384,
    16_385,
    1_000_000,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    u32::MAX,
];

pub(super) fn is_drawn(seed: u64) -> bool {
    Random::new(seed ^ SHARED_BITS).one_in(SHARED_ONE_IN)
}

impl Drawing {
    /// Node 0 has the queue, nodes 1 and 2 are honest peers, and node 3 lies.
    pub(super) fn shared(&mut self, plan: &mut Plan) {
        while plan.flows.len() < 2 {
            let flow = self.flow(plan.flows.len(), plan.nodes.len());
            plan.flows.push(flow);
        }
        plan.flows.truncate(2);
        let random = &mut self.random;
        let waits = random.one_in(3);
        let mut messages = 0;
        for (index, flow) in plan.flows.iter_mut().enumerate() {
            flow.nodes = [1 + index, 0];
            flow.start = Start::At(random.below(20 * MILLISECOND_NS));
            (flow.waits, flow.shares) = (waits, true);
            for op in &mut flow.sides[0].work {
                if op.kind.is_message() && !op.kind.is_write() {
                    op.len = op.len.min(LEN_MAX);
                    messages += 1;
                }
            }
        }
        let count = random.len(1, 8);
        let liars: Vec<_> = (0..count).map(|_| liar(random)).collect();
        let taken: usize = liars.iter().map(LiarPlan::buffers_max).sum();
        // Each message and Write with Immediate Data needs a buffer if messages may not wait.
        let work = plan.flows.iter().flat_map(|flow| &flow.sides[0].work);
        let writes = work.filter(|op| op.kind.is_write()).count();
        let buffers =
            taken + if waits { random.len(1, 8) } else { messages + writes + random.len(0, 4) };
        plan.shared = Some(SharedPlan { buffers, len: LEN_MAX.max(MESSAGE_LEN), liars });
        plan.nodes[3].impair = ImpairConfig {
            loss: random.chance(5),
            reorder: random.chance(30),
            duplicate: random.chance(10),
            resegment: random.chance(30),
            held_max: HELD_MAX,
            ..ImpairConfig::default()
        };
    }
}

fn liar(random: &mut Random) -> LiarPlan {
    let at_ns = match random.below(3) {
        0 => 0,
        1 => random.below(30 * MILLISECOND_NS),
        _ => random.below(300 * MILLISECOND_NS),
    };
    let messages = u32::try_from(random.below(8)).unwrap_or(0);
    LiarPlan { at_ns, messages, is_partial: random.one_in(3), lie: random.pick(&LIES) }
}
