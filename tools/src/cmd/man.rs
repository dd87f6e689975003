//! `urnic man`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;

/// Write the manual pages into a folder
///
/// One page for each command, and urnic(1), which names them.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder; it is made if it is not there
    #[arg(value_name = "DIR", value_parser = clap::builder::PathBufValueParser::new())]
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  urnic man /usr/local/share/man/man1
  urnic man /tmp/man && man /tmp/man/urnic-bw.1";

/// Runs the command, for the commands of `tree`.
///
/// # Errors
/// When a page cannot be written.
pub(crate) fn run(args: &Args, tree: Command) -> anyhow::Result<ExitCode> {
    let shown = args.dir.display();
    fs::create_dir_all(&args.dir).with_context(|| shown.to_string())?;
    clap_mangen::generate_to(tree, &args.dir).with_context(|| shown.to_string())?;
    Ok(ExitCode::SUCCESS)
}
