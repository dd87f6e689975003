//! Real time, for reports only; nothing else depends on it.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Stopwatch {
    start: Instant,
}

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "throughput is reported in real time")]
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
