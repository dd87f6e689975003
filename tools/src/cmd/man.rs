//! `urnic man`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

use crate::help;

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
Exit status: 0 when all pages were written, 2 when one could not be.

Examples:
  urnic man /usr/local/share/man/man1
  urnic man /tmp/man && man /tmp/man/urnic-bw.1";

pub(crate) fn run(args: &Args, tree: Command) -> anyhow::Result<ExitCode> {
    let shown = args.dir.display();
    fs::create_dir_all(&args.dir).with_context(|| shown.to_string())?;
    let mut tree = tree.disable_help_subcommand(true);
    tree.build();
    let mut names = Vec::new();
    for command in tree.get_subcommands().filter(|one| !one.is_hide_set()) {
        write(&args.dir, command, &["urnic".to_owned()])?;
        names.push(format!("urnic-{}", command.get_name()));
    }
    write(&args.dir, &tree, &names)?;
    Ok(ExitCode::SUCCESS)
}

/// `others` are listed under SEE ALSO.
fn write(dir: &Path, command: &Command, others: &[String]) -> anyhow::Result<()> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_long_help() {
        page.extend(help::roff(&text.to_string()).bytes());
    }
    let others: Vec<_> =
        others.iter().map(|name| format!("\\fB{}\\fR(1)", name.replace('-', "\\-"))).collect();
    page.extend(format!(".SH \"SEE ALSO\"\n{}\n", others.join(", ")).bytes());
    let path = dir.join(man.get_filename());
    fs::write(&path, page).with_context(|| path.display().to_string())
}
