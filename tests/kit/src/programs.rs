//! Programs that a machine may have.

use std::ffi::OsString;
use std::process::Command;

use crate::{show, skip};

/// Environment variable that names the test for the child process of `isolate`.
pub(crate) const CHILD: &str = "URNIC_NETNS_CHILD";
/// Text that a skipped child prints.
pub(crate) const SKIPPED: &str = "the rest of this test is skipped";

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
        skip_the_rest(&reason);
    }
    Command::new(name)
}

/// Ends the test of this process as skipped, if it is one in its own namespace.
///
/// # Panics
/// Always: the panic ends the test. The parent process recognizes it.
fn skip_the_rest(reason: &str) {
    let name = std::env::var_os(CHILD).map(|name| name.to_string_lossy().into_owned());
    let name =
        name.unwrap_or_else(|| panic!("{reason}, and this test does not say that it needs it"));
    skip(&name, reason);
    show(&format!("{SKIPPED}\n"));
    // Without a panic message, because nothing is wrong.
    std::panic::resume_unwind(Box::new(SKIPPED));
}
