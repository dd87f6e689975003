//! Draws the start of connections: every kind of ready-to-receive message, and depths of 0, 1 and
//! "not negotiated" (RFC 6581 §9). Also draws Writes with Immediate Data.

use urnic_engine::mpa::startup::RtrKinds;

use crate::plan::{Ending, FlowPlan, Kind, Mishap, Op, Plan};
use crate::random::Random;
use crate::scenario::Scenario;

/// Derives another seed, so that the rest of a plan stays the same.
const READY_BITS: u64 = 0x7265_6164_7921_2121;

const KINDS: [RtrKinds; 7] = [
    RtrKinds::SEND,
    RtrKinds::WRITE,
    RtrKinds::READ,
    RtrKinds::READ,
    RtrKinds::SEND.union(RtrKinds::WRITE),
    RtrKinds::SEND.union(RtrKinds::READ),
    RtrKinds::all(),
];

pub(super) fn vary(plan: &mut Plan) {
    let mut random = Random::new(plan.seed ^ READY_BITS);
    let keeps_reads = plan.scenario == Scenario::Changing;
    for flow in plan.flows.iter_mut().filter(|flow| !flow.is_hostile) {
        with_immediates(&mut random, flow);
        if random.one_in(2) {
            kinds(&mut random, flow);
        }
        let keeps_reads = keeps_reads || is_about_a_read(flow.ending);
        if random.one_in(3) && !keeps_reads {
            depths(&mut random, flow);
        }
    }
}

fn is_about_a_read(ending: Ending) -> bool {
    matches!(ending, Ending::Invalidate { .. })
        || matches!(ending, Ending::Mishap { what: Mishap::ReadAccess | Mishap::ReadBounds, .. })
}

fn with_immediates(random: &mut Random, flow: &mut FlowPlan) {
    let ending = flow.ending;
    for (side, plan) in flow.sides.iter_mut().enumerate() {
        for (index, op) in plan.work.iter_mut().enumerate() {
            let is_mishap = matches!(
                ending,
                Ending::Mishap { side: bad, at, .. } if (bad, at) == (side, index)
            );
            if op.kind == Kind::Write && !is_mishap && random.one_in(4) {
                op.kind = Kind::WriteImmediate;
            }
        }
    }
}

/// Draws kinds; both ends have one in common.
fn kinds(random: &mut Random, flow: &mut FlowPlan) {
    let own = random.pick(&KINDS);
    let other = random.pick(&KINDS);
    let other = if own.intersects(other) { other } else { own };
    for (side, rtr) in flow.sides.iter_mut().zip([own, other]) {
        side.startup.rtr = rtr;
    }
}

/// Ends request no Reads, accept none, or request and accept one.
fn depths(random: &mut Random, flow: &mut FlowPlan) {
    let is_said = random.one_in(2);
    // The Request decides if depths are negotiated.
    flow.sides[0].startup.negotiate_depths = is_said;
    let common = flow.sides[0].startup.rtr & flow.sides[1].startup.rtr;
    let sends_read = flow.sides[0].startup.peer_to_peer
        && common.contains(RtrKinds::READ)
        && !common.contains(RtrKinds::WRITE);
    for side in [0, 1] {
        let [ird, ord] = match random.below(4) {
            0 => [flow.sides[1 - side].depths[0], 0],
            1 if is_said => [0, flow.sides[side].depths[1]],
            1 | 2 => [0, 0],
            _ => [1, 1],
        };
        flow.sides[1 - side].depths[0] = ird;
        flow.sides[side].depths[1] = ord;
        if ird.min(ord) == 0 {
            flow.sides[side].work.iter_mut().for_each(write_instead);
        }
        // After the ready-to-receive Read, confirmations may use its entry.
        let has_place = if is_said { ird > 0 } else { ord > 0 || (side == 0 && sends_read) };
        flow.sides[side].placed &= has_place;
    }
    if !is_said {
        // Only the plan keeps an end from requesting more Reads than the other accepts.
        for side in [0, 1] {
            let ird = flow.sides[1 - side].depths[0];
            let ord = &mut flow.sides[side].depths[1];
            *ord = (*ord).min(ird);
        }
    }
}

fn write_instead(op: &mut Op) {
    if op.kind.is_read() {
        op.kind = Kind::Write;
    }
}
