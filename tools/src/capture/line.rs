//! Reports of a capture, as text and as JSON.

use serde::Serialize;
use urnic_replay::live::LiveFigures;

use crate::{report, size};

#[derive(Debug, Serialize)]
pub(super) struct Begun<'a> {
    pub(super) interface: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) seconds: f64,
    pub(super) connections: u64,
    pub(super) connections_open: u64,
    pub(super) bits_per_second: f64,
    pub(super) segments: u64,
    pub(super) segments_aligned: u64,
    pub(super) segments_unaligned: u64,
    pub(super) segments_out_of_order: u64,
    pub(super) segments_retransmitted: u64,
    pub(super) bytes_held: u64,
    /// Some of their frames were lost, so their FPDUs are no longer followed.
    pub(super) directions_incomplete: u64,
    /// Frames written or, without a file, counted.
    pub(super) frames: u64,
    /// There was no room for them.
    pub(super) frames_lost: u64,
    /// No frames pass while the interface is down.
    pub(super) link_up: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Total {
    pub(super) seconds: f64,
    pub(super) frames: u64,
    pub(super) frames_lost: u64,
    pub(super) total: LiveFigures,
}

impl Total {
    /// The frames are in `target`.
    pub(super) fn text(&self, target: &str) -> String {
        let Self { frames, frames_lost, total, .. } = self;
        let connections = total.connections;
        format!(
            "{frames} frames to {target}, {connections} iWARP connections, {frames_lost} frames lost"
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
pub(super) fn seconds_of(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl Line {
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub(super) fn of(before: &LiveFigures, now: &LiveFigures, interval_ns: u64) -> Self {
        let since = |value: fn(&LiveFigures) -> u64| value(now).saturating_sub(value(before));
        let bits = since(|one| one.bytes) * 8;
        Self {
            seconds: 0.0,
            connections: now.connections,
            connections_open: now.connections_open,
            bits_per_second: bits as f64 / seconds_of(interval_ns.max(1)),
            segments: since(|one| one.segments),
            segments_aligned: since(|one| one.segments_aligned),
            segments_unaligned: since(|one| one.segments_unaligned),
            segments_out_of_order: since(|one| one.segments_out_of_order),
            segments_retransmitted: since(|one| one.segments_retransmitted),
            bytes_held: now.bytes_held,
            directions_incomplete: now.directions_incomplete,
            frames: 0,
            frames_lost: 0,
            link_up: true,
        }
    }

    pub(super) fn text(&self) -> String {
        let known = self.segments_aligned + self.segments_unaligned;
        let mut text = format!(
            "{:6.0} s  {} of {} connections open  {:.3} Gbit/s  aligned {}  \
             out of order {}  retransmitted {}  held {}  lost {}",
            self.seconds,
            self.connections_open,
            self.connections,
            self.bits_per_second / 1e9,
            report::share(self.segments_aligned, known),
            report::share(self.segments_out_of_order, self.segments),
            report::share(self.segments_retransmitted, self.segments),
            size::format(self.bytes_held),
            self.frames_lost,
        );
        if self.directions_incomplete > 0 {
            let count = self.directions_incomplete;
            text.push_str(&format!("  directions not followed {count}"));
        }
        if !self.link_up {
            text.push_str("  the interface is down");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures_page;

    #[test]
    fn each_figure_of_a_capture_has_a_definition() {
        let figures = LiveFigures { directions_incomplete: 2, ..LiveFigures::default() };
        let line = Line { link_up: false, ..Line::of(&LiveFigures::default(), &figures, 1) };
        let total = Total { seconds: 0.0, frames: 0, frames_lost: 0, total: figures };
        let labels = figures_page::fields(&line.text()).into_iter();
        let labels = labels.chain(figures_page::sentences(&total.text("no file")));
        figures_page::compare("capture", labels);
        let begun = Begun { interface: "eth0" };
        let told = [
            serde_json::to_value(&begun).unwrap(),
            serde_json::to_value(&line).unwrap(),
            serde_json::to_value(&total).unwrap(),
        ];
        figures_page::compare_json("capture", &told);
    }

    #[test]
    fn line_shows_the_difference_to_the_line_before() {
        let before =
            LiveFigures { bytes: 1000, segments: 4, segments_aligned: 3, ..LiveFigures::default() };
        let now = LiveFigures {
            connections: 3,
            connections_open: 2,
            bytes: 251_000,
            segments: 14,
            segments_aligned: 9,
            segments_unaligned: 2,
            segments_out_of_order: 1,
            segments_retransmitted: 5,
            bytes_held: 70,
            directions_incomplete: 0,
            ..LiveFigures::default()
        };
        let line = Line { seconds: 7.0, frames_lost: 3, ..Line::of(&before, &now, 2_000_000_000) };
        assert_eq!((line.segments, line.segments_aligned, line.segments_unaligned), (10, 6, 2));
        assert_eq!(line.bits_per_second, 1e6, "250,000 bytes in two seconds");
        assert_eq!((line.connections, line.connections_open, line.bytes_held), (3, 2, 70));
        assert_eq!(
            line.text().trim_start(),
            "7 s  2 of 3 connections open  0.001 Gbit/s  aligned 75.0 %  out of order 10.0 %  \
             retransmitted 50.0 %  held 70  lost 3"
        );
        let total = Total { seconds: 1.5, frames: 12, frames_lost: 1, total: now };
        assert_eq!(
            total.text("a.pcapng"),
            "12 frames to a.pcapng, 3 iWARP connections, 1 frames lost"
        );
    }
}
