//! Each check of the oracle finds its fault: a run with an intentional fault fails, and says so.

use std::fs;
use std::path::Path;

use urnic_sim::plan::{Act, Change, Deed, Ending, Event, Kind, Op, Sabotage, Silence, Start};
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

/// Returns a plan of a transfer that takes more than 50 ms.
fn long() -> Plan {
    let mut plan = regressions::plan(&[Op::new(Kind::Write, 1 << 21)], &[Op::new(Kind::Send, 3)]);
    plan.link.latency_ns = 1_000_000;
    plan.nodes.iter_mut().for_each(|node| {
        (node.user_timeout_ns, node.window_bytes) = (1_000_000_000, 1 << 16);
        node.keepalive_ns = Some(1_000_000_000);
    });
    plan
}

/// Returns the reports of faults of one connection.
#[expect(clippy::too_many_lines, reason = "a table")]
fn reports_of_one_connection() -> Vec<String> {
    let placed = {
        let mut plan = everything();
        plan.flows[0].sides[0].placed = true;
        plan
    };
    // The responder's application takes the messages after they are confirmed.
    let paused = {
        let mut plan = regressions::plan(&[Op::new(Kind::Send, 3)], &[Op::new(Kind::Send, 3)]);
        plan.flows[0].sides[0].placed = true;
        plan.flows[0].sides[1].pause_ns = Some((0, 1_000_000_000));
        plan
    };
    let aborted = {
        let mut plan = everything();
        let side = &mut plan.flows[0].sides[0];
        side.send_depth = 16;
        plan.flows[0].ending = Ending::Abort { side: 0, completions: 0 };
        plan
    };
    // A peer vanishes in the middle of a transfer.
    let vanished = {
        let mut plan = long();
        plan.silence = Some(Silence::At(20_000_000));
        plan
    };
    let left = {
        let mut plan = everything();
        plan.flows[0].sides[0].send_depth = 16;
        let act = |what| Act { what, after_ns: 0 };
        plan.flows[0].ending = Ending::Acts([act(Deed::Leave), act(Deed::Nothing)]);
        plan
    };
    let beside = Plan { scenario: Scenario::Exhausted, ..everything() };
    let work_of = |kind| regressions::plan(&[Op::new(kind, 4)], &[Op::new(Kind::Send, 3)]);
    let receives = "Success, opcode: ";
    let cases = [
        (everything(), Sabotage::Guard, "side 1: byte 0 of memory (a guard) is"),
        (everything(), Sabotage::Stray, "side 0: byte 0 of memory (a guard) is"),
        (aborted.clone(), Sabotage::Stray, "side 0: byte 0 of memory (a guard) is"),
        (everything(), Sabotage::Number, "of memory (Numbers + 0) is"),
        (everything(), Sabotage::Sink, "was delivered before"),
        (everything(), Sabotage::Inbox, "was delivered before"),
        (placed, Sabotage::Sink, "has completed and is not at the peer"),
        (paused, Sabotage::Inbox, "has completed and is not at the peer"),
        (everything(), Sabotage::Landing, "completed without its bytes"),
        (work_of(Kind::ReadBack), Sabotage::Landing, "completed without its bytes"),
        (everything(), Sabotage::ReadLength, "completed without its bytes"),
        (everything(), Sabotage::Atomic, "atomic 3 found"),
        (work_of(Kind::CmpSwap), Sabotage::Atomic, "atomic 0 found"),
        (everything(), Sabotage::SendOrder, "is not the completion that comes next: Some("),
        (everything(), Sabotage::SendRepeated, "is not the completion that comes next: None"),
        (everything(), Sabotage::SendOpcode, " for Op "),
        (aborted.clone(), Sabotage::Revived, "status: Success"),
        (everything(), Sabotage::ReceiveOrder, "is not the receive that comes next"),
        (everything(), Sabotage::ReceiveLength, receives),
        (everything(), Sabotage::ReceiveOpcode, receives),
        (everything(), Sabotage::ReceiveQp, receives),
        (everything(), Sabotage::ReceiveInvalidated, receives),
        (work_of(Kind::SendInvalidate), Sabotage::ReceiveInvalidated, "instead of"),
        (everything(), Sabotage::ReceiveSolicited, receives),
        (everything(), Sabotage::ReceiveValue, receives),
        (everything(), Sabotage::Counter, "not a count of"),
        (everything(), Sabotage::Stale, "not a count of"),
        (aborted.clone(), Sabotage::LostSend, "not all that was posted has completed"),
        (aborted, Sabotage::LostReceive, "not all that was posted has completed"),
        (everything(), Sabotage::Region, "1 regions are kept after their last use"),
        (everything(), Sabotage::Connection, "node 0 keeps 1 connections, 0 bytes"),
        (everything(), Sabotage::Piece, "node 0 keeps 0 connections, 1 bytes"),
        (everything(), Sabotage::Endless, "frames never end"),
        (everything(), Sabotage::Gone, "side 0: the connection is over"),
        (everything(), Sabotage::Crc, "1 CRCs are wrong"),
        (left, Sabotage::LeftBehind, "side 0 left 4 messages, but only 3 came"),
        (vanished.clone(), Sabotage::Impatience, "waited for an acknowledgment"),
        (vanished, Sabotage::State, "the queue pair is Rts after the end"),
        (beside.clone(), Sabotage::Late, "is affected by hostile peers"),
        (beside.clone(), Sabotage::Again, "is affected by hostile peers"),
        (beside, Sabotage::Undone, "has not done its work"),
    ];
    let found = cases.into_iter().map(|(plan, sabotage, text)| {
        let found = found(&plan, sabotage).unwrap_or_default();
        assert!(found.contains(text), "{sabotage:?}: {found:?}");
        found
    });
    found.collect()
}

/// Returns the reports of faults of scenarios.
fn reports_of_scenarios() -> Vec<String> {
    let cases = [
        (Scenario::Changing, Sabotage::Revoked, "bytes that were written after the invalidation"),
        (Scenario::Recut, Sabotage::Held, "has held more than 0 bytes"),
        (Scenario::Guesses, Sabotage::Request, "a Request that no flow made"),
        (Scenario::Shared, Sabotage::Buffer, "shared buffers are there at the end"),
        (Scenario::Shared, Sabotage::Slack, "shared buffer 0 was written without a message"),
        (Scenario::Shared, Sabotage::Behind, "was written behind its message"),
        (Scenario::Shared, Sabotage::Long, " bytes in a shared buffer of "),
        (Scenario::Shared, Sabotage::Nameless, "is none of the shared buffers"),
        (Scenario::Shared, Sabotage::Believed, "a liar was believed"),
        (Scenario::Shared, Sabotage::LiarPayload, "message 1 of a liar"),
        (Scenario::Shared, Sabotage::LiarCount, "message 1 of a liar"),
    ];
    let mut all = Vec::new();
    for (scenario, sabotage, text) in cases {
        // Not every plan of the scenario reaches the check.
        let mut plans = (0..40).map(|seed| Plan::of_seed(seed, Some(scenario)));
        let found = plans.find_map(|plan| found(&plan, sabotage)).unwrap_or_default();
        assert!(found.contains(text), "{sabotage:?}: {found:?}");
        all.push(found);
    }
    all
}

/// Returns the reports of plans that cannot succeed.
fn reports_of_impossible_plans() -> Vec<String> {
    let send = Op::new(Kind::Send, 3);
    let with = |change: fn(&mut Plan)| {
        let mut plan = regressions::plan(&[send], &[send]);
        change(&mut plan);
        plan
    };
    let down = {
        let mut plan = long();
        plan.changes = vec![Change { at_ns: 20_000_000, what: Event::Link(false) }];
        plan
    };
    // A path whose datagrams are smaller than those of the link.
    let small = |plan: &mut Plan| {
        plan.scenario = Scenario::Pause;
        plan.nodes[0].impair.path_mtu = Some(1280);
        plan.flows[0].sides[0].work = vec![Op::new(Kind::Write, 100_000), Op::new(Kind::Send, 3)];
        plan.flows[0].sides[0].pause_ns = Some((1_000_000, 2_000_000_000));
    };
    // An operation that the peer does not know.
    let unknown = |plan: &mut Plan| {
        plan.flows[0].sides[0].startup.immediates = false;
        plan.flows[0].sides[0].work = vec![Op::new(Kind::Immediate, 3)];
    };
    let cases = [
        (with(|plan| plan.flows[0].start = Start::At(71_000_000_000)), "not over in time: flow 0"),
        (with(|plan| plan.flows[0].start = Start::After(0)), "nothing ever happens again: flow 0"),
        (down, "side 0: Failed("),
        (with(small), "sends datagrams of Some(1280) after a pause"),
        (with(unknown), "request 0 cannot be posted"),
    ];
    let found = cases.map(|(plan, text)| {
        let found = urnic_sim::run(&plan).unwrap().err().map(|failure| failure.what);
        let found = found.unwrap_or_default();
        assert!(found.contains(text), "{text:?}: {found:?}");
        found
    });
    // Just in time.
    assert!(
        urnic_sim::run(&with(|plan| plan.flows[0].start = Start::At(65_000_000_000)))
            .unwrap()
            .is_ok()
    );
    found.into()
}

/// Refusals of calls that no plan causes.
const UNREACHED: [&str; 4] = [
    "an idle connection: ",
    "a liar's connection: ",
    "a receive cannot be posted: ",
    "a shared buffer: ",
];

/// Returns the texts of all reports in the oracle's sources, each as its parts between values.
fn templates() -> Vec<Vec<String>> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let names = [
        "run.rs",
        "run/checks.rs",
        "flow.rs",
        "flow/oracle.rs",
        "side.rs",
        "side/changing.rs",
        "side/placed.rs",
        "side/shared.rs",
        "shared.rs",
        "liar.rs",
        "live.rs",
    ];
    let mut templates = Vec::new();
    for name in names {
        let text = fs::read_to_string(sources.join(name)).unwrap();
        let calls = ["format!(", "Err("].map(|call| text.split(call).skip(1).collect::<Vec<_>>());
        for rest in calls.concat() {
            let Some(rest) = rest.trim_start().strip_prefix('"') else { continue };
            let template = rest.split('"').next().unwrap();
            // The place of another report, and the progress of a flow.
            let is_part = template.ends_with("{text}") || template.starts_with("flow {index} {:?}");
            if is_part || UNREACHED.iter().any(|text| template.starts_with(text)) {
                continue;
            }
            let parts = template.split(['{', '}']).step_by(2);
            templates.push(parts.map(str::to_owned).collect());
        }
    }
    templates
}

/// Returns true if `report` consists of these parts, with values between them.
fn is_of(report: &str, parts: &[String]) -> bool {
    let mut rest = report;
    parts.iter().all(|part| match rest.find(part.as_str()) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[test]
fn each_check_finds_its_fault() {
    let mut reports = reports_of_one_connection();
    reports.extend(reports_of_impossible_plans());
    reports.extend(reports_of_scenarios());
    let templates = templates();
    assert!(templates.len() > 30, "{templates:?}");
    for parts in templates {
        let is_found = reports.iter().any(|report| is_of(report, &parts));
        assert!(is_found, "no fault is reported by {parts:?}");
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
