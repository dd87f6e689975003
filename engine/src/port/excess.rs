//! Limit on frames of no connection. A frame of a connection takes a fraction of a microsecond; a
//! SYN or a neighbour query takes several, for a look-up in vain and an answer, and any host can
//! send them at the rate of the link. Beyond the limit they are dropped after the look-up:
//! connections get the rest of the time, and the device need not drop frames, which it could not
//! choose.

use crate::limits::{CONNECTIONLESS_BURST_MAX, CONNECTIONLESS_PER_SECOND_MAX};
use crate::time::Instant;

/// Kinds of frames with separate limits: a flood of one kind does not keep the others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connectionless {
    /// TCP segments: SYNs, returned cookies, and segments for no connection.
    Tcp,
    /// All else: neighbour queries and answers, ICMP, UDP.
    Other,
    /// IP fragments, which may belong to a connection: only the first one has its ports.
    Fragment,
}

#[derive(Debug, Default)]
pub(super) struct Allowances([Allowance; 3]);

impl Allowances {
    pub(super) fn take(&mut self, now: Instant, kind: Connectionless) -> bool {
        self.0[kind as usize].take(now)
    }
}

const FRAME_NS: u64 = 1_000_000_000 / CONNECTIONLESS_PER_SECOND_MAX;
/// In it an empty bucket fills.
const FULL_NS: u64 = FRAME_NS * CONNECTIONLESS_BURST_MAX;

/// One bucket, stored as the time at which it is full again.
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
        // A second later there are as many tokens as the rate, but at most a burst.
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
