//! Passes the commit from which the command is built to the compiler, if it is known, and makes
//! places for the libraries that the command contains.
//!
//! A release names its commit; a development build only says that it is one, so that a new commit
//! does not rebuild the command.

use std::env;
use std::fs::File;
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
    // Empty files for `cargo check` and `cargo doc`, which build no shared libraries; a build replaces
    // them. `build/NAME-DIGEST/out` is beside `deps`.
    let out = variable("OUT_DIR").unwrap_or_default();
    if let Some(folder) = Path::new(&out).ancestors().nth(3) {
        for name in ["liburnic_rdma.so", "liburnic_preload.so"] {
            // A file that is there stays.
            let _exists = File::create_new(folder.join("deps").join(name));
        }
    }
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
