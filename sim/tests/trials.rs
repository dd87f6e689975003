//! The scenarios of ends, exhaustion, change and guesses meet the situations that they are for.

use std::collections::HashSet;

use urnic_sim::plan::{Change, Deed, Ending, Event, FabricEvent, Kind, Mishap, Says};
use urnic_sim::{Plan, Scenario};

fn plans(name: &str, count: u64) -> impl Iterator<Item = Plan> {
    let scenario = Scenario::of_name(name).unwrap();
    (0..count).map(move |seed| Plan::of_seed(seed, Some(scenario)))
}

#[test]
fn a_quarter_of_all_seeds_are_trials() {
    let trials = [Scenario::Ends, Scenario::Exhausted, Scenario::Changing, Scenario::Guesses];
    let drawn: Vec<_> = (0..2000).map(|seed| Plan::of_seed(seed, None).scenario).collect();
    for trial in trials {
        let count = drawn.iter().filter(|scenario| **scenario == trial).count();
        assert!((70..160).contains(&count), "{trial:?}: {count}");
    }
}

#[test]
fn both_ends_end_in_every_pair_of_ways_and_in_either_order() {
    let deeds = [Deed::Nothing, Deed::Disconnect, Deed::Abort, Deed::Leave];
    let mut met = HashSet::new();
    let (mut rejected, mut relistened, mut vanished) = (0, 0, 0);
    for plan in plans("ends", 600) {
        relistened += usize::from(
            plan.changes.iter().any(|change| matches!(change.what, Event::ListenAgain(_))),
        );
        vanished += usize::from(plan.silence.is_some());
        for flow in &plan.flows {
            rejected += usize::from(flow.rejects > 0);
            if let Ending::Acts([a, b]) = flow.ending {
                let place = |deed| deeds.iter().position(|one| *one == deed).unwrap();
                met.insert((place(a.what), place(b.what), a.after_ns.cmp(&b.after_ns)));
            }
        }
    }
    for a in 0..deeds.len() {
        for b in 0..deeds.len() {
            let orders = met.iter().filter(|(x, y, _)| (*x, *y) == (a, b)).count();
            assert!(orders >= 2 || (a, b) == (0, 0), "{:?} {:?}", deeds[a], deeds[b]);
        }
    }
    assert!(rejected > 100 && relistened > 100 && vanished > 50);
}

#[test]
fn hostile_peers_are_of_every_kind_beside_one_that_is_not() {
    let mut said = HashSet::new();
    let mut holders = 0;
    for plan in plans("exhausted", 100) {
        assert!(!plan.flows[0].is_hostile && plan.nodes[0].piece_blocks == 0);
        assert_eq!(plan.flows[0].nodes, [1, 0]);
        holders += plan.flows.iter().filter(|flow| flow.is_hostile).count();
        assert!(plan.flows[1..].iter().all(|flow| flow.is_hostile && flow.nodes[0] > 1));
        for idler in &plan.idlers {
            assert!(idler.node > 1);
            said.insert(match idler.says {
                Says::Nothing => 0,
                Says::HalfRequest => 1,
                Says::Request { rejected: true } => 2,
                Says::Request { rejected: false } => 3,
                Says::Garbage => 4,
            });
        }
    }
    assert_eq!(said.len(), 5);
    assert!(holders > 100, "{holders}");
}

#[test]
fn memory_is_read_while_it_changes_and_invalidated_while_it_is_read() {
    let mut invalidated = 0;
    for plan in plans("changing", 100) {
        for flow in &plan.flows {
            for side in &flow.sides {
                assert!(side.work.iter().any(|op| op.kind == Kind::ReadLive && op.len % 8 == 0));
            }
            invalidated += usize::from(matches!(flow.ending, Ending::Invalidate { .. }));
        }
        assert!(plan.nodes.iter().all(|node| node.window_bytes <= 20_000), "windows that close");
    }
    assert!(invalidated > 30, "{invalidated}");
}

#[test]
fn guesses_are_made_and_change_nothing() {
    let mut forged = 0;
    let mut tags = 0;
    for plan in plans("guesses", 40) {
        let guessed = |ending| matches!(ending, Ending::Mishap { what: Mishap::WriteGuess, .. });
        tags += plan.flows.iter().filter(|flow| guessed(flow.ending)).count();
        let outcome = urnic_sim::run(&plan).unwrap();
        forged += outcome.expect("nothing comes of guesses").frames_forged;
        let mut quiet = plan.clone();
        quiet.guesses = None;
        assert_eq!(urnic_sim::run(&quiet).unwrap().unwrap().frames_forged, 0);
    }
    assert!(forged > 10_000 && tags > 5, "{forged} frames, {tags} tags");
}

#[test]
fn messages_come_before_their_receives_and_more_than_may_wait() {
    let (mut held, mut full) = (0, 0);
    for plan in plans("unready", 60) {
        assert!(plan.flows.iter().all(|flow| flow.waits));
        let most = plan.flows.iter().flat_map(|flow| &flow.sides).map(|side| {
            let sends = side.work.iter().filter(|op| op.kind == Kind::Send);
            sends.map(|op| op.len).sum::<usize>()
        });
        full += usize::from(most.max() > Some(urnic_engine::limits::HELD_BYTES_MAX));
        let outcome = urnic_sim::run(&plan).unwrap().expect("they are delivered in order");
        held += outcome.bytes_without_receive;
    }
    assert!(held > 1 << 20 && full > 1, "{held} octets, {full} times");
}

#[test]
fn fabrics_meet_all_that_can_happen_to_them() {
    let mut met = HashSet::new();
    let mut with_ipv6 = 0;
    for plan in plans("ipoib", 100) {
        assert!(plan.link.is_fabric && [2044, 4092].contains(&plan.link.mtu));
        with_ipv6 += usize::from(plan.flows.iter().any(|flow| flow.ipv6));
        for change in &plan.changes {
            if let Event::Fabric(event) = change.what {
                met.insert(std::mem::discriminant(&event));
            }
        }
        let is_calm = |change: &Change| matches!(change.what, Event::Fabric(FabricEvent::Calm));
        assert!(plan.changes.iter().any(is_calm));
    }
    assert_eq!(met.len(), 8);
    assert!((10..90).contains(&with_ipv6), "{with_ipv6}");
    let drawn = (0..2000).filter(|seed| Plan::of_seed(*seed, None).scenario == Scenario::Ipoib);
    assert!((80..180).contains(&drawn.count()));
}

#[test]
fn hosts_move_while_transfers_are_in_flight() {
    let (mut told, mut silent, mut crowds, mut astray, mut again) = (0, 0, 0, 0, 0);
    for plan in plans("moving", 40) {
        assert!(plan.nodes.len() > 2, "a switch");
        for change in &plan.changes {
            match change.what {
                Event::Move(_, true) => told += 1,
                Event::Move(_, false) => silent += 1,
                Event::Crowd(..) => crowds += 1,
                _ => {}
            }
        }
        let outcome = urnic_sim::run(&plan).unwrap().expect("peers are found again");
        astray += u64::from(outcome.frames_astray > 0);
        again += outcome.retransmissions;
    }
    assert!(told > 20 && silent > 20 && crowds > 20, "{told}, {silent}, {crowds}");
    assert!(astray > 10 && again > 100, "{astray} of 40, {again} retransmissions");
    assert_share("moving");
}

#[test]
fn connections_share_a_queue_beside_liars() {
    let (mut lies, mut distances, mut waiting) = (0, HashSet::new(), 0);
    for plan in plans("shared", 40) {
        let shared = plan.shared.as_ref().unwrap();
        assert!(plan.flows.len() == 2 && plan.flows.iter().all(|flow| flow.shares));
        assert!(!shared.liars.is_empty() && plan.nodes.len() == 4);
        distances.extend(shared.liars.iter().map(|liar| liar.lie));
        waiting += usize::from(plan.flows[0].waits);
        let outcome = urnic_sim::run(&plan).unwrap().expect("the honest ones finish");
        assert_eq!(outcome.lies, shared.liars.len() as u64);
        lies += outcome.lies;
    }
    assert!(lies > 80 && distances.len() >= 12 && waiting > 5, "{lies}, {distances:?}, {waiting}");
    assert_share("shared");
}

/// Checks that about one seed in 32 draws this scenario.
fn assert_share(name: &str) {
    let of_seed = |seed: u64| Plan::of_seed(seed, None).scenario.name();
    let drawn = (0..2000).filter(|seed| of_seed(*seed) == name).count();
    assert!((40..90).contains(&drawn), "{name}: {drawn}");
}

/// The oracle reports a subnet manager that lets no port in again.
#[test]
fn an_administrator_that_stays_silent_is_a_failure() {
    let mut failed = 0;
    for mut plan in plans("ipoib", 10) {
        plan.changes = [FabricEvent::Silent(true), FabricEvent::Manager]
            .map(|event| Change { at_ns: 0, what: Event::Fabric(event) })
            .into();
        failed += usize::from(urnic_sim::run(&plan).unwrap().is_err());
    }
    assert_eq!(failed, 10);
}
