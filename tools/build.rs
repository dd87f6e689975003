//! Passes the commit from which the command is built to the compiler, if it is known.
//!
//! A release names its commit; a development build only says that it is one, so that a new commit
//! does not rebuild the command.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=URNIC_COMMIT");
    let is_release = variable("PROFILE").as_deref() == Some("release");
    // Packages are built from sources without a history.
    let commit = variable("URNIC_COMMIT").or_else(|| is_release.then(commit).flatten());
    let version = variable("CARGO_PKG_VERSION").unwrap_or_default();
    let from = match commit {
        Some(commit) => format!("commit {commit}"),
        None if is_release => "of an unknown commit".to_owned(),
        None => "development build".to_owned(),
    };
    println!("cargo:rustc-env=URNIC_VERSION={version} ({from})");
}

#[expect(clippy::disallowed_methods, reason = "cargo's interface to build scripts")]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the commit that is checked out.
fn commit() -> Option<String> {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    // A missing file would count as changed at every build.
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Returns the output of `git`, if git exists and succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
