//! Histogram of times, exact to an eighth.

#[derive(Clone, Debug, Default)]
pub(crate) struct Delays {
    /// By [`bucket`].
    counts: Vec<u64>,
    count: u64,
    max_ns: u64,
}

impl Delays {
    pub(crate) fn add(&mut self, ns: u64) {
        let bucket = bucket(ns);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    pub(crate) const fn max_ns(&self) -> u64 {
        self.max_ns
    }

    pub(crate) fn at_once(&self) -> u64 {
        self.counts.first().copied().unwrap_or(0)
    }

    /// The time that `thousandths` of all do not exceed, rounded up by an eighth at most.
    pub(crate) fn quantile(&self, thousandths: u64) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(thousandths)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return last_of(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// For each time, from the shortest on: the number of longer times.
    pub(crate) fn longer(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut left = self.count;
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(
            move |(bucket, count)| {
                left -= count;
                (last_of(bucket).min(self.max_ns), left)
            },
        )
    }
}

/// Times below 8 have a bucket each; then each power of two has eight.
fn bucket(ns: u64) -> usize {
    let exponent = ns.checked_ilog2().unwrap_or(0).saturating_sub(3);
    let index = u64::from(exponent) * 8 + (ns >> exponent);
    usize::try_from(index).expect("below 512")
}

fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 16 {
        return bucket;
    }
    let exponent = bucket / 8 - 1;
    let mantissa = bucket % 8 + 8;
    ((u128::from(mantissa) + 1) << exponent).saturating_sub(1).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_an_eighth_wide_at_most() {
        for ns in (0..100).chain([1000, 12_345, 1 << 40, u64::MAX - 1, u64::MAX]) {
            let last = last_of(bucket(ns));
            assert!(last >= ns && last - ns <= ns / 8, "{ns} in a bucket up to {last}");
            assert_eq!(bucket(last), bucket(ns));
        }
    }

    #[test]
    fn quantiles_are_those_of_the_times() {
        let mut delays = Delays::default();
        (0..90).for_each(|_| delays.add(0));
        (1..=10).for_each(|ms| delays.add(ms * 1_000_000));
        assert_eq!((delays.count(), delays.at_once(), delays.quantile(900)), (100, 90, 0));
        let p95 = delays.quantile(950);
        assert!((5_000_000..=5_625_000).contains(&p95), "{p95}");
        assert_eq!(delays.quantile(1000), 10_000_000);
        assert_eq!(delays.longer().next(), Some((0, 10)));
        assert_eq!(delays.longer().last(), Some((10_000_000, 0)));
    }
}
