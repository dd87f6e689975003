//! Durations in one direction of a connection with pictures.

use serde::Serialize;

use crate::trace::SideTrace;
use crate::trace::answers::Answers;
use crate::trace::delays::Delays;

/// Durations of messages that one end sent or requested.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// From the arrival of an FPDU's last byte to its placement.
    pub placement: Spread,
    /// From the arrival of an FPDU's last byte to its delivery.
    pub delivery: Spread,
    /// From a Read Request to the last byte of its Response.
    pub reads: Spread,
    /// From a Send to the Terminate about it.
    pub terminates: Spread,
    /// From a segment to its acknowledgment.
    pub round_trips: Spread,
}

/// Median, 99th percentile and maximum.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// Number of samples; the others are 0 without samples.
    pub count: u64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// 99 in 100 took no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Times {
    pub(crate) fn of(side: &SideTrace, answers: &Answers) -> Self {
        Self {
            placement: Spread::of(&side.placement),
            delivery: Spread::of(&side.delivery),
            reads: Spread::of(&answers.reads.latency),
            terminates: Spread::of(&answers.sends.latency),
            round_trips: Spread::of(&side.rtt),
        }
    }
}

impl Spread {
    fn of(delays: &Delays) -> Self {
        let count = delays.count();
        if count == 0 {
            return Self { count, p50_ns: 0, p99_ns: 0, max_ns: 0 };
        }
        let [p50_ns, p99_ns] = [500, 990].map(|part| delays.quantile(part));
        Self { count, p50_ns, p99_ns, max_ns: delays.max_ns() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_mixture_are_within_their_buckets() {
        let mut delays = Delays::default();
        for index in 0..100 {
            delays.add(if index < 95 { 1000 } else { 1_000_000 });
        }
        let Spread { count, p50_ns, p99_ns, max_ns } = Spread::of(&delays);
        assert_eq!((count, max_ns), (100, 1_000_000));
        assert!(p50_ns < 2000 && p99_ns > 800_000, "{p50_ns} {p99_ns}");
    }
}
