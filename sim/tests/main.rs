//! The tests of the simulator: one binary, a module for each suite.
//! `tests/README.md` at the top of the repository is their map.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod regressions;
mod sabotage;
mod seeds;
mod trials;
