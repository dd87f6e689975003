//! A process and a network namespace for one test.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::programs::{self, CHILD, SKIPPED, program};
use crate::{is_required, record, show, skip};

pub use crate::netns_tests;

/// Time limit of a test, in seconds.
const LIMIT_SECONDS: u32 = 180;

/// Defines tests that run in a fresh network namespace each. `with` names their requirements
/// besides `ip`: programs, and device nodes and libraries by their path. `alone` before it prevents
/// them from running at the same time as other tests that are [`alone`].
#[macro_export]
macro_rules! netns_tests {
    (alone with $needs:expr; $($(#[$doc:meta])* fn $name:ident() $body:block)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            let (_crate, path) = path.split_once("::").unwrap();
            let _turn = $crate::isolate::alone();
            $crate::isolate::run(path, &$needs, || $body);
        }
    )*};
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

/// Waits for the turn of a test that uses all processors, or measures its share of them. Only one
/// such test runs at a time, beside tests that mostly wait.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A failed test leaves nothing behind that the next one uses.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `test` in a child process with its own network namespace. `name` is its full name; `needs`
/// are programs, and device nodes and libraries by their path.
///
/// # Panics
/// If the test fails, or if it cannot run and skips are failures.
pub fn run(name: &str, needs: &[&str], test: fn()) {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        let up = program("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success(), "the loopback comes up");
        quiet();
        return test();
    }
    let (paths, programs): (Vec<&str>, Vec<&str>) =
        needs.iter().partition(|need| need.starts_with('/'));
    for path in paths {
        if let Err(error) = open(path) {
            return skip(name, &format!("{path}: {error}"));
        }
    }
    if let Some(reason) =
        programs::missing(["ip", "unshare", "timeout", "true"].into_iter().chain(programs))
    {
        return skip(name, &reason);
    }
    let Some(unshare) = unshare_arguments() else {
        return skip(name, "no right to make network namespaces (run as root, or allow user ones)");
    };
    let mut child = Command::new("timeout");
    child.args(["--kill-after=5", &LIMIT_SECONDS.to_string(), "unshare"]).args(unshare).arg("--");
    child.arg(std::env::current_exe().unwrap());
    ends_well(&mut child, name);
}

/// Runs `test` in a child process, for tests that look at the memory of their process. `name` is its
/// full name.
///
/// # Panics
/// If the test fails.
pub fn in_own_process(name: &str, test: fn()) {
    if std::env::var_os(CHILD).is_some_and(|child| child == name) {
        return test();
    }
    ends_well(&mut Command::new(std::env::current_exe().unwrap()), name);
}

/// Runs a command that ends with the path of this test program, with the arguments for one test.
fn ends_well(child: &mut Command, name: &str) {
    child
        .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, name);
    if let Some(file) = record::file() {
        child.env(record::FILE, file);
    }
    let output = child.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_skipped = errors.lines().any(|line| line == SKIPPED) && !is_required();
    assert!(output.status.success() || is_skipped, "{name} in its process: {}", told(&output));
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(ran || is_skipped, "{name} ran in its process: {}", told(&output));
    let is_shown =
        |line: &&str| ["skipped ", "measured "].iter().any(|word| line.starts_with(word));
    for line in errors.lines().filter(is_shown) {
        show(&format!("{line}\n"));
    }
}

/// Opens a device node for reading and writing, and any other file, such as a library, for reading.
fn open(path: &str) -> io::Result<File> {
    let is_node = fs::metadata(path)?.file_type().is_char_device();
    File::options().read(true).write(is_node).open(path)
}

/// Prevents the kernel from sending anything by itself on interfaces made from now on, and from
/// filtering frames on bridges, in the network namespace of the calling thread.
pub fn quiet() {
    for which in ["all", "default"] {
        // The file is absent if the kernel has no IPv6, which is just as quiet.
        let _absent = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
    // If the host's packet filter is loaded, frames on a bridge pass it: that takes a seventh of
    // the time of a small frame, and is not under test.
    for filter in ["arptables", "ip6tables", "iptables"] {
        let _absent = fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{filter}"), "0");
    }
}

/// Returns the arguments that make `unshare` create a network namespace here, with or without
/// privilege.
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

/// Returns true if root here is an ordinary user outside.
///
/// # Panics
/// If `/proc` is not mounted.
#[must_use]
pub fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap();
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
