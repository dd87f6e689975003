//! The `urnic` command: what the library does, from a terminal.
//!
//! This file only dispatches. Each command is a file in [`cmd`], with its machinery in a folder of
//! its own name.
//!
//! Exit status: 0 when all went well, 1 when something did not verify, 2 when the command could
//! not be carried out as given (usage, files, a peer that does not answer).
#![forbid(unsafe_code)]

mod bw;
mod channel;
mod client;
mod clock;
mod cmd;
mod counters;
mod demo;
mod device;
mod file_report;
mod host;
mod impair;
mod info;
mod lat;
mod progress;
mod protocol;
mod replay;
mod report;
mod rping;
mod server;
mod size;
mod transfer;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A software RNIC: RDMA over plain Ethernet, in user space.
#[derive(Debug, Parser)]
#[command(name = "urnic", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(cmd::demo::Args),
    Serve(cmd::serve::Args),
    Ping(cmd::ping::Args),
    Bw(cmd::bw::Args),
    Lat(cmd::lat::Args),
    Put(cmd::put::Args),
    Get(cmd::get::Args),
    Info(cmd::info::Args),
    Replay(cmd::replay::Args),
    Rping(cmd::rping::Args),
    Sim(cmd::sim::Args),
    Impair(cmd::impair::Args),
}

impl Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Demo(args) => cmd::demo::run(&args),
            Self::Serve(args) => cmd::serve::run(&args),
            Self::Ping(args) => cmd::ping::run(&args),
            Self::Bw(args) => cmd::bw::run(&args),
            Self::Lat(args) => cmd::lat::run(&args),
            Self::Put(args) => cmd::put::run(&args),
            Self::Get(args) => cmd::get::run(&args),
            Self::Info(args) => cmd::info::run(&args),
            Self::Replay(args) => cmd::replay::run(&args),
            Self::Rping(args) => cmd::rping::run(&args),
            Self::Sim(args) => cmd::sim::run(&args),
            Self::Impair(args) => cmd::impair::run(&args),
        }
    }
}

/// Exit status of a run in which something did not verify.
const EXIT_UNVERIFIED: u8 = 1;
/// Exit status of a command that could not be carried out; clap's for wrong usage.
const EXIT_UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) => {
            report::complain(&format!("{error:#}"));
            let is_unverified = error.is::<client::Unverified>();
            ExitCode::from(if is_unverified { EXIT_UNVERIFIED } else { EXIT_UNUSABLE })
        }
    }
}
