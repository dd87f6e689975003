//! Programs that a machine may have.

use std::ffi::OsString;
use std::process::Command;

use crate::isolate;

/// Returns true if there is a program of this name.
#[must_use]
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin"));
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the reason why a test that needs these programs cannot run; `None` if it can.
pub fn missing<'a>(needs: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let missing = needs.into_iter().find(|need| !is_there(need))?;
    Some(format!("the program `{missing}` is missing"))
}

/// Prepares a command line with this program. If the program is missing, a test in its own
/// namespace ends here as skipped, so no list of requirements can be incomplete.
///
/// # Panics
/// If the program is missing and the test has no process of its own.
#[must_use]
pub fn program(name: &str) -> Command {
    if let Some(reason) = missing([name]) {
        isolate::skip_the_rest(&reason);
    }
    Command::new(name)
}
