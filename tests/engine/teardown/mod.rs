//! How connections begin late, end early, and leave nothing behind.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::cast_possible_truncation, reason = "test octets are made of low octets")]

mod close;
mod delayed;
mod duo;
mod layered;
mod lost;
mod many;
mod order;
mod time_wait;
