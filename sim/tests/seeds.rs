//! Runs of the same seed are equal, and runs meet the situations that they are for.

use urnic_sim::plan::Silence;
use urnic_sim::{Outcome, Plan, Scenario, Sweep, SweepEvent};

/// Runs seeds, stops at the first failure, and names the command that repeats it.
fn sweep(seeds: std::ops::Range<u64>, only: Option<Scenario>) -> Outcome {
    let sweep = Sweep { seeds, only, threads: 2, failures_max: 1 };
    let mut failed = None;
    let outcome = sweep.run(|event| {
        if let SweepEvent::Failed(seed, failure) = event {
            failed = Some(format!("seed {seed}, {failure}"));
        }
    });
    if let Some(failed) = failed {
        let only = only.map_or_else(String::new, |only| format!(" --scenario {}", only.name()));
        panic!("{failed}\nagain: urnic sim{only} --record . --seeds SEED..SEED+1");
    }
    outcome.unwrap()
}

#[test]
fn seeds_pass_and_meet_what_they_look_for() {
    let met = sweep(0..400, None);
    assert_eq!(met.runs, 400);
    for count in [
        met.frames_lost,
        met.retransmissions,
        met.bytes_placed_out_of_order,
        met.fpdus_by_marker,
        met.bytes_held,
    ] {
        assert!(count > 0, "{met:?}");
    }
}

#[test]
fn every_scenario_passes() {
    for (scenario, ..) in Scenario::ALL {
        assert_eq!(Scenario::of_name(scenario.name()), Some(scenario));
        let seeds = if scenario == Scenario::Large { 0..3 } else { 1000..1015 };
        sweep(seeds, Some(scenario));
    }
}

/// The oracle's verdict on plans with a peer that vanishes while no node sends keep-alive probes.
#[test]
fn a_peer_that_vanishes_unnoticed_is_a_failure() {
    let mut unnoticed = 0;
    for seed in 0..60 {
        let mut plan = Plan::of_seed(seed, Some(Scenario::Vanish));
        for node in &mut plan.nodes {
            node.keepalive_ns = None;
        }
        unnoticed += usize::from(urnic_sim::run(&plan).unwrap().is_err());
    }
    // A side that waits for an acknowledgment notices all the same.
    assert!((5..55).contains(&unnoticed), "{unnoticed} of 60");
}

#[test]
fn peers_vanish_in_every_stage() {
    let mut stages = [0; 3];
    for seed in 0..200 {
        match Plan::of_seed(seed, Some(Scenario::Vanish)).silence.unwrap() {
            Silence::At(_) => stages[0] += 1,
            Silence::Completions(_) => stages[1] += 1,
            Silence::Closing(_) => stages[2] += 1,
        }
    }
    assert!(stages.iter().all(|count| *count > 20), "{stages:?}");
    let drawn = (0..2000).filter(|seed| Plan::of_seed(*seed, None).scenario == Scenario::Vanish);
    assert!((80..180).contains(&drawn.count()));
}

#[test]
fn sweep_ends_at_the_last_seed() {
    let outcome = sweep(u64::MAX - 3..u64::MAX, Some(Scenario::Clean));
    assert_eq!(outcome.runs, 3);
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 0..20 {
        let plan = Plan::of_seed(seed, None);
        assert_eq!(urnic_sim::run(&plan).unwrap(), urnic_sim::run(&plan).unwrap(), "seed {seed}");
    }
}
