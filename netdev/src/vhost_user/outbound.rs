//! Copies transmitted frames into buffers of the ring.

use std::time::{Duration, Instant};

use crate::digests::Destination;
use crate::frame::Digester;
use crate::vhost_user::offload::HEADER_LEN;
use crate::virtqueue::{MemoryTable, Run};
use crate::{SharedSlice, TxFrame};

/// Panics if the frame does not fit into `runs`.
#[inline]
pub(super) fn put_octets(
    table: &MemoryTable,
    runs: &[Run],
    header: &[u8; HEADER_LEN],
    frame: &TxFrame<'_>,
    len: usize,
    distance: &mut Distance,
) {
    let asks_ahead = distance.is_far && len >= TIMED_LEN_MIN;
    let began = distance.begin(len);
    let mut writer = Writer { table, runs, run: 0, into: 0, asks_ahead };
    writer.put(SharedSlice::from_bytes(header));
    writer.put(SharedSlice::from_bytes(frame.head));
    frame.copy_payload(&mut writer);
    if let Some(began) = began {
        distance.note(len, began.elapsed());
    }
}

/// Estimate, from the time that copies take, of the distance to the ring's memory, which the peer
/// read last. Its cache lines are near if they are in a cache that both cores share, and far if
/// they must come from the other core. It decides on prefetching alone.
#[derive(Debug, Default)]
pub(super) struct Distance {
    is_far: bool,
    untimed: u8,
}

impl Distance {
    /// If this copy is timed.
    #[inline]
    fn begin(&mut self, len: usize) -> Option<Instant> {
        if len < TIMED_LEN_MIN {
            return None;
        }
        let is_timed = self.untimed == 0;
        self.untimed = if is_timed { UNTIMED } else { self.untimed - 1 };
        is_timed.then(now)
    }

    fn note(&mut self, len: usize, took: Duration) {
        let lines = len / CACHE_LINE;
        self.is_far = took.as_nanos() > lines as u128 * NEAR_LINE_NS_MAX;
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a copy takes is nothing of the protocol's")]
fn now() -> Instant {
    Instant::now()
}

const UNTIMED: u8 = 15;
/// Reading the clock takes as long as copying a few lines.
const TIMED_LEN_MIN: usize = 16 << 10;
const CACHE_LINE: usize = 64;
/// On a processor of 2025 a near line took 3 ns, a far one 10.
const NEAR_LINE_NS_MAX: u128 = 5;

/// Distance in bytes from the write position to the prefetched lines.
const AHEAD_LEN: usize = 4096;
/// Shortest write that prefetches.
const LONG_LEN_MIN: usize = 256;

struct Writer<'a> {
    table: &'a MemoryTable,
    runs: &'a [Run],
    run: usize,
    into: usize,
    asks_ahead: bool,
}

impl Writer<'_> {
    /// Prefetches `len` bytes, [`AHEAD_LEN`] ahead of the write position: a store waits until its
    /// line has arrived. For near memory, prefetching costs more than it saves.
    #[inline]
    fn ask_ahead(&self, run: Run, len: usize) {
        if !self.asks_ahead || len < LONG_LEN_MIN {
            return;
        }
        let from = (self.into + AHEAD_LEN).min(run.len);
        self.table.prefetch_to_write(run.part(from, len.min(run.len - from)));
    }

    #[inline]
    fn fill(
        &mut self,
        octets: SharedSlice<'_>,
        mut each: impl FnMut(&MemoryTable, Run, SharedSlice<'_>),
    ) {
        let mut at = 0;
        while at < octets.len() {
            let run = self.runs[self.run];
            let now = (run.len - self.into).min(octets.len() - at);
            self.ask_ahead(run, now);
            each(self.table, run.part(self.into, now), octets.part(at, now));
            at += now;
            self.into += now;
            if self.into == run.len {
                self.run += 1;
                self.into = 0;
            }
        }
    }
}

impl Destination for Writer<'_> {
    #[inline]
    fn put(&mut self, octets: SharedSlice<'_>) {
        self.fill(octets, |table, run, part| table.copy_from(run, part));
    }

    #[inline]
    fn put_and_digest(
        &mut self,
        octets: SharedSlice<'_>,
        digester: &Digester,
        mut register: u32,
    ) -> u32 {
        self.fill(octets, |table, run, part| {
            register = table.copy_and_digest(run, part, digester, register);
        });
        register
    }

    fn digest_last(&self, len: usize, digester: &Digester, mut register: u32) -> u32 {
        // Go back to the first of these bytes, then digest them in order.
        let (mut first, mut into, mut left) = (self.run, self.into, len);
        while left > into {
            left -= into;
            first -= 1;
            into = self.runs[first].len;
        }
        let (mut at, mut left) = (into - left, len);
        for run in &self.runs[first..] {
            let now = (run.len - at).min(left);
            register = digester.append(register, self.table.slice(run.part(at, now)));
            (at, left) = (0, left - now);
            if left == 0 {
                break;
            }
        }
        register
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_long_frames_are_timed_and_no_short_one() {
        let mut distance = Distance::default();
        let timed = (0..160).filter(|_| distance.begin(TIMED_LEN_MIN).is_some()).count();
        assert_eq!(timed, 10);
        assert!((0..160).all(|_| distance.begin(TIMED_LEN_MIN - 1).is_none()));
    }

    #[test]
    fn slow_copies_mark_the_memory_as_far() {
        let mut distance = Distance::default();
        for (took_us, is_far) in [(3, false), (10, true), (7, true), (4, false)] {
            distance.note(64 << 10, Duration::from_micros(took_us));
            assert_eq!(distance.is_far, is_far, "{took_us} µs for 64 KiB");
        }
    }
}
