//! Comparison of urnic with today's alternatives, on this machine, in one run.
//!
//! `cargo bench --bench compare` measures every case once per round, in alternation, and prints
//! medians and ratios; with `-- --impaired`, through a bad link; with `-- --fairness`, two flows at
//! a time through a bottleneck; with `-- --programs`, other people's programs; with `-- --small`,
//! small messages. It runs in a network namespace of its own and leaves nothing behind.
//! `-- --help` lists the options.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "prints what it measured")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod case;
mod commands;
mod core;
mod fairness;
mod impaired;
mod network;
mod others;
mod plot;
mod programs;
mod raw;
mod report;
mod small;
mod sockets;
mod testpmd;
mod writes;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use urnic_engine::time::Duration;

use case::Case;
use network::Far;
use report::Figures;

/// Measures urnic, raw devices, smoltcp, kernel TCP (iperf3) and UCX side by side.
///
/// Needs root (network namespaces, TAP) and the Debian packages iproute2, ethtool, iperf3, ucx-utils and
/// dpdk-dev; cases whose program is missing are left out and named.
#[derive(Debug, Parser)]
struct Options {
    /// Rounds; each runs every case once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds per case and round.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Measure through a bad link instead: urnic and the kernel's TCP at 20 ms round trip, 1 Gbit/s
    /// and several kinds of loss. Give it seconds.
    #[arg(long)]
    impaired: bool,
    /// Measure how two flows share a bottleneck of 100 Mbit/s and 20 ms: urnic and the kernel's
    /// CUBIC, and two of a kind. Give it half a minute.
    #[arg(long, conflicts_with = "impaired")]
    fairness: bool,
    /// Measure programs written for rdma-core (perftest under `urnic run`) next to urnic's commands, UCX
    /// and libfabric over the kernel's TCP, from 8 bytes to 8 MiB.
    #[arg(long, conflicts_with_all = ["impaired", "fairness"])]
    programs: bool,
    /// Measure small messages by operation, length and number in flight, on the devices of urnic's own
    /// TCP. Give it a part of the names (`--only`).
    #[arg(long, conflicts_with_all = ["impaired", "fairness", "programs"])]
    small: bool,
    /// Only the case of this name, or else those whose name contains it.
    #[arg(long, default_value = "")]
    only: String,
    /// Also write the figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Also draw them.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// One short round: does everything work?
    #[arg(long)]
    test: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
    /// Given by the bench to itself, in its namespace.
    #[arg(long, hide = true)]
    inside: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.inside { measure(&options) } else { in_own_namespace() };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the bench again in network and mount namespaces of its own.
fn in_own_namespace() -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        const REASON: &str = "making TAP interfaces and namespaces needs root";
        // Set by the gate: a case that cannot be measured fails.
        ensure!(!urnic_testkit::is_required(), "cannot run: {REASON}");
        eprintln!("compare: skipped: {REASON}");
        return Ok(ExitCode::SUCCESS);
    }
    let itself = std::env::current_exe()?;
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(itself)
        .args(std::env::args_os().skip(1))
        .arg("--inside")
        .status()
        .context("cannot run unshare (Debian package util-linux)")?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// Parses the length of a case.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    let is_time = (SECONDS_MIN..=SECONDS_MAX).contains(&seconds);
    is_time.then_some(seconds).ok_or_else(|| format!("{SECONDS_MIN} to {SECONDS_MAX} seconds"))
}

/// A shorter case would measure only its start.
const SECONDS_MIN: f64 = 0.001;
const SECONDS_MAX: f64 = 86_400.0;

/// Returns true if this process has another network namespace than its parent: in the machine's own
/// namespace, the bench would change the machine's interfaces.
fn is_in_own_namespace() -> Result<bool> {
    let parent = std::os::unix::process::parent_id();
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
    Ok(of("self")? != of(&parent.to_string())?)
}

fn measure(options: &Options) -> Result<ExitCode> {
    ensure!(is_in_own_namespace()?, "--inside is for the bench itself: leave it out");
    for (program, package) in [("ip", "iproute2"), ("ethtool", "ethtool")] {
        if !is_there(program) {
            bail!("{program} is missing: apt install {package}");
        }
    }
    let mounted = Command::new("mount").args(["-t", "sysfs", "sysfs", "/sys"]).status()?;
    ensure!(mounted.success(), "cannot mount /sys in the bench's namespace");
    let far = Far::new()?;
    let (rounds, seconds) =
        if options.test { (1, 0.05) } else { (options.rounds, options.seconds) };
    let time = Duration::from_secs_f64(seconds);
    let aims = match options {
        Options { impaired: true, .. } => impaired::ratios(),
        Options { fairness: true, .. } | Options { small: true, .. } => Vec::new(),
        Options { programs: true, .. } => programs::ratios(),
        _ => [case::ratios(), commands::ratios()].concat(),
    };
    let mut figures = Figures::new(seconds, aims);
    let cases = runnable(options, &mut figures);
    ensure!(
        !cases.is_empty() || !figures.missing().is_empty() || options.only.is_empty(),
        "--only {:?} is in the name of no case that runs here",
        options.only
    );
    for round in 1..=rounds {
        for case in &cases {
            eprintln!("round {round}/{rounds}: {}", case.name);
            let figure = (case.run)(&far, time).with_context(|| case.name.clone())?;
            figures.add(case, figure);
        }
    }
    println!("{}", figures.table());
    println!("{}", figures.ratios());
    for missing in figures.missing() {
        println!("left out: {missing}");
    }
    write(options.json.as_deref(), || figures.json())?;
    write(options.svg.as_deref(), || plot::svg(&figures))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the selected cases whose program is installed.
fn runnable(options: &Options, figures: &mut Figures) -> Vec<Case> {
    let all = match options {
        Options { impaired: true, .. } => impaired::cases(),
        Options { fairness: true, .. } => fairness::cases(),
        Options { programs: true, .. } => programs::cases(),
        Options { small: true, .. } => small::cases(),
        _ => case::cases().into_iter().chain(commands::cases()).collect(),
    };
    let exact = all.iter().any(|case| case.name == options.only);
    let wanted = all.into_iter().filter(|case| {
        if exact { case.name == options.only } else { case.name.contains(&options.only) }
    });
    wanted
        .filter(|case| match case.needs {
            Some((program, package)) if !is_there(program) => {
                figures.leave_out(case, program, package);
                false
            }
            // Other people's programs run for whole seconds.
            Some(_) => !options.test,
            None => true,
        })
        .collect()
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn write(path: Option<&Path>, text: impl FnOnce() -> Result<String>) -> Result<()> {
    if let Some(path) = path {
        std::fs::write(path, text()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}
