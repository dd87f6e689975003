//! Differences between two answers.

use serde::Serialize;
use urnic::Figures;

use crate::{figure, report};

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Flow {
    /// `None` if no time passed between the two answers.
    pub(super) bits_per_second_in: Option<f64>,
    pub(super) bits_per_second_out: Option<f64>,
    /// `None` over the kernel's TCP, like all counts of segments.
    pub(super) segments_sent: Option<u64>,
    pub(super) segments_aligned: Option<u64>,
    pub(super) segments_received: Option<u64>,
    pub(super) segments_out_of_order: Option<u64>,
    pub(super) segments_retransmitted: Option<u64>,
    pub(super) bytes_held: u64,
}

impl Flow {
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub(super) fn between(before: &Figures, now: &Figures, time_ns: u64) -> Self {
        let since = |value: fn(&Figures) -> u64| value(now).saturating_sub(value(before));
        let rate = |bytes: u64| (time_ns > 0).then(|| bytes as f64 * 8e9 / time_ns as f64);
        let segments = |value| now.knows_segments().then(|| since(value));
        Self {
            bits_per_second_in: rate(since(|one| one.bytes_received)),
            bits_per_second_out: rate(since(|one| one.bytes_sent)),
            segments_sent: segments(|one| one.segments_sent),
            segments_aligned: segments(|one| one.segments_aligned),
            segments_received: segments(|one| one.segments_received),
            segments_out_of_order: segments(|one| one.segments_out_of_order),
            segments_retransmitted: segments(|one| one.retransmissions),
            bytes_held: now.bytes_held_now,
        }
    }

    pub(super) fn bits_per_second(&self) -> f64 {
        self.bits_per_second_in.unwrap_or(0.0) + self.bits_per_second_out.unwrap_or(0.0)
    }

    pub(super) fn cells(&self) -> [String; COLUMNS.len()] {
        let share = |part: Option<u64>, whole: Option<u64>| {
            report::share(part.unwrap_or(0), whole.unwrap_or(0))
        };
        // Each retransmitted segment was also counted when it was first sent.
        let sent = self.segments_sent.zip(self.segments_retransmitted).map(|(a, b)| a + b);
        [
            figure::known(self.bits_per_second_in, figure::bits_per_second),
            figure::known(self.bits_per_second_out, figure::bits_per_second),
            share(self.segments_aligned, self.segments_sent),
            share(self.segments_out_of_order, self.segments_received),
            share(self.segments_retransmitted, sent),
            figure::bytes(self.bytes_held),
        ]
    }
}

/// Names in the words of `urnic capture`.
pub(super) const COLUMNS: [&str; 6] =
    ["in", "out", "aligned", "out of order", "retransmitted", "held"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_computed_from_the_difference_of_two_figures() {
        let before = Figures { bytes_sent: 1000, segments_sent: 4, ..Figures::default() };
        let now = Figures {
            bytes_sent: 126_000_000,
            bytes_received: 125_000_000,
            segments_sent: 14,
            segments_aligned: 5,
            segments_received: 8,
            segments_out_of_order: 2,
            retransmissions: 10,
            bytes_held_now: 2048,
            ..before
        };
        let flow = Flow::between(&before, &now, 1_000_000_000);
        let shown = flow.cells();
        assert_eq!(
            shown,
            ["1.00 Gbit/s", "1.01 Gbit/s", "50.0 %", "25.0 %", "50.0 %", "2.05 kB"]
                .map(str::to_owned)
        );
        // Another endpoint, and no time.
        let back = Flow::between(&now, &before, 0);
        assert_eq!((back.bits_per_second(), back.bits_per_second_in), (0.0, None));
        assert_eq!(back.cells()[..2], ["–", "–"]);
        // Over the kernel's TCP.
        let kernel = Figures { bytes_received: 250, ..Figures::default() };
        let flow = Flow::between(&Figures::default(), &kernel, 500_000_000);
        assert_eq!((flow.segments_sent, flow.segments_retransmitted), (None, None));
        assert_eq!(
            flow.cells(),
            ["4.00 kbit/s", "0 bit/s", "–", "–", "–", "0 B"].map(str::to_owned)
        );
        let own = Figures { frames_sent: 1, ..kernel };
        assert_eq!(Flow::between(&own, &own, 1).segments_sent, Some(0), "none is known");
    }
}
