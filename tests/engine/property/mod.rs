//! Any work over any link gives the same memory and the same completions as over a perfect link.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::cast_possible_truncation, reason = "test octets are made of low octets")]

mod end;
mod limits;
mod link;
mod plan;
mod run;

use std::cell::Cell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use plan::{Plan, Size};
use run::Outcome;

/// Counts of the situations in the runs: a property that never met a problem proves nothing.
#[derive(Debug, Default)]
struct Met {
    retransmissions: Cell<u64>,
    fpdus_out_of_order: Cell<u64>,
    fpdus_by_marker: Cell<u64>,
    bytes_held: Cell<u64>,
    duplicates: Cell<u64>,
    bytes_without_receive: Cell<u64>,
    confirmations: Cell<u64>,
}

impl Met {
    fn count(&self, outcome: &Outcome) {
        for counters in &outcome.counters {
            for (cell, count) in [
                (&self.retransmissions, counters.tcp.retransmissions),
                (&self.fpdus_out_of_order, counters.mpa.fpdus_out_of_order),
                (&self.fpdus_by_marker, counters.mpa.fpdus_by_marker),
                (&self.bytes_held, counters.mpa.bytes_held),
                (&self.duplicates, counters.tcp.duplicates),
                (&self.bytes_without_receive, counters.rdma.bytes_without_receive),
                (&self.confirmations, counters.rdma_tx.confirmations),
            ] {
                cell.set(cell.get() + count);
            }
        }
    }

    fn assert_everything(&self) {
        for cell in [
            &self.retransmissions,
            &self.fpdus_out_of_order,
            &self.fpdus_by_marker,
            &self.bytes_held,
            &self.duplicates,
            &self.bytes_without_receive,
            &self.confirmations,
        ] {
            assert!(cell.get() > 0, "{self:?}");
        }
    }
}

/// Runs `cases` plans, the same ones every time; `URNIC_LONG` makes them three times as many, and
/// PROPTEST_CASES says another number.
fn for_any_plan(cases: u32, size: Size) {
    let met = Met::default();
    let config = Config::default();
    let cases = if urnic_testkit::runs_long_tests() { 3 * cases } else { cases };
    let cases = if config.cases == 256 { cases } else { config.cases };
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..config };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&plan::any_plan(size), |plan| check(&plan, &met));
    match result {
        Ok(()) => met.assert_everything(),
        Err(TestError::Fail(reason, plan)) => panic!("{reason}\nwith {plan:#?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// Runs a plan over a perfect link and over its own, and compares the results.
fn check(plan: &Plan, met: &Met) -> Result<(), TestCaseError> {
    let expected = run::expected_memory(plan);
    let perfect = run::run(&plan.on_a_perfect_link()).map_err(TestCaseError::fail)?;
    differ("a perfect link", &expected, &perfect)?;
    let impaired = run::run(plan).map_err(TestCaseError::fail)?;
    met.count(&impaired);
    differ("the impaired link", &expected, &impaired)?;
    if perfect.completions != impaired.completions {
        let (a, b) = (&perfect.completions, &impaired.completions);
        return Err(TestCaseError::fail(format!("completions differ: {a:?}\n{b:?}")));
    }
    Ok(())
}

fn differ(name: &str, expected: &run::Memory, outcome: &Outcome) -> Result<(), TestCaseError> {
    for (end, (expected, found)) in expected.iter().zip(&outcome.memory).enumerate() {
        for (region, (expected, found)) in expected.iter().zip(found).enumerate() {
            if let Some(at) = expected.iter().zip(found).position(|(a, b)| a != b) {
                let text = format!("{name}: end {end}, region {region} differs at octet {at}");
                return Err(TestCaseError::fail(text));
            }
        }
    }
    Ok(())
}

// spec: RDMAP-5.2.2-4, RDMAP-5.3-3, RDMAP-5.5-10, RDMAP-5.5-11, RDMAP-5.5-12, RDMAP-5.5-15
// spec: RDMAP-5.5-16, RDMAP-5.5-17, RDMAP-5.5-20, EXT-5.2.2-4, EXT-5.4-1, EXT-5.4-3, EXT-5.4-5
// spec: EXT-5.4-7, EXT-5.4-8, EXT-6.3-3, EXT-6.4-1
#[test]
fn small_messages_arrive_as_over_a_perfect_link() {
    for_any_plan(100, Size::Small);
}

// spec: MPA-4.4-4
#[test]
fn large_messages_arrive_as_over_a_perfect_link() {
    for_any_plan(40, Size::Large);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let mut runner = TestRunner::deterministic();
    let strategy = plan::any_plan(Size::Small);
    for _ in 0..10 {
        let tree = proptest::strategy::Strategy::new_tree(&strategy, &mut runner).unwrap();
        let plan = proptest::strategy::ValueTree::current(&tree);
        let (once, again) = (run::run(&plan).unwrap(), run::run(&plan).unwrap());
        assert_eq!(once.completions, again.completions);
        assert_eq!(once.counters, again.counters, "every counter of both ends");
    }
}
