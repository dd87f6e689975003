//! The tests of the command: one binary, a module for each command or kind of device.
//! `tests/README.md` at the root of the repository lists them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod action;
mod benches;
mod cancelled;
mod capture;
mod commands;
mod commands_tap;
mod demo;
mod docs;
mod fairness;
mod figures;
mod help;
mod ib;
mod impair;
mod installed;
mod options;
mod replay;
mod rping;
mod shm;
mod top;
mod vhost_user;
