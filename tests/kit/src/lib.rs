//! Code shared by the tests. It also checks for programs, rights and devices that a machine may
//! lack, so that a test that cannot run is skipped, by name and reason, in a uniform way:
//!
//! - [`skip`] prints and records a skip; it is a failure if `URNIC_REQUIRE` is set, as in the gate;
//! - [`is_too_long`] skips a test that takes many seconds, unless `URNIC_LONG` or `URNIC_REQUIRE` is set;
//! - [`programs`] finds and starts programs;
//! - [`isolate`] gives a test its own process and network namespace;
//! - [`network`] makes interfaces there;
//! - [`fabric`] runs a fabric of InfiniBand there, of ibsim under OpenSM;
//! - [`pair`] joins two engines by a memory link under a virtual clock;
//! - [`closing`] opens and closes connections of two engines, for their TIME-WAIT;
//! - [`crowd`] opens many connections of two engines;
//! - [`fragments`] delivers received frames in fragments;
//! - [`one_way`] sends messages over such a link, impaired, and collects the receiver's counters;
//! - [`octets`] makes the frames of a raw peer;
//! - [`ports`] finds TCP ports for programs that get their port as an argument;
//! - [`kernel_flow`] and [`ingress`] are the kernel's TCP and smoltcp's, to stand beside the engine;
//! - [`users`] runs part of a test as another user;
//! - [`waker`] counts its calls;
//! - [`counting`] counts allocations, in a binary that makes its allocator the global one;
//! - [`summary`] counts the skips at the end of `cargo test`;
//! - [`packages`] names the packages to install for skipped tests.
#![allow(missing_docs, missing_debug_implementations, reason = "shared by tests only")]
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

pub mod closing;
pub mod counting;
pub mod crowd;
pub mod fabric;
pub mod fragments;
pub mod ingress;
pub mod isolate;
pub mod kernel_flow;
pub mod network;
pub mod octets;
pub mod one_way;
pub mod packages;
pub mod pair;
pub mod ports;
pub mod programs;
mod record;
pub mod silence;
pub mod summary;
pub mod users;
pub mod waker;

use std::io::Write;

/// Set by the gate: a test that cannot run fails.
const REQUIRE: &str = "URNIC_REQUIRE";

/// Skips a test, or a part of one, called `name`, because of `reason`: prints that, and records it
/// for the [`summary`].
///
/// # Panics
/// If skips are failures.
pub fn skip(name: &str, reason: &str) {
    assert!(!is_required(), "{name} cannot run: {reason}");
    record::add(name, reason);
    show(&format!("skipped {name}: {reason}\n"));
}

/// Set to run the tests that take long.
const LONG: &str = "URNIC_LONG";

/// Reason of the skip of a test that takes long.
const TAKES_LONG: &str = "it takes long";

/// Skips a test called `name` that takes many seconds, unless it is asked for by `URNIC_LONG` or, as
/// in the gate, by `URNIC_REQUIRE`. Returns true if the test is skipped, and has to return.
#[must_use]
pub fn is_too_long(name: &str) -> bool {
    if runs_long_tests() {
        return false;
    }
    skip(name, TAKES_LONG);
    true
}

/// Returns true if tests that take long are asked for.
#[must_use]
pub fn runs_long_tests() -> bool {
    is_required() || std::env::var_os(LONG).is_some()
}

/// Returns true if a test that cannot run must fail.
#[must_use]
pub fn is_required() -> bool {
    std::env::var_os(REQUIRE).is_some()
}

/// Returns true if the machine has IPv6 on its loopback interface.
#[must_use]
pub fn has_ipv6_loopback() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}

/// Prints past the test harness, which captures output.
pub fn show(text: &str) {
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}
