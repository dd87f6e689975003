//! A process and a network namespace for one test.
#![allow(dead_code, reason = "several packages test in namespaces, each with its part of this")]

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::process::{Command, Output};

/// Tells the child which test it is to run.
const CHILD: &str = "URNIC_NETNS_CHILD";
/// Set by the gate: what cannot be tested fails.
const REQUIRE: &str = "URNIC_REQUIRE";
/// Longest a test may take, in seconds.
const LIMIT_SECONDS: u32 = 180;

/// Defines tests that run by themselves in a fresh network namespace. `with` names what they need
/// beside `ip`: programs, and device nodes by their path.
macro_rules! netns_tests {
    (with $needs:expr; $($(#[$doc:meta])* fn $name:ident() $body:block)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            let (_crate, path) = path.split_once("::").unwrap();
            $crate::isolate::run(path, &$needs, || $body);
        }
    )*};
    ($($(#[$doc:meta])* fn $name:ident() $body:block)*) => {
        $crate::isolate::netns_tests! { with []; $($(#[$doc])* fn $name() $body)* }
    };
}
pub(crate) use netns_tests;

/// Runs `test` in a child process in a network namespace of its own. `name` is its full name;
/// `needs` are programs, and device nodes by their path.
pub(crate) fn run(name: &str, needs: &[&str], test: fn()) {
    if variable(CHILD).is_some_and(|child| child == name) {
        crate::network::ip("link set lo up");
        crate::network::quiet();
        return test();
    }
    for need in ["ip", "unshare", "timeout"].iter().chain(needs) {
        if need.starts_with('/') {
            if let Err(error) = File::options().read(true).write(true).open(need) {
                return skip(name, &format!("{need}: {error}"));
            }
        } else if !is_there(need) {
            return skip(name, &format!("the program `{need}` is missing"));
        }
    }
    let Some(unshare) = unshare_arguments() else {
        return skip(name, "no right to make network namespaces (run as root, or allow user ones)");
    };
    let output = Command::new("timeout")
        .args(["--kill-after=5", &LIMIT_SECONDS.to_string(), "unshare"])
        .args(unshare)
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .output()
        .unwrap();
    assert!(output.status.success(), "{name} in its namespace: {}", told(&output));
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(ran, "{name} ran in its namespace: {}", told(&output));
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_shown =
        |line: &&str| ["skipped ", "measured "].iter().any(|word| line.starts_with(word));
    for line in errors.lines().filter(is_shown) {
        show(&format!("{line}\n"));
    }
}

/// Does without a test, loudly.
///
/// # Panics
/// When skips are failures.
pub(crate) fn skip(name: &str, reason: &str) {
    assert!(variable(REQUIRE).is_none(), "{name} cannot run: {reason}");
    show(&format!("skipped {name}: {reason}\n"));
}

/// Prints past the capture of the test harness, so that it is seen.
fn show(text: &str) {
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "how the gate and the parent talk to a test")]
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin"));
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// What makes `unshare` give a network namespace here, with or without privilege.
fn unshare_arguments() -> Option<&'static [&'static str]> {
    const WAYS: [&[&str]; 2] = [&["--net"], &["--user", "--map-root-user", "--net"]];
    WAYS.into_iter().find(|arguments| {
        Command::new("unshare")
            .args(*arguments)
            .arg("true")
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

/// Whether root here is somebody else outside.
pub(crate) fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

fn told(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
