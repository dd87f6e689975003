//! The value of markers: the same impaired runs with markers, without, and layered.
//!
//! `cargo bench --bench markers` simulates: a link in memory, a virtual clock, seeded faults. Its
//! figures are those of the protocol, not of the machine, and are the same everywhere. `-- --help`
//! lists the options.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod figures;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use urnic_netdev::impair::ImpairConfig;
use urnic_testkit::one_way::{self, Path, WIDE, Way};

use figures::{Cell, Figures};

/// Ten gigabits over 100 µs, with a queue of two bandwidth-delay products.
const LOCAL: Path = Path {
    rate_bits_per_second: 10_000_000_000,
    round_trip_ns: 100_000,
    queue_frames: 165,
    depth: 8,
};

/// Simulates the same bad links with markers, without, and layered.
#[derive(Debug, Parser)]
struct Options {
    /// Seeds for every cell; their figures are pooled.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Messages of 64 KiB in a run.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Only cells whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Also write the figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// One short round: does everything work?
    #[arg(long)]
    test: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("markers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let (rounds, messages) =
        if options.test { (1, 30) } else { (options.rounds, usize::try_from(options.messages)?) };
    let mut figures = Figures::new(rounds, messages);
    for (link, path) in [("1 Gbit/s, 20 ms", WIDE), ("10 Gbit/s, 100 µs", LOCAL)] {
        for (condition, impair) in conditions() {
            if !format!("{link}: {condition}").contains(&options.only) {
                continue;
            }
            eprintln!("{link}: {condition}");
            for way in [Way::Markers, Way::NoMarkers, Way::Layered] {
                let runs = (0..rounds).map(|seed| one_way::run(&path, impair, way, messages, seed));
                figures.add(Cell::of(link, condition, way, runs));
            }
        }
    }
    ensure!(!figures.is_empty(), "--only {:?} is in the name of no cell", options.only);
    println!("{}", figures.table());
    if let Some(path) = &options.json {
        std::fs::write(path, figures.json()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Returns the impairments of frames with payload.
fn conditions() -> [(&'static str, ImpairConfig); 5] {
    let none = ImpairConfig::default();
    let recut = ImpairConfig { resegment: 0.5, coalesce: 0.5, ..none };
    [
        ("0.1 % lost", ImpairConfig { loss: 0.001, ..none }),
        ("1 % lost", ImpairConfig { loss: 0.01, ..none }),
        ("5 % reordered", ImpairConfig { reorder: 0.05, ..none }),
        ("half recut", recut),
        (
            "1 % lost, 5 % reordered, half recut",
            ImpairConfig { loss: 0.01, reorder: 0.05, ..recut },
        ),
    ]
}
