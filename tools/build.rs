//! Tells the command which commit it is built from, where that is known.
//!
//! A release is built from a commit; a development build only says that it is one, so that a new
//! commit does not build the command again.

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

#[expect(clippy::disallowed_methods, reason = "a build script is told everything this way")]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The commit that is checked out.
fn commit() -> Option<String> {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    // A file that is not there would count as changed at every build.
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// What `git` says, if there is one and it has an answer.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
