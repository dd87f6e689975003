//! `urnic lat`.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::address::HostPort;
use crate::host::{ClientOptions, Host};
use crate::info::DEVICES;
use crate::interrupt::Interrupt;
use crate::lat::{self, Moment, Plan, SPIN_ALWAYS};
use crate::measure::{
    Bar, Interval, Intervals, Op, Samples, Times, Timing, bars, histogram, message_size,
    processor_time, sizes,
};
use crate::{figure, report, size, units};

/// Measure latency to a server
///
/// A Write is answered by a Write: each end polls the last byte of its own memory until it changes,
/// then writes the other's. The loop waits for no completion and contains no Send. Times of Writes,
/// Sends and Immediate Data are half of the round trip. The server's RNIC answers Reads and Atomics
/// without the application: their times are the whole from post to completion.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Address of 'urnic serve'; the default port is 7174
    #[arg(value_name = "HOST[:PORT]")]
    peer: HostPort,

    /// Operation to measure
    #[arg(long, value_enum, default_value = "write")]
    op: Op,

    /// Bytes of a message; 8 by default
    #[arg(short, long, value_name = "SIZE", value_parser = message_size)]
    size: Option<u32>,

    /// All sizes from 2 bytes to 8 MiB, one after the other, in one table
    #[arg(short, long, conflicts_with_all = ["size", "interval", "histogram"])]
    all_sizes: bool,

    /// Round trips to measure, after a warm-up of 0.1 s or more; 10000 by default, and 1000 for
    /// each of --all-sizes
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,

    /// Report the times of each interval of this length, in seconds or with a unit
    #[arg(short, long, value_name = "TIME", value_parser = units::seconds)]
    interval: Option<Duration>,

    /// Show the distribution of the times; with --json, all of them, to three digits
    #[arg(long)]
    histogram: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    client: ClientOptions,
}

const EXAMPLES: &str = "\
Both ends poll without a pause, so each needs a core of its own. The warm-up has a tenth as many
messages, from 10 to 1000, and lasts at least 0.1 s. Times of write, send and immediate are half of
the round trip; times of read and fetch-add are the whole from post to completion, as in perftest.
The result says which. Minimum, mean, maximum and standard deviation are exact; percentiles have
three digits. A percentile that needs more samples is a dash: p90 needs 10, p99 100, p99.9 1000.

SIGINT (Ctrl-C) ends the measurement early; its result so far is reported. A second one ends the
command.

Exit status: 0 after a measurement, even one with fewer messages; 2 if it failed.

Examples:
  urnic lat server
  urnic lat server --op send -s 4K -n 100000 --histogram
  urnic lat server --all-sizes
  urnic lat server --json --histogram |
    jq -r '.histogram[] | [.up_to_us, .count] | @csv'";

/// The result. `docs/json.md` defines each field.
#[derive(Debug, Serialize)]
struct Latency {
    op: Op,
    size_bytes: u32,
    timing: Timing,
    iterations: u64,
    interrupted: bool,
    #[serde(flatten)]
    times: Times,
    processor_local_seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    histogram: Vec<Bar>,
    intervals: Vec<Interval<Moment>>,
    #[serde(skip)]
    recorded: Samples,
}

#[derive(Debug, Serialize)]
struct Table {
    sizes: Vec<Latency>,
}

impl Args {
    fn measure(
        &self,
        host: &Host,
        remotes: &[std::net::SocketAddr],
        size: u32,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Latency> {
        let default = if self.all_sizes { ITERATIONS_OF_EACH } else { ITERATIONS };
        let iterations = self.iterations.unwrap_or(default);
        let (plan, timing) = (Plan { op: self.op, size, iterations }, self.op.timing());
        let mut intervals = Intervals::new(self.interval, self.json || self.all_sizes);
        let processor_before = processor_time();
        let recorded = lat::measure(host, remotes, &plan, interrupt, &mut intervals)?;
        let processor = processor_time().saturating_sub(processor_before);
        let is_exported = self.histogram && self.json;
        Ok(Latency {
            op: self.op,
            size_bytes: size,
            timing,
            iterations: recorded.len(),
            interrupted: recorded.len() < u64::from(iterations),
            times: Times::of(&recorded, timing),
            processor_local_seconds: processor.as_secs_f64(),
            histogram: if is_exported { bars(&recorded, timing) } else { Vec::new() },
            intervals: intervals.finish(),
            recorded,
        })
    }
}

impl Latency {
    fn text(&self, has_histogram: bool) -> String {
        let Self { op, timing, times, recorded, interrupted, .. } = self;
        let size = size::format(u64::from(self.size_bytes));
        let until = if *interrupted { " until it was interrupted" } else { "" };
        let spread = if has_histogram { histogram(recorded, *timing) } else { String::new() };
        format!(
            "{} of {size}, {}{until}, {}:\n{times}{spread}",
            op.name(),
            figure::counted(self.iterations, "time"),
            timing.text(),
        )
    }

    fn row(&self) -> String {
        let size = size::format(u64::from(self.size_bytes));
        let columns = self.times.columns().map(|us| format!(" {us:>9}"));
        format!("{size:>8} {:>8}{}", self.iterations, columns.concat())
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sizes = sizes(args.op, args.size, args.all_sizes, SIZE)?;
    let remotes = args.peer.resolve(&args.client.stack.dev)?;
    let host = Host::client(&args.client, SPIN_ALWAYS)?;
    let interrupt = Interrupt::default();
    let mut results = Vec::new();
    for size in sizes {
        let result = args.measure(&host, &remotes, size, &interrupt)?;
        if args.all_sizes && !args.json {
            if results.is_empty() {
                let columns = Times::COLUMNS.map(|name| format!(" {name:>9}"));
                let head = format!("{:>8} {:>8}{}", "size", "times", columns.concat());
                let timing = args.op.timing().text();
                report::print(&format!("{}, {timing}, in µs:\n{head}", args.op.name()))?;
            }
            report::print(&result.row())?;
        }
        results.push(result);
        if interrupt.has_come() {
            break;
        }
    }
    match (results.first(), args.all_sizes, args.json) {
        (_, true, true) => report::print_json(&Table { sizes: results })?,
        (Some(result), false, true) => report::print_json(result)?,
        (Some(result), false, false) => report::print(&result.text(args.histogram))?,
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

const SIZE: u32 = 8;
const ITERATIONS: u32 = 10_000;
const ITERATIONS_OF_EACH: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of 2 to 9 µs of messages of 4 KiB.
    fn latency(op: Op, interrupted: bool, has_bars: bool) -> Latency {
        let mut recorded = Samples::new().unwrap();
        (2..10).for_each(|us| recorded.record(us * 1000));
        let timing = op.timing();
        Latency {
            op,
            size_bytes: 4096,
            timing,
            iterations: recorded.len(),
            interrupted,
            times: Times::of(&recorded, timing),
            processor_local_seconds: 0.5,
            histogram: if has_bars { bars(&recorded, timing) } else { Vec::new() },
            intervals: Vec::new(),
            recorded,
        }
    }

    #[test]
    fn the_text_says_what_was_measured_how_often_and_from_when_to_when() {
        let text = latency(Op::Write, false, false).text(false);
        assert!(text.starts_with("write of 4K, 8 times, half of the round trip:\n"), "{text}");
        assert_eq!(text.lines().count(), 2);
        let text = latency(Op::Read, true, false).text(false);
        let expected = "read of 4K, 8 times until it was interrupted, from post to completion:\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(latency(Op::Read, false, false).text(true).lines().count() > 4, "a histogram");
    }

    #[test]
    fn a_row_of_the_table_has_its_figures_below_their_names() {
        let row = latency(Op::Read, false, false).row();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells[..4], ["4K", "8", "2.00", "5.50"], "{row}");
        assert_eq!(cells.len(), 2 + Times::COLUMNS.len());
        assert_eq!(row.chars().count(), 17 + 10 * Times::COLUMNS.len(), "{row}");
    }

    #[test]
    fn the_result_of_json_is_that_of_the_text() {
        let shown = serde_json::to_value(latency(Op::Write, true, false)).unwrap();
        for (name, value) in [("op", "write"), ("timing", "half-round-trip")] {
            assert_eq!(shown[name], value);
        }
        for (name, value) in [("size_bytes", 4096), ("iterations", 8)] {
            assert_eq!(shown[name], value);
        }
        for (name, value) in [("min_us", 1.0), ("max_us", 4.5), ("processor_local_seconds", 0.5)] {
            assert_eq!(shown[name], value);
        }
        assert_eq!((&shown["interrupted"], &shown["histogram"]), (&true.into(), &().into()));
        let shown = serde_json::to_value(latency(Op::Write, false, true)).unwrap();
        let bars = shown["histogram"].as_array().unwrap();
        assert_eq!(bars.iter().map(|bar| bar["count"].as_u64().unwrap()).sum::<u64>(), 8);
        assert_eq!(shown["interrupted"], false);
    }
}
