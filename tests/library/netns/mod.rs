//! Devices of the kernel, in network namespaces that the tests make for themselves.
//!
//! Every test runs in its own process with its own network namespace (`urnic_testkit::isolate`), so
//! tests run side by side and leave nothing behind: no interface, no address, no process. If
//! namespaces are not available, a test says why it is skipped; with `URNIC_REQUIRE` set that is a
//! failure.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::cast_possible_truncation, reason = "test patterns are made of low octets")]

mod kernel_peer;
mod killed;
mod lease;
mod packet;
mod queues;
pub(crate) mod scene;
mod stations;
mod tap;
mod tap_frames;
mod tap_open;
mod xdp;
