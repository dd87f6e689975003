//! Each check of the oracle finds its fault: a run with an intentional fault fails, and says so.

use urnic_sim::plan::{Ending, Kind, Op, Sabotage};
use urnic_sim::{Plan, Scenario};

use crate::regressions;

/// Returns the failure of a plan with a fault. Without the fault the plan must pass.
fn found(plan: &Plan, sabotage: Sabotage) -> Option<String> {
    assert!(urnic_sim::run(plan).unwrap().is_ok(), "{sabotage:?}: fails by itself");
    let plan = Plan { sabotage: Some(sabotage), ..plan.clone() };
    urnic_sim::run(&plan).unwrap().err().map(|failure| failure.what)
}

/// Returns a plan of a connection with every operation, over a perfect link.
fn everything() -> Plan {
    let work = [
        Op::new(Kind::Write, 5000),
        Op::new(Kind::WriteImmediate, 5000),
        Op::new(Kind::Read, 300),
        Op::new(Kind::FetchAdd, 7),
        Op::new(Kind::Send, 100),
        Op::new(Kind::ReadLive, 64),
        Op::new(Kind::Send, 3),
    ];
    regressions::plan(&work, &[Op::new(Kind::Send, 3)])
}

#[test]
fn faults_of_one_connection_are_found() {
    let placed = {
        let mut plan = everything();
        plan.flows[0].sides[0].placed = true;
        plan
    };
    let aborted = {
        let mut plan = everything();
        let side = &mut plan.flows[0].sides[0];
        side.send_depth = 16;
        plan.flows[0].ending = Ending::Abort { side: 0, completions: 0 };
        plan
    };
    let cases = [
        (everything(), Sabotage::Guard, "byte 0 of memory (a guard) is"),
        (everything(), Sabotage::Sink, "was delivered before"),
        (placed, Sabotage::Sink, "has completed and is not at the peer"),
        (everything(), Sabotage::Landing, "completed without its bytes"),
        (everything(), Sabotage::Atomic, "atomic 3 found"),
        (everything(), Sabotage::SendOrder, "is not the completion that comes next"),
        (everything(), Sabotage::SendOpcode, " for Op "),
        (everything(), Sabotage::ReceiveOrder, "is not the receive that comes next"),
        (everything(), Sabotage::ReceiveLength, " instead of "),
        (everything(), Sabotage::Counter, "not a count of"),
        (aborted.clone(), Sabotage::LostSend, "not all that was posted has completed"),
        (aborted, Sabotage::LostReceive, "not all that was posted has completed"),
        (everything(), Sabotage::Region, "1 regions are kept after their last use"),
        (everything(), Sabotage::Connection, "node 0 keeps 1 connections"),
        (everything(), Sabotage::Crc, "1 CRCs are wrong"),
    ];
    for (plan, sabotage, text) in cases {
        let found = found(&plan, sabotage).unwrap_or_default();
        assert!(found.contains(text), "{sabotage:?}: {found:?}");
    }
}

#[test]
fn faults_of_each_scenario_are_found() {
    let cases = [
        (Scenario::Changing, Sabotage::Revoked, "bytes that were written after the invalidation"),
        (Scenario::Ends, Sabotage::LeftBehind, " messages, but only "),
        (Scenario::Vanish, Sabotage::Impatience, "waited for an acknowledgment"),
        (Scenario::Vanish, Sabotage::State, "the queue pair is Rts after the end"),
        (Scenario::Recut, Sabotage::Held, "has held more than 0 bytes"),
        (Scenario::Exhausted, Sabotage::Late, "is affected by hostile peers"),
        (Scenario::Exhausted, Sabotage::Undone, "has not done its work"),
        (Scenario::Guesses, Sabotage::Request, "a Request that no flow made"),
        (Scenario::Shared, Sabotage::Buffer, "shared buffers are there at the end"),
        (Scenario::Shared, Sabotage::Slack, "shared buffer 0 was written without a message"),
        (Scenario::Shared, Sabotage::Believed, "a liar was believed"),
    ];
    for (scenario, sabotage, text) in cases {
        // Not every plan of the scenario reaches the check.
        let plans = (0..40).map(|seed| Plan::of_seed(seed, Some(scenario)));
        let found: Vec<_> = plans.filter_map(|plan| found(&plan, sabotage)).take(3).collect();
        assert!(!found.is_empty(), "{sabotage:?} is never found");
        assert!(found.iter().all(|what| what.contains(text)), "{sabotage:?}: {found:?}");
    }
}

/// Plans include Write, Read and Send as ready-to-receive messages, depths of 0, 1 and not
/// negotiated, and Writes with Immediate Data in several segments.
#[test]
fn connections_begin_in_every_way() {
    let (mut kinds, mut said, mut unsaid, mut long) = ([0; 8], [0; 3], 0, 0);
    for seed in 0..400 {
        for flow in Plan::of_seed(seed, None).flows {
            let [a, b] = &flow.sides;
            if a.startup.peer_to_peer {
                kinds[usize::from((a.startup.rtr & b.startup.rtr).bits())] += 1;
                unsaid += usize::from(!a.startup.negotiate_depths);
            }
            for depth in [a.depths, b.depths].concat() {
                said[usize::from(depth.min(2))] += 1;
            }
            let work = a.work.iter().chain(&b.work);
            long += work.filter(|op| op.kind == Kind::WriteImmediate && op.len > 9000).count();
        }
    }
    assert!(kinds.iter().filter(|count| **count > 5).count() >= 5, "{kinds:?}");
    assert!(said.iter().all(|count| *count > 50) && unsaid > 20 && long > 20);
}
