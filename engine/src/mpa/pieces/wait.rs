//! Waiting times of the bytes in a piece list.

use crate::time::Instant;

/// All bytes' waiting times are the number of held bytes, integrated over time.
#[derive(Debug, Default)]
pub(super) struct Wait {
    counted_to: Instant,
    octet_ns: u128,
    ns_max: u64,
}

impl Wait {
    pub(super) const fn octet_ns(&self) -> u128 {
        self.octet_ns
    }

    pub(super) const fn ns_max(&self) -> u64 {
        self.ns_max
    }

    /// Adds the time since the last call, with `bytes` held. Call before that number changes.
    pub(super) fn advance(&mut self, now: Instant, bytes: u64) {
        let ns = now.nanos_since(self.counted_to);
        self.octet_ns = self.octet_ns.wrapping_add(u128::from(ns) * u128::from(bytes));
        self.counted_to = now;
    }

    /// Records the end of a wait that began at `since`.
    pub(super) fn end(&mut self, now: Instant, since: Instant) {
        self.ns_max = self.ns_max.max(now.nanos_since(since));
    }
}
