//! What the tests share. Programs, rights and devices that a machine may lack are asked for here, so
//! that a test which cannot run is skipped, by name and reason, in one way:
//!
//! - [`skip`] says so, writes it down, and is a failure where `URNIC_REQUIRE` is set, as in the gate;
//! - [`programs`] finds and starts programs;
//! - [`isolate`] gives a test a process and a network namespace of its own;
//! - [`network`] makes interfaces there;
//! - [`fabric`] is one of InfiniBand there, of ibsim under OpenSM;
//! - [`pair`] joins two engines by a memory link under a virtual clock;
//! - [`closing`] opens and closes connections of two engines, for their TIME-WAIT;
//! - [`crowd`] opens many connections of two engines;
//! - [`fragments`] hands received frames over in fragments;
//! - [`one_way`] sends messages over such a link, impaired, and counts what the receiver does;
//! - [`octets`] makes the frames of a raw peer;
//! - [`ports`] finds TCP ports for programs that are told where to listen;
//! - [`kernel_flow`] and [`ingress`] are the kernel's TCP and smoltcp's, to stand beside the engine;
//! - [`waker`] counts its calls;
//! - [`counting`] counts allocations, in a binary that makes its allocator the global one;
//! - [`summary`] counts, at the end of `cargo test`, what was skipped;
//! - [`packages`] names what to install for it.
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
pub mod waker;

use std::io::Write;

/// Set by the gate: what cannot be tested fails.
const REQUIRE: &str = "URNIC_REQUIRE";

/// Does without a test, or a part of one, called `name`, because of `reason`: says so, and has the
/// [`summary`] count it.
///
/// # Panics
/// When skips are failures.
pub fn skip(name: &str, reason: &str) {
    assert!(!is_required(), "{name} cannot run: {reason}");
    record::add(name, reason);
    show(&format!("skipped {name}: {reason}\n"));
}

/// Whether a test that cannot run is to fail.
#[must_use]
pub fn is_required() -> bool {
    std::env::var_os(REQUIRE).is_some()
}

/// Whether the machine has IPv6 on its loopback interface.
#[must_use]
pub fn has_ipv6_loopback() -> bool {
    std::net::UdpSocket::bind("[::1]:0").is_ok()
}

/// Prints past the capture of the test harness, so that it is seen.
fn show(text: &str) {
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}
