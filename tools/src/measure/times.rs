//! How times are spread: percentiles for a line, bars for the eye, buckets for programs.

use std::fmt::{self, Write};

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;

/// An empty histogram of times in nanoseconds.
///
/// # Errors
/// When there is no memory for it.
pub(crate) fn new_histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_max(TIME_MAX_NS, 3).context("making a histogram")
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Times {
    pub(crate) min_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

impl Times {
    /// Of what was recorded in nanoseconds, each divided by `parts`.
    pub(crate) fn of(times: &Histogram<u64>, parts: f64) -> Self {
        let at = |quantile| us(times.value_at_quantile(quantile), parts);
        Self {
            min_us: us(times.min(), parts),
            mean_us: times.mean() / 1e3 / parts,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: us(times.max(), parts),
        }
    }

    /// All of them, in the order of [`COLUMNS`](Self::COLUMNS).
    pub(crate) const fn columns(&self) -> [f64; 7] {
        let Self { min_us, mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us } = *self;
        [min_us, mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us]
    }

    pub(crate) const COLUMNS: [&str; 7] = ["min", "mean", "p50", "p90", "p99", "p99.9", "max"];
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, us)) in Self::COLUMNS.iter().zip(self.columns()).enumerate() {
            let between = if index == 0 { "" } else { ", " };
            write!(f, "{between}{name} {us:.2}")?;
        }
        f.write_str(" µs")
    }
}

/// Times from the last bucket's on, up to this one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Bar {
    /// The longest time of the bucket.
    up_to_us: f64,
    count: u64,
}

/// All buckets that are not empty, as fine as times are recorded: three digits.
pub(crate) fn bars(times: &Histogram<u64>, parts: f64) -> Vec<Bar> {
    let recorded = times.iter_recorded().map(|bucket| Bar {
        up_to_us: us(times.highest_equivalent(bucket.value_iterated_to()), parts),
        count: bucket.count_since_last_iteration(),
    });
    recorded.filter(|bar| bar.count > 0).collect()
}

/// A line for each time that is a quarter longer than the one before.
pub(crate) fn histogram(times: &Histogram<u64>, parts: f64) -> String {
    let (first, last) = (times.min().max(1), times.max());
    let mut counts = Vec::new();
    let mut bound = first;
    while bound <= last {
        let next = bound.saturating_mul(5).div_ceil(4).max(bound + 1);
        counts.push((next, times.count_between(bound, next - 1)));
        bound = next;
    }
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
    let mut text = String::new();
    for (below, count) in counts {
        let bar = usize::try_from((count * BAR_LEN).div_ceil(most)).unwrap_or(0);
        let below = us(below, parts);
        let _infallible = write!(text, "\n< {below:>9.2} µs {count:>10} {}", "█".repeat(bar));
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
fn us(ns: u64, parts: f64) -> f64 {
    ns as f64 / 1e3 / parts
}

/// Characters of the longest bar.
const BAR_LEN: u64 = 40;
/// Longest time that is told from longer ones.
const TIME_MAX_NS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_buckets_and_bars_are_of_the_same_times() {
        let mut times = new_histogram().unwrap();
        for us in 1..=1000 {
            times.record(us * 1000).unwrap();
        }
        let Times { min_us, p50_us, p90_us, p99_us, p99_9_us, max_us, mean_us } =
            Times::of(&times, 1.0);
        let found = [min_us, mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us];
        let expected = [1.0, 500.5, 500.0, 900.0, 990.0, 999.0, 1000.0];
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 0.002, "{found} {expected}");
        }
        assert_eq!(Times::of(&times, 2.0).max_us, max_us / 2.0, "half of a round trip");
        assert_eq!(bars(&times, 1.0).iter().map(|bar| bar.count).sum::<u64>(), 1000);
        let text = histogram(&times, 1.0);
        assert!(text.lines().count() > 25 && text.contains(&"█".repeat(40)), "{text}");
        assert!(bars(&new_histogram().unwrap(), 1.0).is_empty());
    }
}
