//! How long bytes wait in a piece list.

use crate::time::Instant;

/// The waiting of one list's bytes. It costs nothing while nothing is held or given up.
///
/// The sum over all bytes of the time that each waited is the number of bytes held, integrated
/// over time: no byte needs a time of its own.
#[derive(Debug, Default)]
pub(super) struct Wait {
    /// Up to when bytes are counted.
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

    /// `bytes` were held until now; their number is about to change.
    pub(super) fn advance(&mut self, now: Instant, bytes: u64) {
        let ns = now.nanos_since(self.counted_to);
        self.octet_ns = self.octet_ns.wrapping_add(u128::from(ns) * u128::from(bytes));
        self.counted_to = now;
    }

    /// Bytes held since `since` are held no more.
    pub(super) fn end(&mut self, now: Instant, since: Instant) {
        self.ns_max = self.ns_max.max(now.nanos_since(since));
    }
}
