//! Small messages by operation, length and number in flight, on the devices of urnic's own TCP:
//! `urnic serve` and `urnic bw`.

use anyhow::Result;
use urnic_engine::time::Duration;

use crate::case::{Case, Unit, case};
use crate::commands::{PAIRS, Pair};

const OPERATIONS: [&str; 3] = ["write", "send", "read"];
const SIZES: [u32; 4] = [8, 64, 512, 4096];
/// Messages in flight when times are measured.
const FEW: [u32; 3] = [1, 4, 16];
/// Messages in flight when rates are measured.
const MANY: [u32; 3] = [1, 16, 128];

/// Returns the cases: the mean time from the post of a message to its completion, and the rate of
/// messages.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for pair in PAIRS {
        for op in OPERATIONS {
            for size in SIZES {
                cases.extend(FEW.map(|depth| {
                    let name = pair.case(&named("completion latency", op, size, depth), "");
                    case(&name, Unit::Latency, move |_, time| {
                        // Little's law: as many are always in flight.
                        Ok(f64::from(depth) * 1e6 / rate(pair, op, size, depth, time)?)
                    })
                }));
                cases.extend(MANY.map(|depth| {
                    let name = pair.case(&named("message rate", op, size, depth), "");
                    case(&name, Unit::Messages, move |_, time| {
                        Ok(rate(pair, op, size, depth, time)? / 1e6)
                    })
                }));
            }
        }
    }
    cases
}

fn named(figure: &str, op: &str, size: u32, depth: u32) -> String {
    format!("{figure} of {op}, {size} B, depth {depth}")
}

/// Messages per second.
fn rate(pair: Pair, op: &str, size: u32, depth: u32, time: Duration) -> Result<f64> {
    let [size, depth] = [size, depth].map(|number| number.to_string());
    let seconds = time.as_secs_f64().to_string();
    let options = ["--op", op, "--size", &size, "--depth", &depth, "--seconds", &seconds];
    pair.measure(&[&["bw"], &options[..]].concat(), "messages_per_second")
}
