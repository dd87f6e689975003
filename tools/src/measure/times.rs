//! Distribution of times: percentiles for a line, bars for people, buckets for programs.

use std::fmt::{self, Write};

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::figure;

/// Measured times in nanoseconds.
///
/// Minimum, maximum, mean and deviation are exact; percentiles have three digits.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    spread: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    sum_ns: u128,
    /// Sum of the squares. It saturates only after 2³⁶ samples of ten minutes.
    squares: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Timing {
    /// From the post of a message to the arrival of its answer, divided by two.
    HalfRoundTrip,
    /// From the post of a message to the arrival of its answer.
    RoundTrip,
    /// From the post of a request to its completion: the server's application takes no part.
    PostToCompletion,
}

/// Microseconds; `None` if there are too few samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Times {
    pub(crate) min_us: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p99_9_us: Option<f64>,
    pub(crate) max_us: f64,
    /// Standard deviation of the samples (divisor n − 1).
    pub(crate) stddev_us: Option<f64>,
}

impl Timing {
    const fn parts(self) -> f64 {
        match self {
            Self::HalfRoundTrip => 2.0,
            Self::RoundTrip | Self::PostToCompletion => 1.0,
        }
    }

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::HalfRoundTrip => "half of the round trip",
            Self::RoundTrip => "round trip",
            Self::PostToCompletion => "from post to completion",
        }
    }
}

impl Samples {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let spread = Histogram::new_with_max(TIME_MAX_NS, 3).context("making a histogram")?;
        Ok(Self { spread, min_ns: u64::MAX, max_ns: 0, sum_ns: 0, squares: 0 })
    }

    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.spread.saturating_record(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns += u128::from(ns);
        self.squares = self.squares.saturating_add(u128::from(ns) * u128::from(ns));
    }

    pub(crate) fn reset(&mut self) {
        self.spread.reset();
        (self.min_ns, self.max_ns, self.sum_ns, self.squares) = (u64::MAX, 0, 0, 0);
    }

    pub(crate) fn len(&self) -> u64 {
        self.spread.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spread.is_empty()
    }

    /// `None` below two samples.
    #[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
    fn deviation_ns(&self) -> Option<f64> {
        let n = u128::from(self.len());
        // n Σx² − (Σx)² is exact unless a product overflows.
        let exact =
            || n.checked_mul(self.squares)?.checked_sub(self.sum_ns.checked_mul(self.sum_ns)?);
        let scaled = match exact() {
            Some(exact) => exact as f64,
            None => {
                let sum = self.sum_ns as f64;
                sum.mul_add(-sum, n as f64 * self.squares as f64).max(0.0)
            }
        };
        (n > 1).then(|| (scaled / (n as f64 * (n - 1) as f64)).sqrt())
    }
}

impl Times {
    /// Requires at least one sample.
    #[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
    pub(crate) fn of(samples: &Samples, timing: Timing) -> Self {
        let (parts, count) = (timing.parts(), samples.len());
        // A bucket may extend beyond its samples.
        let at = |quantile| {
            let bucket = samples.spread.value_at_quantile(quantile);
            us(bucket.clamp(samples.min_ns, samples.max_ns), parts)
        };
        // At least one sample must lie beyond a percentile.
        let from = |least: u64, quantile| (count >= least).then(|| at(quantile));
        Self {
            min_us: us(samples.min_ns, parts),
            mean_us: samples.sum_ns as f64 / count as f64 / 1e3 / parts,
            p50_us: at(0.5),
            p90_us: from(10, 0.9),
            p99_us: from(100, 0.99),
            p99_9_us: from(1000, 0.999),
            max_us: us(samples.max_ns, parts),
            stddev_us: samples.deviation_ns().map(|ns| ns / 1e3 / parts),
        }
    }

    /// Texts in the order of [`COLUMNS`](Self::COLUMNS).
    pub(crate) fn columns(&self) -> [String; 8] {
        let Self { min_us, mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us, stddev_us } = *self;
        let (min, mean, p50, max) = (Some(min_us), Some(mean_us), Some(p50_us), Some(max_us));
        [min, mean, p50, p90_us, p99_us, p99_9_us, max, stddev_us]
            .map(|us| figure::known(us, |us| format!("{us:.2}")))
    }

    pub(crate) const COLUMNS: [&str; 8] =
        ["min", "mean", "p50", "p90", "p99", "p99.9", "max", "stddev"];
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, us)) in Self::COLUMNS.iter().zip(self.columns()).enumerate() {
            let between = if index == 0 { "" } else { ", " };
            write!(f, "{between}{name} {us}")?;
        }
        f.write_str(" µs")
    }
}

/// A bucket: times above those of the previous bucket, up to this one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Bar {
    up_to_us: f64,
    count: u64,
}

/// Returns all that are not empty, as fine as times are recorded: three digits.
pub(crate) fn bars(samples: &Samples, timing: Timing) -> Vec<Bar> {
    let spread = &samples.spread;
    let recorded = spread.iter_recorded().map(|bucket| Bar {
        up_to_us: us(spread.highest_equivalent(bucket.value_iterated_to()), timing.parts()),
        count: bucket.count_since_last_iteration(),
    });
    recorded.filter(|bar| bar.count > 0).collect()
}

/// Formats at most [`LINES_MAX`] lines: samples below each time and not below the previous one.
pub(crate) fn histogram(samples: &Samples, timing: Timing) -> String {
    // Each bound is a quarter larger, or more if the times are spread widely.
    let steps = [(5, 4), (3, 2), (2, 1), (4, 1), (16, 1)];
    let counts = steps.iter().map(|step| counts(samples, *step)).find(|all| all.len() <= LINES_MAX);
    let counts = counts.unwrap_or_default();
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
    let (mut text, mut so_far) = (String::new(), 0);
    let _infallible =
        write!(text, "\n{:>12} {:>10} {:>8}  number, in proportion", "below", "number", "all");
    for (below, count) in counts {
        so_far += count;
        let (below, all) =
            (us(below, timing.parts()), urnic_replay::figures::share(so_far, samples.len()));
        let _infallible =
            write!(text, "\n{below:>9.2} µs {count:>10} {all:>8}  {}", bar(count, most));
    }
    text
}

/// Counts samples below each bound, without empty ranges; bounds grow by `step`.
fn counts(samples: &Samples, (over, under): (u64, u64)) -> Vec<(u64, u64)> {
    let spread = &samples.spread;
    let (mut bound, last) = (spread.min().max(1), spread.max());
    let mut counts = Vec::new();
    // A time of zero is in the first line.
    let mut before = 0;
    while bound <= last {
        let next = bound.saturating_mul(over).div_ceil(under).max(bound + 1);
        let below = spread.count_between(0, next - 1);
        if below > before {
            counts.push((next, below - before));
        }
        (bound, before) = (next, below);
    }
    if counts.is_empty() && !spread.is_empty() {
        counts.push((bound, spread.len()));
    }
    counts
}

/// Draws eighths of a character, so that lengths are proportional; the shortest is an eighth.
fn bar(count: u64, most: u64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (count * BAR_LEN * 8).div_ceil(most);
    let full = usize::try_from(eighths / 8).unwrap_or(0);
    let part = usize::try_from(eighths % 8).unwrap_or(0);
    format!("{}{}", "█".repeat(full), PARTS[part])
}

#[expect(clippy::cast_precision_loss, reason = "shown with two decimals")]
fn us(ns: u64, parts: f64) -> f64 {
    ns as f64 / 1e3 / parts
}

const BAR_LEN: u64 = 32;
const LINES_MAX: usize = 24;
/// Longest time that is distinguished from longer ones.
const TIME_MAX_NS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(times: &[u64]) -> Samples {
        let mut samples = Samples::new().unwrap();
        times.iter().for_each(|ns| samples.record(*ns));
        samples
    }

    #[test]
    fn percentiles_buckets_and_bars_are_of_the_same_times() {
        let times = of(&(1..=1000).map(|us| us * 1000).collect::<Vec<_>>());
        let Times { min_us, p50_us, p90_us, p99_us, p99_9_us, max_us, mean_us, stddev_us } =
            Times::of(&times, Timing::RoundTrip);
        let found =
            [min_us, mean_us, p50_us, p90_us.unwrap(), p99_us.unwrap(), p99_9_us.unwrap(), max_us];
        let expected = [1.0, 500.5, 500.0, 900.0, 990.0, 999.0, 1000.0];
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 0.002, "{found} {expected}");
        }
        assert_eq!(
            (min_us, mean_us, max_us),
            (1.0, 500.5, 1000.0),
            "of the samples, not of buckets"
        );
        assert!((stddev_us.unwrap() - 288.819_4).abs() < 1e-3, "{stddev_us:?}");
        assert_eq!(Times::of(&times, Timing::HalfRoundTrip).max_us, 500.0);
        assert_eq!(Times::of(&times, Timing::PostToCompletion).max_us, 1000.0);
        assert_eq!(bars(&times, Timing::RoundTrip).iter().map(|bar| bar.count).sum::<u64>(), 1000);
        let text = histogram(&times, Timing::RoundTrip);
        assert!(text.lines().count() <= LINES_MAX + 2 && text.contains(&"█".repeat(32)), "{text}");
        assert!(text.ends_with(&bar(1, 1)) || text.contains("100.0 %"), "{text}");
        assert!(bars(&of(&[]), Timing::RoundTrip).is_empty());
    }

    #[test]
    fn one_sample_is_its_own_minimum_mean_and_maximum() {
        let times = Times::of(&of(&[15_855_617]), Timing::RoundTrip);
        let us = 15_855.617;
        assert_eq!((times.min_us, times.mean_us, times.p50_us, times.max_us), (us, us, us, us));
        assert_eq!(
            times.to_string(),
            "min 15855.62, mean 15855.62, p50 15855.62, p90 –, p99 –, p99.9 –, max 15855.62, stddev – µs"
        );
    }

    #[test]
    fn a_percentile_needs_a_sample_beyond_it() {
        for (count, has) in [
            (1, [false; 3]),
            (9, [false; 3]),
            (10, [true, false, false]),
            (99, [true, false, false]),
            (100, [true, true, false]),
            (999, [true, true, false]),
            (1000, [true; 3]),
        ] {
            let times = Times::of(&of(&vec![7; count]), Timing::RoundTrip);
            let found = [times.p90_us, times.p99_us, times.p99_9_us].map(|one| one.is_some());
            assert_eq!(found, has, "{count}");
            assert_eq!(times.stddev_us.is_some(), count > 1, "{count}");
        }
    }

    #[test]
    fn a_histogram_has_every_sample_and_bars_in_proportion() {
        assert_eq!(
            [bar(1, 256), bar(3, 1830), bar(256, 256), bar(0, 9)],
            ["▏", "▏", &"█".repeat(32), ""]
        );
        assert_eq!(bar(8, 256), "█");
        assert_eq!(bar(12, 256), "█▌");
        // From a nanosecond to beyond the longest time.
        let wide = of(&[0, 1, 1, 50, 1_000_000, 20_000_000_000]);
        let shown = histogram(&wide, Timing::RoundTrip);
        let numbers = shown
            .lines()
            .skip(2)
            .map(|line| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap());
        assert_eq!(numbers.sum::<u64>(), 6, "{shown}");
        assert!(shown.lines().last().unwrap().contains("100.0 %"), "{shown}");
        let zeros = histogram(&of(&[0, 0]), Timing::RoundTrip);
        assert!(zeros.contains(" 2 ") && zeros.contains("100.0 %"), "{zeros}");
    }

    #[test]
    fn an_interval_begins_anew() {
        let mut samples = of(&[5, 900]);
        samples.reset();
        assert!(samples.is_empty());
        samples.record(40);
        let times = Times::of(&samples, Timing::RoundTrip);
        assert_eq!(
            (samples.len(), times.min_us, times.max_us, times.mean_us),
            (1, 0.04, 0.04, 0.04)
        );
    }

    proptest! {
        /// Compares every figure with one computed from the list of samples.
        #[test]
        fn figures_are_those_of_the_samples(
            mut times in prop::collection::vec(1_u64..9_000_000_000, 1..1500),
        ) {
            let found = Times::of(&of(&times), Timing::HalfRoundTrip);
            times.sort_unstable();
            let n = times.len() as f64;
            let us = |ns: f64| ns / 2000.0;
            let mean = times.iter().map(|ns| *ns as f64).sum::<f64>() / n;
            prop_assert_eq!(found.min_us, us(times[0] as f64));
            prop_assert_eq!(found.max_us, us(times[times.len() - 1] as f64));
            prop_assert!((found.mean_us / us(mean) - 1.0).abs() < 1e-9);
            let squares = times.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>();
            if let Some(stddev) = found.stddev_us {
                prop_assert!((stddev - us((squares / (n - 1.0)).sqrt())).abs() <= 1e-6 * us(mean));
            }
            let percentiles =
                [(0.5, Some(found.p50_us)), (0.9, found.p90_us), (0.99, found.p99_us), (0.999, found.p99_9_us)];
            for (quantile, found) in percentiles {
                let Some(found) = found else { continue };
                // Smallest sample that this part of all samples does not exceed.
                let rank = times.iter().enumerate().position(|(index, _)| (index + 1) as f64 >= quantile * n - 1e-9);
                let exact = us(times[rank.unwrap()] as f64);
                prop_assert!((found / exact - 1.0).abs() < 0.002, "p{}: {found} {exact}", quantile * 100.0);
            }
            let mut ordered = vec![found.min_us, found.p50_us];
            ordered.extend([found.p90_us, found.p99_us, found.p99_9_us].into_iter().flatten());
            ordered.push(found.max_us);
            prop_assert!(ordered.is_sorted(), "{ordered:?}");
            prop_assert!(found.min_us <= found.mean_us && found.mean_us <= found.max_us);
        }
    }
}
