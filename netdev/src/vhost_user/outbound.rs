//! Frames out, into buffers of the ring: the twin of [`inbound`](super::inbound).

use std::time::{Duration, Instant};

use crate::digests::Destination;
use crate::frame::Digester;
use crate::vhost_user::offload::HEADER_LEN;
use crate::virtqueue::{MemoryTable, Run};
use crate::{Fragment, TxFrame};

/// Copies a frame of `len` bytes behind its header to the front of `runs`.
///
/// # Panics
/// When they have no room for it.
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
    writer.put(Fragment::from_slice(header));
    writer.put(Fragment::from_slice(frame.head));
    frame.copy_payload(&mut writer);
    if let Some(began) = began {
        distance.note(len, began.elapsed());
    }
}

/// How far away the memory of the ring is. The other end has read it last: its lines are in a cache that the two
/// cores share, or they have to come from the other core.
#[derive(Debug, Default)]
pub(super) struct Distance {
    is_far: bool,
    /// Long frames until one is timed again.
    untimed: u8,
}

impl Distance {
    /// When the copy of a frame of so many bytes begins, if it is one that is timed.
    #[inline]
    fn begin(&mut self, len: usize) -> Option<Instant> {
        if len < TIMED_LEN_MIN {
            return None;
        }
        let is_timed = self.untimed == 0;
        self.untimed = if is_timed { UNTIMED } else { self.untimed - 1 };
        is_timed.then(now)
    }

    /// So many bytes took so long to be copied.
    fn note(&mut self, len: usize, took: Duration) {
        let lines = len / CACHE_LINE;
        self.is_far = took.as_nanos() > lines as u128 * NEAR_LINE_NS_MAX;
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a copy takes is nothing of the protocol's")]
fn now() -> Instant {
    Instant::now()
}

/// Long frames that are not timed between two that are.
const UNTIMED: u8 = 15;
/// Frames of so many bytes are long: reading the clock takes as long as a few lines.
const TIMED_LEN_MIN: usize = 16 << 10;
const CACHE_LINE: usize = 64;
/// What a line takes at most that is near: on a processor of 2025 it was 3 ns, and 10 where it was far.
const NEAR_LINE_NS_MAX: u128 = 5;

/// Bytes between those that are written and those whose lines are asked for.
const AHEAD_LEN: usize = 4096;
/// Bytes that are written at once from which on it is worth asking for others.
const LONG_LEN_MIN: usize = 256;

/// Fills runs, one behind the other.
struct Writer<'a> {
    table: &'a MemoryTable,
    runs: &'a [Run],
    /// The run that is being filled, and how many of its bytes are.
    run: usize,
    into: usize,
    asks_ahead: bool,
}

impl Writer<'_> {
    /// `len` bytes more of the run are about to be filled: asks for the lines of as many that follow, since a
    /// store waits until each has come. Where they are near that takes longer than it saves.
    #[inline]
    fn ask_ahead(&self, run: Run, len: usize) {
        if !self.asks_ahead || len < LONG_LEN_MIN {
            return;
        }
        let from = (self.into + AHEAD_LEN).min(run.len);
        self.table.prefetch_to_write(run.part(from, len.min(run.len - from)));
    }

    /// Calls `each` with the parts of `octets`, each with the place that it goes to.
    #[inline]
    fn fill(
        &mut self,
        octets: Fragment<'_>,
        mut each: impl FnMut(&MemoryTable, Run, Fragment<'_>),
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
    fn put(&mut self, octets: Fragment<'_>) {
        self.fill(octets, |table, run, part| table.copy_from(run, part));
    }

    #[inline]
    fn put_and_digest(
        &mut self,
        octets: Fragment<'_>,
        digester: &Digester,
        mut register: u32,
    ) -> u32 {
        self.fill(octets, |table, run, part| {
            register = table.copy_and_digest(run, part, digester, register);
        });
        register
    }

    fn digest_last(&self, len: usize, digester: &Digester, mut register: u32) -> u32 {
        // Back to where they begin, and then through them in their order.
        let (mut first, mut into, mut left) = (self.run, self.into, len);
        while left > into {
            left -= into;
            first -= 1;
            into = self.runs[first].len;
        }
        let (mut at, mut left) = (into - left, len);
        for run in &self.runs[first..] {
            let now = (run.len - at).min(left);
            register = digester.append(register, self.table.fragment(run.part(at, now)));
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
    fn few_long_frames_are_timed_and_no_short_one() {
        let mut distance = Distance::default();
        let timed = (0..160).filter(|_| distance.begin(TIMED_LEN_MIN).is_some()).count();
        assert_eq!(timed, 10);
        assert!((0..160).all(|_| distance.begin(TIMED_LEN_MIN - 1).is_none()));
    }

    #[test]
    fn memory_is_far_while_its_lines_take_long() {
        let mut distance = Distance::default();
        for (took_us, is_far) in [(3, false), (10, true), (7, true), (4, false)] {
            distance.note(64 << 10, Duration::from_micros(took_us));
            assert_eq!(distance.is_far, is_far, "{took_us} µs for 64 KiB");
        }
    }
}
