//! `urnic completions`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Write the completions of a shell to standard output
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const EXAMPLES: &str = "\
Exit status: 0 when they were written, 2 when not.

Examples:
  urnic completions bash > /etc/bash_completion.d/urnic
  urnic completions zsh > /usr/local/share/zsh/site-functions/_urnic
  urnic completions fish > ~/.config/fish/completions/urnic.fish";

pub(crate) fn run(args: &Args, tree: &mut Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, tree, "urnic", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
