//! A link that fails periodically.

use std::time::Duration;

/// Nothing passes for a while at the end of each period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    period_ns: u64,
    up_ns: u64,
}

impl Outage {
    /// `None` if there is no outage, or nothing else.
    pub(crate) fn new(period: Duration, lasting: Duration) -> Option<Self> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).ok();
        let (period_ns, lasting_ns) = (nanos(period)?, nanos(lasting)?);
        let up_ns = period_ns.checked_sub(lasting_ns)?;
        (lasting_ns > 0).then_some(Self { period_ns, up_ns })
    }

    /// True during an outage; and the time for which this state lasts.
    pub(crate) const fn at(&self, elapsed_ns: u64) -> (bool, u64) {
        let within_ns = elapsed_ns % self.period_ns;
        if within_ns < self.up_ns {
            (false, self.up_ns - within_ns)
        } else {
            (true, self.period_ns - within_ns)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_comes_at_the_end_of_each_period() {
        let outage = Outage::new(Duration::from_secs(10), Duration::from_secs(3)).unwrap();
        assert_eq!(outage.at(0), (false, 7_000_000_000));
        assert_eq!(outage.at(6_999_999_999), (false, 1));
        assert_eq!(outage.at(7_000_000_000), (true, 3_000_000_000));
        assert_eq!(outage.at(10_000_000_000), (false, 7_000_000_000));
    }

    #[test]
    fn an_outage_fits_its_period() {
        assert!(Outage::new(Duration::from_secs(1), Duration::from_secs(2)).is_none());
        assert!(Outage::new(Duration::from_secs(1), Duration::ZERO).is_none());
    }
}
