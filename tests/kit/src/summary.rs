//! The last line of `cargo test`: the number of skipped tests, the reasons, and the packages to
//! install.
//!
//! Cargo runs packages in the order of their names, a package's tests in the order of theirs, and
//! documentation tests after all of them. So no package has documentation tests, a test called
//! `what_was_skipped` is the last in each package that skips anything, and that of [`LAST_PACKAGE`]
//! is the last thing that runs; `tests/library/tidy.rs` checks this. If `cargo test` is asked for
//! packages by name, each prints its own line.

use std::collections::BTreeMap;

use crate::{packages, record};

/// The package whose tests run last.
pub const LAST_PACKAGE: &str = "urnic-verbs";
/// The test that runs last in a package.
pub const LAST_TEST: &str = "what_was_skipped";

/// Maximum number of reasons in the line.
const REASONS_MAX: usize = 4;

/// Prints the line, unless a later package will.
#[expect(clippy::print_stdout, reason = "the line is what the program is for")]
pub fn print(package: &str) {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    if package == LAST_PACKAGE || asks_for_packages(&cargo_arguments()) {
        println!("{}", line(record::take().into_iter().map(|skip| skip.reason)));
    }
}

/// Returns cargo's arguments; none if the parent is not cargo.
fn cargo_arguments() -> Vec<String> {
    let parent = std::os::unix::process::parent_id();
    let line = std::fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    line.split(|octet| *octet == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Returns true if cargo tests only some packages, not the workspace.
fn asks_for_packages(arguments: &[String]) -> bool {
    let of_cargo = arguments.iter().take_while(|argument| *argument != "--");
    of_cargo.into_iter().any(|argument| {
        argument.starts_with("--package")
            || argument.starts_with("--manifest-path")
            || (argument.starts_with("-p") && !argument.starts_with("--"))
    })
}

fn line(reasons: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let skipped: usize = counts.values().sum();
    if skipped == 0 {
        return "skipped: no test".to_owned();
    }
    let advice = packages::advice(counts.keys().map(String::as_str));
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|(a, few), (b, many)| many.cmp(few).then(a.cmp(b)));
    let others = counts.len().saturating_sub(REASONS_MAX);
    counts.truncate(REASONS_MAX);
    let mut reasons: Vec<_> =
        counts.into_iter().map(|(reason, count)| format!("{count}: {reason}")).collect();
    if others > 0 {
        reasons.push(format!("{others} other reasons"));
    }
    let tests = if skipped == 1 { "test" } else { "tests" };
    let advice = advice.map(|advice| format!(". {advice}")).unwrap_or_default();
    format!("skipped: {skipped} {tests} ({}){advice}", reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_and_names_the_most_frequent_reasons() {
        assert_eq!(line(std::iter::empty()), "skipped: no test");
        let reasons = ["b", "a", "b", "c", "d", "e", "f"].map(str::to_owned);
        let told = line(reasons.into_iter());
        assert_eq!(told, "skipped: 7 tests (2: b; 1: a; 1: c; 1: d; 2 other reasons)");
        let told = line(["it needs root".to_owned()].into_iter());
        let end =
            "skipped: 1 test (1: it needs root). To run more, as root: cargo test --workspace";
        assert_eq!(told, end);
    }

    #[test]
    fn runs_of_named_packages_are_recognised() {
        let asks =
            |line: &str| asks_for_packages(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(!asks("cargo test"));
        assert!(!asks("cargo test --workspace --profile release -- -p"));
        assert!(asks("cargo test -p urnic") && asks("cargo test -purnic --test netns"));
        assert!(asks("cargo test --package urnic") && asks("cargo test --package=urnic"));
        assert!(asks("cargo test --manifest-path tools/Cargo.toml"));
    }
}
