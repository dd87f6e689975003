//! Alternating rounds of both sides, and their comparison.
//!
//! Rates use processor time, if the system reports it, since other programs may run meanwhile. A
//! ratio is the median over pairs of consecutive rounds.
#![expect(clippy::print_stdout, reason = "the report is the purpose")]

use std::fs;
use std::time::Duration;

use criterion::measurement::{Measurement, WallTime};

use crate::case::{self, MESSAGE_LEN, RDMA, SOCKETS};
use crate::{rdma, sockets};

/// Rounds of each case.
const ROUNDS: usize = 15;
/// Duration of a case in a round.
const ROUND: Duration = Duration::from_millis(60);
/// Messages between two readings of the clock.
const MESSAGES: u64 = 32;

/// Measures and prints. `wanted` is a part of the names of the cases to run.
pub(crate) fn run(wanted: &str) {
    println!("{:<28} {:>7} {:>9}  urnic/smoltcp (Gbit/s of payload)", "", "urnic", "smoltcp");
    for case in RDMA.iter().filter(|case| case.name.contains(wanted)) {
        let Some(against) = case.against else { continue };
        let baseline = SOCKETS.iter().find(|sockets| sockets.name == against);
        compare(case, baseline.expect("a case of smoltcp"));
    }
}

fn compare(case: &case::Rdma, baseline: &case::Sockets) {
    let (mut ours, mut theirs) = (rdma::Pair::connect(case), sockets::Pair::connect(baseline));
    let (mut our_rates, mut their_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let their_rate = gigabits_per_second(|| theirs.advance(MESSAGES));
        let our_rate = gigabits_per_second(|| ours.advance(MESSAGES));
        our_rates.push(our_rate);
        their_rates.push(their_rate);
        ratios.push(our_rate / their_rate);
    }
    let (ours, theirs, ratio) = (median(our_rates), median(their_rates), median(ratios));
    println!("{:<28} {ours:7.1} {theirs:9.1}  {ratio:.2} at {}", case.name, baseline.name);
}

/// Payload per time while `advance` runs for a round.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn gigabits_per_second(mut advance: impl FnMut()) -> f64 {
    let clock = WallTime;
    let (start, start_on_processor) = (clock.start(), on_processor());
    let mut messages = 0;
    loop {
        advance();
        messages += MESSAGES;
        let elapsed = clock.end(start);
        if elapsed >= ROUND {
            let busy = start_on_processor.zip(on_processor()).map(|(start, end)| end - start);
            let seconds = busy.filter(|busy| !busy.is_zero()).unwrap_or(elapsed).as_secs_f64();
            return (messages * MESSAGE_LEN as u64 * 8) as f64 / seconds / 1e9;
        }
    }
}

/// Processor time of this thread, as counted by Linux.
fn on_processor() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
