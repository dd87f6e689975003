//! A process and a network namespace for one test.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::programs::{self, program};
use crate::{is_required, record, show, skip};

pub use crate::netns_tests;

/// Tells the child which test it is to run.
const CHILD: &str = "URNIC_NETNS_CHILD";
/// Longest a test may take, in seconds.
const LIMIT_SECONDS: u32 = 180;
/// What a child says that ends as skipped.
const SKIPPED: &str = "the rest of this test is skipped";

/// Defines tests that run by themselves in a fresh network namespace. `with` names what they need
/// beside `ip`: programs, and device nodes and libraries by their path. `alone` before it keeps them from running
/// at the same time as others that are [`alone`].
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

/// A turn of the tests that take all processors there are, or measure what they get of them: one of
/// them runs at a time, beside those that mostly wait.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed has nothing left behind that the next one uses.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `test` in a child process in a network namespace of its own. `name` is its full name;
/// `needs` are programs, and device nodes and libraries by their path.
///
/// # Panics
/// When the test fails, and when it cannot run though it has to.
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
    child
        .args(["--kill-after=5", &LIMIT_SECONDS.to_string(), "unshare"])
        .args(unshare)
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, name);
    if let Some(file) = record::file() {
        child.env(record::FILE, file);
    }
    let output = child.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_skipped = errors.lines().any(|line| line == SKIPPED) && !is_required();
    assert!(output.status.success() || is_skipped, "{name} in its namespace: {}", told(&output));
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(ran || is_skipped, "{name} ran in its namespace: {}", told(&output));
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

/// Ends the test that this process runs, as skipped.
///
/// # Panics
/// Always: that is how it ends the test. Its parent knows what it means.
pub(crate) fn skip_the_rest(reason: &str) {
    let name = std::env::var_os(CHILD).map(|name| name.to_string_lossy().into_owned());
    let name =
        name.unwrap_or_else(|| panic!("{reason}, and this test does not say that it needs it"));
    skip(&name, reason);
    show(&format!("{SKIPPED}\n"));
    // Without a message of a panic: nothing is wrong.
    std::panic::resume_unwind(Box::new(SKIPPED));
}

/// Keeps the kernel from sending anything by itself on interfaces made from now on, and from
/// filtering what crosses bridges, in the network namespace of the calling thread.
pub fn quiet() {
    for which in ["all", "default"] {
        // There is no such file where the kernel has no IPv6 at all: just as quiet.
        let _absent = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
    // Frames on a bridge pass the host's packet filter where that is loaded: a seventh of what a
    // small frame costs, and no part of what is tested.
    for filter in ["arptables", "ip6tables", "iptables"] {
        let _absent = fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{filter}"), "0");
    }
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

/// Whether root here is an ordinary user outside.
///
/// # Panics
/// When `/proc` is not mounted.
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
