//! The same seed gives the same run, and runs come across what they look for.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use urnic_sim::{Outcome, Plan, Scenario, Sweep, SweepEvent};

/// Runs seeds and stops at the first failure, naming the command that runs it again.
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
        met.octets_placed_out_of_order,
        met.fpdus_by_marker,
        met.octets_held,
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

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let plan = Plan::of_seed(seed, None);
        assert_eq!(urnic_sim::run(&plan).unwrap(), urnic_sim::run(&plan).unwrap(), "seed {seed}");
    }
}
