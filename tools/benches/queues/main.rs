//! The gain of a second queue: two queues on two processors against one, and against two that share
//! nothing.
//!
//! `cargo bench --bench queues` runs both ends of each queue in one thread, so that a queue takes
//! one processor and no device limits it. `-- --help` lists the options.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod case;
mod flow;
mod lines;
mod rounds;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use case::{CASES, Case, Layout};
use rounds::{Queues, Round};

/// Measures two queues of an interface against one, and against two that have nothing in common.
#[derive(Debug, Parser)]
struct Options {
    /// Rounds of each case; the medians count.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long a queue runs in a round, alone and with the other.
    #[arg(long, default_value_t = 100, value_name = "MS",
        value_parser = clap::value_parser!(u32).range(1..=60_000))]
    milliseconds: u32,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Also write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Counts the cache lines that two queues share instead, under valgrind; fails where there are any.
    #[arg(long, conflicts_with_all = ["rounds", "milliseconds", "json"])]
    lines: bool,
    /// Case and layout to run under valgrind: the bench passes them to itself.
    #[arg(long, hide = true, num_args = 2)]
    traced: Option<Vec<String>>,
    /// One short round: does everything work?
    #[arg(long)]
    test: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Results of one case. A ratio is the median of the ratios of all rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    case: &'static str,
    /// Messages a second of one queue.
    messages_per_second: f64,
    /// Payload of that.
    gigabits_per_second: f64,
    /// Two queues over one, with nothing in common: what the two processors can do.
    apart: f64,
    /// Two queues over one, of one RNIC.
    one_rnic: f64,
    /// Like `one_rnic`, with one memory region for both.
    one_mr: f64,
    /// Two queues of one RNIC over two that have nothing in common.
    one_rnic_over_apart: f64,
    /// Like `one_rnic_over_apart`, with one memory region for both.
    one_mr_over_apart: f64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("queues: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    if options.lines {
        return lines::run(&options.only, options.test);
    }
    match options.traced.as_deref() {
        Some([case, layout]) => lines::traced(case, layout)?,
        _ => measure(options)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(options: &Options) -> Result<()> {
    let (rounds, milliseconds) =
        if options.test { (1, 1) } else { (options.rounds, options.milliseconds) };
    let time = Duration::from_millis(milliseconds.into());
    let mut figures = Vec::new();
    for case in CASES.iter().filter(|case| case.name.contains(&options.only)) {
        eprintln!("{}", case.name);
        figures.push(figure(case, rounds, time)?);
    }
    ensure!(!figures.is_empty(), "--only {:?} is in the name of no case", options.only);
    println!("{}", table(&figures));
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Measures all layouts of a case in turn, so that a change of the machine's speed affects all of
/// them.
fn figure(case: &Case, rounds: u32, time: Duration) -> Result<Figure> {
    let open = |layout| Queues::open(case, layout);
    let [apart, rnic, mr] = Layout::ALL;
    let mut all = [open(apart)?, open(rnic)?, open(mr)?];
    let mut measured: Vec<[Round; 3]> = Vec::new();
    for _ in 0..rounds {
        let [apart, rnic, mr] = &mut all;
        measured.push([apart.round(time)?, rnic.round(time)?, mr.round(time)?]);
    }
    let of = |of: &dyn Fn(&[Round; 3]) -> f64| median(measured.iter().map(of).collect());
    let rate = of(&|[_, rnic, _]| rnic.one);
    Ok(Figure {
        case: case.name,
        messages_per_second: rate,
        gigabits_per_second: rate * case.message_len as f64 * 8.0 / 1e9,
        apart: of(&|[apart, ..]| apart.two / apart.one),
        one_rnic: of(&|[_, rnic, _]| rnic.two / rnic.one),
        one_mr: of(&|[.., mr]| mr.two / mr.one),
        one_rnic_over_apart: of(&|[apart, rnic, _]| rnic.two / apart.two),
        one_mr_over_apart: of(&|[apart, _, mr]| mr.two / apart.two),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "two queues over one",
        "messages a second of one",
        "Gbit/s",
        Layout::Apart.name(),
        Layout::OneRnic.name(),
        Layout::OneMr.name(),
        "one RNIC over nothing",
        "one MR over nothing",
    ]);
    for figure in figures {
        let ratios = [figure.apart, figure.one_rnic, figure.one_mr];
        let over = [figure.one_rnic_over_apart, figure.one_mr_over_apart];
        let rates = [
            figure.case.to_owned(),
            format!("{:.0}", figure.messages_per_second),
            format!("{:.1}", figure.gigabits_per_second),
        ];
        let ratios = ratios.into_iter().chain(over).map(|ratio| format!("{ratio:.2}"));
        table.add_row(rates.into_iter().chain(ratios));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
