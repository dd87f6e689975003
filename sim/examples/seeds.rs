//! Runs the first seeds of one scenario and prints the failures.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::io;

use urnic_sim::{Plan, Scenario};

fn main() -> io::Result<()> {
    for seed in 0..20 {
        let plan = Plan::of_seed(seed, Some(Scenario::Vanish));
        match urnic_sim::run(&plan)? {
            Ok(outcome) => println!("{seed}: {} frames", outcome.frames),
            Err(failure) => println!("{seed}: {failure}"),
        }
    }
    Ok(())
}
