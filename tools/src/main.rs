//! The `urnic` command.
#![forbid(unsafe_code)]

mod cmd;
mod replay;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA over plain Ethernet, in user space.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(cmd::replay::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Replay(args) => cmd::replay::run(&args),
    };
    result.unwrap_or_else(|error| {
        writeln!(std::io::stderr(), "urnic: {error:#}").unwrap_or_default();
        ExitCode::from(2)
    })
}
