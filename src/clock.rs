//! The real clock of the library.

use rustix::time::{ClockId, Timespec, clock_gettime};

use urnic_engine::time::Instant;

/// The machine's monotonic clock, counted from its boot.
///
/// RFC 6528 §3 allows the key of initial sequence numbers to change at a restart, as here. A new
/// connection rarely meets a peer's TIME-WAIT, because source ports begin elsewhere (RFC 6056); if
/// it does, only its first SYN is refused.
#[must_use]
pub fn monotonic_now() -> Instant {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    let secs = u64::try_from(tv_sec).unwrap_or(0);
    let nanos = u64::try_from(tv_nsec).unwrap_or(0);
    Instant::from_nanos(secs.saturating_mul(NANOS_PER_SEC).saturating_add(nanos))
}

pub(super) fn time_left(now: Instant, deadline: Instant) -> Timespec {
    let ns = deadline.nanos_since(now);
    Timespec {
        tv_sec: i64::try_from(ns / NANOS_PER_SEC).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % NANOS_PER_SEC).expect("below 10^9"),
    }
}

const NANOS_PER_SEC: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let first = monotonic_now();
        assert!(monotonic_now() >= first);
        assert!(first > Instant::ZERO);
    }

    #[test]
    fn time_left_splits_into_seconds_and_nanoseconds() {
        let left = time_left(Instant::from_nanos(5), Instant::from_nanos(2_000_000_012));
        assert_eq!((left.tv_sec, left.tv_nsec), (2, 7));
        let over = time_left(Instant::from_nanos(5), Instant::ZERO);
        assert_eq!((over.tv_sec, over.tv_nsec), (0, 0));
    }
}
