//! `urnic dump-options`: every option of every command, for the test that runs them all.

use std::process::ExitCode;

use clap::{Arg, Command};

use crate::report::print;

/// Prints a line of three fields for every argument of every command in `tree`: the command, the
/// option (or `ARGUMENT` for one without a name), and the name of its value (or `-` for a flag).
pub(crate) fn run(tree: &mut Command) -> anyhow::Result<ExitCode> {
    // A global option is listed for each command.
    tree.build();
    let is_own = |command: &&Command| !["help", "dump-options"].contains(&command.get_name());
    for command in tree.get_subcommands().filter(is_own) {
        let asked = command.get_arguments();
        for argument in asked.filter(|one| !["help", "version"].contains(&one.get_id().as_str())) {
            print(&format!("{}\t{}\t{}", command.get_name(), option(argument), value(argument)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn option(argument: &Arg) -> String {
    let long = argument.get_long().map(|long| format!("--{long}"));
    long.or_else(|| argument.get_short().map(|short| format!("-{short}")))
        .unwrap_or_else(|| "ARGUMENT".to_owned())
}

fn value(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return "-".to_owned();
    }
    let names = argument.get_value_names().unwrap_or_default();
    names.first().map_or_else(|| argument.get_id().to_string(), ToString::to_string)
}
