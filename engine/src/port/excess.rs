//! How many frames of no connection a port works on.
//!
//! A frame of a connection takes a fraction of a microsecond. A SYN, or a question for a link address, takes
//! several: it is looked up in vain, answered, and the answer is a frame of its own. Any host that reaches the
//! port can send them at the rate of the link. Beyond a limit they are dropped after the look-up: connections
//! have the rest of the processor, and the device is emptied before it has to drop frames itself, which it
//! does without regard to the connection that they are for.

use crate::limits::{CONNECTIONLESS_BURST_MAX, CONNECTIONLESS_PER_SECOND_MAX};
use crate::time::Instant;

/// The kinds of frames that are counted apart: a flood of one kind keeps none of the other out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connectionless {
    /// TCP segments: SYNs, cookies that come back, and segments for no connection.
    Tcp,
    /// All else: questions and answers about link addresses, ICMP, UDP.
    Other,
    /// IP fragments, which may be of a connection: its ports are in the first one only.
    Fragment,
}

/// Frames of no connection that may still be worked on: one token bucket for each kind.
#[derive(Debug, Default)]
pub(super) struct Allowances([Allowance; 3]);

impl Allowances {
    /// Takes one frame; returns false if it is to be dropped.
    pub(super) fn take(&mut self, now: Instant, kind: Connectionless) -> bool {
        self.0[kind as usize].take(now)
    }
}

/// Time in which one more frame may be worked on.
const FRAME_NS: u64 = 1_000_000_000 / CONNECTIONLESS_PER_SECOND_MAX;
/// Time in which a bucket that is empty is full again.
const FULL_NS: u64 = FRAME_NS * CONNECTIONLESS_BURST_MAX;

/// One bucket. What it lacks is kept as the time until it is full again.
#[derive(Debug, Default)]
struct Allowance {
    full_at: Instant,
}

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now).plus_nanos(FRAME_NS);
        let has_room = full_at <= now.plus_nanos(FULL_NS);
        if has_room {
            self.full_at = full_at;
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate_is_allowed() {
        let mut allowances = Allowances::default();
        let mut taken = |now: Instant, offered: u64| {
            let kind = Connectionless::Tcp;
            (0..offered).filter(|_| allowances.take(now, kind)).count() as u64
        };
        let second = |count: u64| Instant::from_nanos(count * 1_000_000_000);
        assert_eq!(taken(second(10), 10 * CONNECTIONLESS_BURST_MAX), CONNECTIONLESS_BURST_MAX);
        assert_eq!(taken(second(10), 1), 0);
        // A second later as many as the rate, but never more than a burst at once.
        let refilled = CONNECTIONLESS_PER_SECOND_MAX.min(CONNECTIONLESS_BURST_MAX);
        assert_eq!(taken(second(11), 10 * CONNECTIONLESS_BURST_MAX), refilled);
        let steps = (0..1000).map(|ms| taken(second(12).plus_nanos(ms * 1_000_000), 10_000));
        let all: u64 = steps.sum();
        assert!(
            all.abs_diff(CONNECTIONLESS_BURST_MAX + CONNECTIONLESS_PER_SECOND_MAX) < 100,
            "{all}"
        );
        for other in [Connectionless::Other, Connectionless::Fragment] {
            assert!(allowances.take(second(12), other), "{other:?} has its own");
        }
    }
}
