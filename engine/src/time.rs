//! Time as a number that the caller supplies. The engine never reads a clock: `now` is a virtual
//! time in tests, the monotonic clock in the driver.

use std::fmt;
use std::ops::{Add, Sub};
pub use std::time::Duration;

/// A moment on the caller's monotonic clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// The clock's start.
    pub const ZERO: Self = Self { ns: 0 };

    /// The moment `ns` nanoseconds after the clock's start.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self { ns }
    }

    /// Nanoseconds since the clock's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.ns
    }

    /// Nanoseconds since `earlier`; 0 if `earlier` is later.
    #[must_use]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.ns.saturating_sub(earlier.ns)
    }

    /// The moment `ns` nanoseconds later, saturating at the end of time.
    #[must_use]
    pub const fn plus_nanos(self, ns: u64) -> Self {
        Self { ns: self.ns.saturating_add(ns) }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        self.plus_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.ns / 1_000_000_000, self.ns % 1_000_000_000)
    }
}
