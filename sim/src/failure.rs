//! The failure that the oracle reports for a run.

use std::fmt;

/// A failure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Time of the failure, in nanoseconds of the virtual clock.
    pub at_ns: u64,
    /// Description of the failure.
    pub what: String,
}

impl Failure {
    pub(crate) fn new(at_ns: u64, what: impl Into<String>) -> Self {
        Self { at_ns, what: what.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.at_ns / 1_000_000_000, self.at_ns % 1_000_000_000);
        write!(f, "at {seconds}.{nanos:09} s: {}", self.what)
    }
}
