//! What happened between two answers.

use serde::Serialize;

use super::told::Figures;
use crate::{report, size};

/// Rates, and segments by what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Flow {
    pub(super) bits_per_second_in: f64,
    pub(super) bits_per_second_out: f64,
    pub(super) segments_sent: u64,
    pub(super) segments_aligned: u64,
    pub(super) segments_received: u64,
    pub(super) segments_out_of_order: u64,
    pub(super) segments_retransmitted: u64,
    /// Now.
    pub(super) bytes_held: u64,
}

impl Flow {
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub(super) fn between(before: &Figures, now: &Figures, time_ns: u64) -> Self {
        let since = |value: fn(&Figures) -> u64| value(now).saturating_sub(value(before));
        let rate = |bytes: u64| bytes as f64 * 8e9 / time_ns.max(1) as f64;
        Self {
            bits_per_second_in: rate(since(|one| one.bytes_received)),
            bits_per_second_out: rate(since(|one| one.bytes_sent)),
            segments_sent: since(|one| one.segments_sent),
            segments_aligned: since(|one| one.segments_aligned),
            segments_received: since(|one| one.segments_received),
            segments_out_of_order: since(|one| one.segments_out_of_order),
            segments_retransmitted: since(|one| one.retransmissions),
            bytes_held: now.bytes_held_now,
        }
    }

    /// Both ways together.
    pub(super) const fn bits_per_second(&self) -> f64 {
        self.bits_per_second_in + self.bits_per_second_out
    }

    /// As they are shown, in the order of [`COLUMNS`].
    pub(super) fn cells(&self) -> [String; COLUMNS.len()] {
        // Each segment sent again was sent before.
        let sent = self.segments_sent + self.segments_retransmitted;
        [
            gbit(self.bits_per_second_in),
            gbit(self.bits_per_second_out),
            report::share(self.segments_aligned, self.segments_sent),
            report::share(self.segments_out_of_order, self.segments_received),
            report::share(self.segments_retransmitted, sent),
            size::format(self.bytes_held),
        ]
    }
}

fn gbit(bits_per_second: f64) -> String {
    format!("{:.3} Gbit/s", bits_per_second / 1e9)
}

/// What the cells are, in the words of `urnic capture`.
pub(super) const COLUMNS: [&str; 6] =
    ["in", "out", "aligned", "out of order", "sent again", "held"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_came_since() {
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
            ["1.000 Gbit/s", "1.008 Gbit/s", "50.0 %", "25.0 %", "50.0 %", "2K"].map(str::to_owned)
        );
        // An endpoint that is another one, and no time at all.
        let back = Flow::between(&now, &before, 0);
        assert_eq!((back.bits_per_second(), back.segments_sent), (0.0, 0));
    }
}
