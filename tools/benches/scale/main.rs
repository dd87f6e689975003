//! The cost of connections: memory, the time to open them, and a message among many of them.
//!
//! `cargo bench --bench scale` runs two ports in memory, in one thread, and counts the heap. `--
//! --help` lists the options.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod crowd;
mod plot;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crowd::{Cost, Crowd};

#[global_allocator]
static COUNTING: urnic_testkit::counting::Counting = urnic_testkit::counting::Counting;

/// Measures memory, opening and messages of more and more connections of one port.
#[derive(Debug, Parser)]
struct Options {
    /// How many connections, one count after the other.
    #[arg(long, value_name = "N,…", value_delimiter = ',',
        default_values_t = [1, 10, 100, 1000, 10_000],
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: Vec<u32>,
    /// Messages of 64 bytes in each round.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Rounds of messages for each count; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw them.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One short round of few connections: does everything work?
    #[arg(long)]
    test: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Results for one number of connections.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    connections: u32,
    #[serde(flatten)]
    cost: Cost,
    /// Messages per second of processor time, with one in flight for each connection, 64 at most.
    messages_per_second: f64,
    /// Messages a second with one in flight on each connection.
    messages_per_second_on_all: f64,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let (messages, rounds) =
        if options.test { (1000, 1) } else { (options.messages as usize, options.rounds) };
    let mut figures = Vec::new();
    for &connections in &options.connections {
        let count = if options.test { connections.min(100) } else { connections };
        eprintln!("{count} connections");
        let mut crowd = Crowd::open(count as usize)?;
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            rates[0].push(crowd.messages(messages, count.min(64) as usize)?);
            rates[1].push(crowd.messages(messages, count as usize)?);
        }
        let [few, all] = rates.map(median);
        figures.push(Figure {
            connections: count,
            cost: crowd.cost,
            messages_per_second: few,
            messages_per_second_on_all: all,
        });
    }
    println!("{}", table(&figures));
    if let Some(path) = &options.json {
        write(path, &serde_json::to_string_pretty(&figures)?)?;
    }
    if let Some(path) = &options.svg {
        write(path, &plot::svg(&figures)?)?;
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "connections",
        "bytes for an idle one",
        "bytes for its queue pair",
        "bytes for one in TIME-WAIT",
        "opened a second",
        "messages a second, 64 in flight",
        "one on each",
    ]);
    for figure in figures {
        let Cost { idle_bytes, qp_bytes, time_wait_bytes, opened_per_second } = figure.cost;
        let rates = [figure.messages_per_second, figure.messages_per_second_on_all];
        let costs = [idle_bytes, qp_bytes, time_wait_bytes, opened_per_second];
        let figures = costs.into_iter().chain(rates);
        let figures = figures.map(|figure| format!("{figure:.0}"));
        table.add_row(std::iter::once(figure.connections.to_string()).chain(figures));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
