//! Alternating rounds of both sides, and how their medians compare.
#![expect(clippy::print_stdout, reason = "the report is the purpose")]

use std::time::Duration;

use criterion::measurement::{Measurement, WallTime};

use crate::case::{self, MESSAGE_LEN, RDMA, SOCKETS};
use crate::{rdma, sockets};

/// Rounds, of which the median counts.
const ROUNDS: usize = 9;
/// How long each case runs in each round.
const ROUND: Duration = Duration::from_millis(100);
/// Messages between two looks at the clock.
const MESSAGES: u64 = 32;

/// Measures and prints.
pub(crate) fn run() {
    let mut ours: Vec<_> = RDMA.iter().map(rdma::Pair::connect).collect();
    let mut theirs: Vec<_> = SOCKETS.iter().map(sockets::Pair::connect).collect();
    let mut our_rates = vec![Vec::new(); ours.len()];
    let mut their_rates = vec![Vec::new(); theirs.len()];
    for _ in 0..ROUNDS {
        for (pair, rates) in theirs.iter_mut().zip(&mut their_rates) {
            rates.push(gigabits_per_second(|| pair.advance(MESSAGES)));
        }
        for (pair, rates) in ours.iter_mut().zip(&mut our_rates) {
            rates.push(gigabits_per_second(|| pair.advance(MESSAGES)));
        }
    }
    for (case, rates) in SOCKETS.iter().zip(&mut their_rates) {
        println!("smoltcp at {:<28} {:6.1} Gbit/s", case.name, median(rates));
    }
    for (case, rates) in RDMA.iter().zip(&mut our_rates) {
        let case::Rdma { name, against, .. } = case;
        let rate = median(rates);
        let baseline = SOCKETS.iter().position(|sockets| sockets.name == *against);
        let baseline = median(&mut their_rates[baseline.expect("a case of smoltcp")]);
        let ratio = rate / baseline;
        println!("urnic at {name:<30} {rate:6.1} Gbit/s; urnic/smoltcp at {against}: {ratio:.2}");
    }
}

/// Payload per time while `advance` runs for a round.
fn gigabits_per_second(mut advance: impl FnMut()) -> f64 {
    let clock = WallTime;
    let start = clock.start();
    let mut messages = 0.0;
    loop {
        advance();
        messages += MESSAGES as f64;
        let elapsed = clock.end(start);
        if elapsed >= ROUND {
            return messages * (MESSAGE_LEN * 8) as f64 / elapsed.as_secs_f64() / 1e9;
        }
    }
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
