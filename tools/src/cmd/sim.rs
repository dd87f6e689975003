//! `urnic sim`.

use std::fs::{self, File};
use std::io::BufWriter;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, bail};
use serde::Serialize;
use urnic_sim::{Failure, Outcome, Plan, Scenario, Sweep, SweepEvent};

use crate::EXIT_UNVERIFIED;
use crate::clock::Stopwatch;
use crate::progress::{self, Progress};
use crate::report;

/// Hunt for failures: run seeds of the simulator
///
/// Each seed is a scenario: some RNICs on links in memory under a virtual clock, work for them in
/// both directions, and faults: loss, bursts, reordering, duplicates, corruption, jitter, segments
/// cut and merged, outages, a link that flaps, bottlenecks, stalled applications, requests that are
/// not allowed, peers that vanish, objects destroyed in every order, peers that take all they can
/// get, memory that changes while it is read, forged frames, messages that come before their
/// receives, hosts that get another link address, connections that lie to a shared receive queue.
/// An oracle knows what has to come of it. A seed gives the same run everywhere.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Seeds to run, from A to B, without B
    #[arg(long, value_name = "A..B", value_parser = seeds, default_value = "0..1000")]
    seeds: Range<u64>,

    /// Run them all as this scenario, instead of one drawn from the seed
    #[arg(long, value_name = "NAME", value_parser = scenario)]
    scenario: Option<Scenario>,

    /// Threads; by default one for each processor
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Stop after this number of failures
    #[arg(long, value_name = "NUMBER", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..))]
    failures: u64,

    /// Run each failed seed again and write its frames to DIR/sim-SEED.pcapng, as they leave the
    /// impairment: lost frames are not in it. The folder is made when it is needed
    #[arg(long, value_name = "DIR", help_heading = crate::demo::OUTPUT)]
    record: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long, help_heading = crate::demo::OUTPUT)]
    json: bool,

    /// Print nothing but failures
    #[arg(long, help_heading = crate::demo::OUTPUT, conflicts_with = "json")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Exit status: 0 if all seeds passed, 1 if one failed, 2 if the options contradict each other or a
file cannot be written.

Examples:
  urnic sim --seeds 0..20000
      What the project's gate runs.
  urnic sim --seeds 0..500 --scenario pressure
      Only runs with a small piece store and segments in pieces.
  urnic sim --seeds 0..500 --scenario ipoib
      Only hosts on a fabric of InfiniBand, whose subnet manager restarts and falls silent, whose
      cables are pulled, and whose queue pairs and LIDs change.
  urnic sim --seeds 4711..4712 --record . && urnic replay sim-4711.pcapng
      One seed again; analyse the frames on its links if it fails.";

#[derive(Debug, Serialize)]
struct Summary {
    seeds: u64,
    seconds: f64,
    virtual_seconds: f64,
    connections: u64,
    frames: u64,
    frames_lost: u64,
    retransmissions: u64,
    bytes_placed: u64,
    bytes_placed_out_of_order: u64,
    fpdus_by_marker: u64,
    bytes_held: u64,
    refused_for_room: u64,
    failures: Vec<Failed>,
}

#[derive(Clone, Debug, Serialize)]
struct Failed {
    seed: u64,
    scenario: &'static str,
    failure: String,
    again: String,
    recorded: Option<PathBuf>,
}

/// A failed seed is an exit status, not an error.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(folder) = args.record.as_ref().filter(|folder| folder.exists() && !folder.is_dir())
    {
        bail!("--record {}: that is no folder", folder.display());
    }
    let count = args.seeds.end - args.seeds.start;
    let mut progress = Progress::items(count, "seeds", args.quiet);
    if !args.quiet && !args.json {
        progress = progress.with_lines(progress::items);
    }
    let threads = args
        .threads
        .map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    let Args { ref seeds, scenario: only, .. } = *args;
    let failures_max = usize::try_from(args.failures).unwrap_or(usize::MAX);
    let sweep = Sweep { seeds: seeds.clone(), only, threads, failures_max };
    let (mut failures, mut done) = (Vec::new(), 0);
    // Otherwise its own message would disturb the progress bar.
    std::panic::set_hook(Box::new(|_| {}));
    let stopwatch = Stopwatch::start();
    let outcome = sweep.run(|event| {
        done += 1;
        progress.set(done);
        if let SweepEvent::Failed(seed, failure) = event {
            progress.suspend(|| failures.push(fail(args, *seed, failure)));
        }
    });
    progress.clear();
    let outcome = outcome.context("running the simulator")?;
    let failed = record(args, failures)?;
    let code = if failed.is_empty() { ExitCode::SUCCESS } else { EXIT_UNVERIFIED.into() };
    let summary = summary(&outcome, stopwatch.elapsed().as_secs_f64(), failed);
    if args.json {
        report::print_json(&summary)?;
    } else if !args.quiet {
        report::print(&text(&summary))?;
    }
    Ok(code)
}

fn fail(args: &Args, seed: u64, failure: &Failure) -> Failed {
    let only =
        args.scenario.map_or_else(String::new, |only| format!(" --scenario {}", only.name()));
    let again = format!("urnic sim --seeds {seed}..{}{only} --record .", seed + 1);
    report::complain(&format!("seed {seed}: {failure}\n  again: {again}"));
    let scenario = Plan::of_seed(seed, args.scenario).scenario.name();
    Failed { seed, scenario, failure: failure.to_string(), again, recorded: None }
}

fn record(args: &Args, mut failed: Vec<Failed>) -> anyhow::Result<Vec<Failed>> {
    if let Some(folder) = &args.record {
        for failed in &mut failed {
            failed.recorded = Some(record_seed(args, folder, failed.seed)?);
        }
    }
    Ok(failed)
}

fn record_seed(args: &Args, folder: &Path, seed: u64) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder)
        .with_context(|| format!("making the folder {}", folder.display()))?;
    let path = folder.join(format!("sim-{seed}.pcapng"));
    let file = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    let plan = Plan::of_seed(seed, args.scenario);
    let sink = Box::new(BufWriter::new(file));
    let _fails_again =
        urnic_sim::record(&plan, sink).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[expect(clippy::cast_precision_loss, reason = "seconds are shown with few digits")]
fn summary(outcome: &Outcome, seconds: f64, failures: Vec<Failed>) -> Summary {
    Summary {
        seeds: outcome.runs + failures.len() as u64,
        seconds,
        virtual_seconds: outcome.virtual_ns as f64 / 1e9,
        connections: outcome.connections / 2,
        frames: outcome.frames,
        frames_lost: outcome.frames_lost,
        retransmissions: outcome.retransmissions,
        bytes_placed: outcome.bytes_placed,
        bytes_placed_out_of_order: outcome.bytes_placed_out_of_order,
        fpdus_by_marker: outcome.fpdus_by_marker,
        bytes_held: outcome.bytes_held,
        refused_for_room: outcome.refused_for_room,
        failures,
    }
}

fn text(summary: &Summary) -> String {
    let count = report::count;
    let mut table = report::table(&["", "seeds"]);
    for (name, value) in [
        ("passed", summary.seeds - summary.failures.len() as u64),
        ("failed", summary.failures.len() as u64),
        ("connections", summary.connections),
        ("frames", summary.frames),
        ("lost", summary.frames_lost),
        ("segments retransmitted", summary.retransmissions),
        ("bytes placed", summary.bytes_placed),
        ("… out of order", summary.bytes_placed_out_of_order),
        ("FPDUs found by marker", summary.fpdus_by_marker),
        ("bytes held", summary.bytes_held),
        ("refused for lack of memory", summary.refused_for_room),
    ] {
        report::row(&mut table, [name.to_owned(), count(value)]);
    }
    let (real, simulated) = (summary.seconds, summary.virtual_seconds);
    format!("{table}\n{simulated:.0} s of virtual time in {real:.1} s")
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let Some((first, end)) = text.split_once("..") else {
        return Err("seeds are given as A..B".to_owned());
    };
    let number = |text: &str| text.trim().parse::<u64>().map_err(|error| error.to_string());
    let (first, end) = (number(first)?, number(end)?);
    if first < end { Ok(first..end) } else { Err("there is no seed in that range".to_owned()) }
}

fn scenario(name: &str) -> Result<Scenario, String> {
    Scenario::of_name(name).ok_or_else(|| {
        let names: Vec<_> = Scenario::ALL.iter().map(|(_, name, _)| *name).collect();
        format!("there are: {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures_page;

    #[test]
    fn each_figure_of_a_sweep_has_a_definition_and_its_field() {
        let outcome = Outcome {
            runs: 9,
            virtual_ns: 2_500_000_000,
            frames: 11,
            frames_lost: 12,
            connections: 26,
            retransmissions: 14,
            bytes_placed: 15,
            bytes_placed_out_of_order: 16,
            fpdus_by_marker: 17,
            bytes_held: 18,
            refused_for_room: 19,
            ..Outcome::default()
        };
        let failed = Failed {
            seed: 7,
            scenario: "loss",
            failure: "late".into(),
            again: "urnic sim".into(),
            recorded: None,
        };
        let summary = summary(&outcome, 1.5, vec![failed]);
        let text = text(&summary);
        let last = text.lines().last().unwrap();
        // Rounded to even.
        assert_eq!(last, "2 s of virtual time in 1.5 s");
        let labels = figures_page::rows(&text).into_iter().filter(|label| label != "seeds");
        figures_page::compare("sim", labels.chain(figures_page::sentences(last)));
        let rows = text.lines().filter_map(|line| line.strip_prefix('│')).skip(1);
        let numbers: Vec<_> = rows
            .map(|row| row.split(['┆', '│']).nth(1).unwrap().trim().parse::<u64>().unwrap())
            .collect();
        assert_eq!(numbers, [9, 1, 13, 11, 12, 14, 15, 16, 17, 18, 19], "{text}");
        assert_eq!(summary.seeds, 10, "those that passed, and those that failed");
        figures_page::compare_json("sim", &[summary]);
    }

    #[test]
    fn ranges_of_seeds_are_read() {
        assert_eq!(seeds("0..300000"), Ok(0..300_000));
        for text in ["", "5", "5..5", "7..5", "a..b", "1..=2"] {
            assert!(seeds(text).is_err(), "{text}");
        }
    }
}
