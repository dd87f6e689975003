//! `urnic lat`.

use std::fmt::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cmd::bw::message_size;
use crate::device::DEVICES;
use crate::host::{Host, StackOptions};
use crate::lat::{self, SPIN_ALWAYS};
use crate::{report, size};

/// Measure latency to a server: half of the round trip
///
/// A Write is answered by a Write: each end looks at the last octet of its own memory until it
/// changes, then writes the other's. No completion is waited for and no Send is in the loop.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Where 'urnic serve' listens
    #[arg(value_name = "IP:PORT")]
    peer: SocketAddr,

    /// What goes to and fro
    #[arg(long, value_enum, default_value = "write")]
    op: Op,

    /// Octets of a message
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = message_size)]
    size: u32,

    /// Round trips to measure
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,

    /// Show how the times are spread
    #[arg(long, conflicts_with = "json")]
    histogram: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    stack: StackOptions,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA Writes in both directions
    Write,
    /// Sends in both directions
    Send,
    /// RDMA Reads of the server's memory
    Read,
}

const EXAMPLES: &str = "\
Both ends look for work without a pause, so each needs a core to itself. A tenth as many round
trips are made before the measurement begins.

Examples:
  urnic lat 192.0.2.1:7174
  urnic lat 192.0.2.1:7174 --op send --size 4K --iterations 100000 --histogram";

/// The result.
#[derive(Debug, Serialize)]
struct Latency {
    op: Op,
    size: u32,
    iterations: u32,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

/// Runs the command.
///
/// # Errors
/// When the server cannot be reached, or the session fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let host = Host::open(&args.stack, SPIN_ALWAYS)?;
    let times = lat::measure(&host, args.peer, args.op, args.size, args.iterations)?;
    let at = |quantile| us(times.value_at_quantile(quantile));
    let result = Latency {
        op: args.op,
        size: args.size,
        iterations: args.iterations,
        min_us: us(times.min()),
        median_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: us(times.max()),
    };
    if args.json {
        report::print_json(&result)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Latency { size, iterations, min_us, median_us, p99_us, p999_us, max_us, .. } = result;
    let mut text = format!(
        "{:?} of {}, {iterations} times, half of the round trip:\nmin {min_us:.2} µs, median \
         {median_us:.2} µs, p99 {p99_us:.2} µs, p99.9 {p999_us:.2} µs, max {max_us:.2} µs",
        args.op,
        size::format(u64::from(size)),
    );
    if args.histogram {
        text.push_str(&histogram(&times));
    }
    report::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Half of a round trip, in microseconds.
#[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
fn us(round_trip_ns: u64) -> f64 {
    round_trip_ns as f64 / 2_000.0
}

/// A line for each doubling of the time.
fn histogram(times: &Histogram<u64>) -> String {
    let mut text = String::new();
    let most = times.iter_log(100, 2.0).map(|bucket| bucket.count_since_last_iteration()).max();
    let most = most.unwrap_or(0).max(1);
    for bucket in times.iter_log(100, 2.0) {
        let count = bucket.count_since_last_iteration();
        if count == 0 {
            continue;
        }
        let bar = usize::try_from(count * BAR_LEN / most).unwrap_or(0);
        let below = us(bucket.value_iterated_to() + 1);
        let _infallible = write!(text, "\n< {below:>9.2} µs {count:>10} {}", "█".repeat(bar));
    }
    text
}

/// Characters of the longest bar.
const BAR_LEN: u64 = 40;
