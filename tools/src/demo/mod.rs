//! `urnic demo`: two RNICs on a memory link, every byte verified.
//!
//! ```text
//! Plan ─ operations ─→ Flow ─ posts ─→ End (queues) ─→ Port ═ link ═ Port ─→ End ─→ Flow ─ verifies
//!                        └ Pattern (what is sent)                     Arena (where it arrives) ┘
//! ```
//!
//! A [`Flow`](flow::Flow) is one direction, seen at both ends at once, which is possible because both
//! are in one process. A `Session` owns the link, both ends, both flows, and a virtual clock: only
//! the duration of a run depends on the machine.

mod arena;
mod end;
mod flow;
mod options;
mod pattern;
mod plan;
mod result;
mod session;
mod wire;

use std::fmt;
use std::io;

pub(crate) use options::{OUTPUT, Options};
pub(crate) use result::Outcome;
pub(crate) use session::Session;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    text: String,
}

impl Failure {
    fn new(text: String) -> Self {
        Self { text }
    }

    fn of_io(error: io::Error) -> Self {
        Self::new(error.to_string())
    }

    fn within(self, context: &str) -> Self {
        Self { text: format!("{context}: {}", self.text) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}
