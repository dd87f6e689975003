//! The integration tests of the engine: one binary, a module for each suite.
//! `tests/README.md` is their map.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use urnic_testkit::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

mod allocations;
mod batches;
mod conformance;
mod copies;
mod crowd;
mod digests;
mod fair;
mod forms;
mod goodput;
mod hostile;
mod immediates;
mod in_place;
mod markers;
mod multi_queue;
mod network;
mod no_timer;
mod not_ready;
mod pair;
mod placed;
mod property;
mod requests;
mod reregister;
mod revisions;
mod silence_probe;
mod teardown;
mod tshark;
mod windows;
