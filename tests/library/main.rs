//! The integration tests of the library: one binary, a module for each suite.
//! `tests/README.md` is their map.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use urnic_testkit::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

mod congested;
mod endpoint;
mod examples;
mod finish;
mod front;
mod ipoib;
mod keepalive;
mod life;
mod netns;
mod relisten;
mod shm;
mod tidy;
mod unanswered;
mod vhost_user;
mod waiting;
mod watch;
