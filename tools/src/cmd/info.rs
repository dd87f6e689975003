//! `urnic info`.

use std::process::ExitCode;

use crate::info;
use crate::report;

/// Show which devices can be used here, and what to do about those that cannot
///
/// Looks at the devices of the kernel, the interfaces of this network namespace, and what the
/// processor has for checksums. Changes nothing.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  urnic info
  urnic info --json | jq '.devices[] | select(.usable) | .device'";

/// Runs the command.
///
/// # Errors
/// When the result cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = info::look();
    if args.json {
        report::print_json(&found)?;
    } else {
        report::print(&found.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
