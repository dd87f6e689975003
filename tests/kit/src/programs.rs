//! Programs that a machine may have.

use std::ffi::OsString;
use std::process::Command;

use crate::isolate;

/// Whether there is a program of this name.
#[must_use]
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin"));
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Why a test cannot run that needs all these programs; `None` when it can.
pub fn missing<'a>(needs: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let missing = needs.into_iter().find(|need| !is_there(need))?;
    Some(format!("the program `{missing}` is missing"))
}

/// Starts a command line with this program. A test in a namespace of its own ends here, as skipped,
/// where the program is missing: no list of what a test needs can be incomplete.
///
/// # Panics
/// When the program is missing and the test has no process of its own.
#[must_use]
pub fn program(name: &str) -> Command {
    if let Some(reason) = missing([name]) {
        isolate::skip_the_rest(&reason);
    }
    Command::new(name)
}
