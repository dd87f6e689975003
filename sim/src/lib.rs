//! The simulator: ports of the engine on links in memory, under a virtual clock, with faults and
//! work drawn from a seed, and an oracle that knows the expected result.
//!
//! ```text
//! seed ── drawing ─▶ Plan ─┬─ world: nodes, links, a switch, the clock, faults ─┐
//!                          │         or a fabric of InfiniBand                   │
//!                          ├─ flow, side: what applications post and poll       ├─▶ Outcome
//!                          └─ memory: the expected result (Model) ──────────────┘    or Failure
//! ```
//!
//! A run is a function of its [`Plan`], and a plan one of its seed: the same seed gives the same
//! run on every machine. `urnic sim` and the tests of this package run the same code.
//!
//! The oracle checks:
//!
//! - Every byte of memory has the value that the work writes there; all other bytes are unchanged.
//! - Each completion is the next one due, with the right contents, and its data is in memory.
//! - Every posted receive and every signaled request completes.
//! - When a run is over, no connection, piece or region is left.
//! - A run ends within a bounded virtual time after the last fault, and much sooner without faults.

mod address;
mod drawing;
mod fabric;
mod flow;
mod guess;
mod liar;
mod live;
mod memory;
mod moving;
pub mod plan;
mod random;
mod run;
mod sabotage;
mod scenario;
mod shared;
mod side;
mod sweep;
mod switch;
mod world;

use std::fmt;
use std::io::{self, Write};

pub use plan::Plan;
pub use scenario::Scenario;
pub use sweep::{Sweep, SweepEvent};

/// A failure of a run, as the oracle reports it.
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

/// Counts over runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of runs.
    pub runs: u64,
    /// Number of times that all nodes were polled.
    pub steps: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_ns: u64,
    /// Frames sent.
    pub frames: u64,
    /// Frames that an impairment dropped; included in `frames`.
    pub frames_lost: u64,
    /// Connection ends that have closed: two for each connection.
    pub connections: u64,
    /// Segments retransmitted.
    pub retransmissions: u64,
    /// Bytes placed in registered memory.
    pub bytes_placed: u64,
    /// Bytes placed ahead of others; included in `bytes_placed`.
    pub bytes_placed_out_of_order: u64,
    /// FPDUs found by a marker.
    pub fpdus_by_marker: u64,
    /// Bytes held for incomplete FPDUs.
    pub bytes_held: u64,
    /// Bytes of messages that waited for a receive.
    pub bytes_without_receive: u64,
    /// Segments refused because a piece store was full.
    pub refused_for_room: u64,
    /// Frames forged by a node that guesses.
    pub frames_forged: u64,
    /// Frames to a link address that its host has left.
    pub frames_astray: u64,
    /// Messages of liars that claimed an impossible number.
    pub lies: u64,
}

impl Outcome {
    /// Adds the counts of another run.
    pub const fn add(&mut self, other: &Self) {
        let Self {
            runs,
            steps,
            virtual_ns,
            frames,
            frames_lost,
            connections,
            retransmissions,
            bytes_placed,
            bytes_placed_out_of_order,
            fpdus_by_marker,
            bytes_held,
            bytes_without_receive,
            refused_for_room,
            frames_forged,
            frames_astray,
            lies,
        } = other;
        self.runs += *runs;
        self.steps += *steps;
        self.virtual_ns += *virtual_ns;
        self.frames += *frames;
        self.frames_lost += *frames_lost;
        self.connections += *connections;
        self.retransmissions += *retransmissions;
        self.bytes_placed += *bytes_placed;
        self.bytes_placed_out_of_order += *bytes_placed_out_of_order;
        self.fpdus_by_marker += *fpdus_by_marker;
        self.bytes_held += *bytes_held;
        self.bytes_without_receive += *bytes_without_receive;
        self.refused_for_room += *refused_for_room;
        self.frames_forged += *frames_forged;
        self.frames_astray += *frames_astray;
        self.lies += *lies;
    }
}

/// Runs a plan. A panic of the engine counts as a failure.
///
/// # Errors
/// If memory cannot be allocated. The oracle's finding is the inner result.
pub fn run(plan: &Plan) -> io::Result<Result<Outcome, Failure>> {
    let result = std::panic::catch_unwind(|| run::run(plan, None));
    result.unwrap_or_else(|panic| Ok(Err(Failure::new(0, panic_text(&*panic)))))
}

/// Runs a plan and writes the frames of its nodes to `sink`, as a pcapng file.
///
/// # Errors
/// If memory cannot be allocated, or `sink` cannot be written.
pub fn record(plan: &Plan, sink: Box<dyn Write + Send>) -> io::Result<Result<Outcome, Failure>> {
    let sink = std::panic::AssertUnwindSafe(std::sync::Mutex::new(Some(sink)));
    let result = std::panic::catch_unwind(|| {
        let taken = sink.lock().map(|mut sink| sink.take());
        run::run(plan, taken.unwrap_or_default())
    });
    result.unwrap_or_else(|panic| Ok(Err(Failure::new(0, panic_text(&*panic)))))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the engine panicked: {}", text.unwrap_or("without a text"))
}
