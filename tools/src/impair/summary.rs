//! Counts of the frames of a bad link.

use serde::Serialize;
use urnic_netdev::Device;

use crate::impair::{Bridge, Options};
use crate::report;

type Read = fn(&Direction) -> u64;

#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    seconds: f64,
    options: Options,
    a_to_b: Direction,
    b_to_a: Direction,
}

#[derive(Debug, Serialize)]
struct Direction {
    frames: u64,
    bytes: u64,
    lost: u64,
    lost_to_full_queue: u64,
    refused: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    cut: u64,
    merged: u64,
    late: u64,
    late_ns_max: u64,
    held_frames_peak: usize,
}

impl Summary {
    pub(crate) fn of<D: Device>(bridge: &Bridge<D>, options: &Options, seconds: f64) -> Self {
        let [to_b, to_a] = [0, 1].map(|direction| {
            let counters = bridge.counters()[direction];
            Direction {
                frames: counters.frames,
                bytes: counters.bytes,
                lost: counters.dropped,
                lost_to_full_queue: counters.overflowed,
                refused: bridge.refused()[direction],
                duplicated: counters.duplicated,
                reordered: counters.reordered,
                corrupted: counters.corrupted,
                cut: counters.resegmented,
                merged: counters.coalesced,
                late: counters.late,
                late_ns_max: counters.late_ns_max,
                held_frames_peak: counters.held_peak,
            }
        });
        Self { seconds, options: options.clone(), a_to_b: to_b, b_to_a: to_a }
    }

    pub(crate) fn text(&self) -> String {
        let Self { a_to_b, b_to_a, .. } = self;
        let mut table = report::table(&["", "A to B", "B to A"]);
        let each: [(&str, Read); 13] = [
            ("frames", |d| d.frames),
            ("bytes", |d| d.bytes),
            ("lost", |d| d.lost),
            ("… to a full queue", |d| d.lost_to_full_queue),
            ("refused by the device", |d| d.refused),
            ("duplicated", |d| d.duplicated),
            ("reordered", |d| d.reordered),
            ("corrupted", |d| d.corrupted),
            ("cut", |d| d.cut),
            ("merged", |d| d.merged),
            ("sent over 200 µs late", |d| d.late),
            ("latest, in µs", |d| d.late_ns_max / 1000),
            ("held at one time", |d| d.held_frames_peak as u64),
        ];
        for (name, value) in each {
            let cells = [a_to_b, b_to_a].map(|direction| report::count(value(direction)));
            let [to_b, to_a] = cells;
            report::row(&mut table, [name.to_owned(), to_b, to_a]);
        }
        format!("{table}\n{:.1} s", self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::figures_page;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn direction(first: u64) -> Direction {
        Direction {
            frames: first,
            bytes: first + 1,
            lost: first + 2,
            lost_to_full_queue: first + 3,
            refused: first + 4,
            duplicated: first + 5,
            reordered: first + 6,
            corrupted: first + 7,
            cut: first + 8,
            merged: first + 9,
            late: first + 10,
            late_ns_max: (first + 11) * 1000 + 999,
            held_frames_peak: usize::try_from(first + 12).unwrap(),
        }
    }

    #[test]
    fn each_figure_of_a_bad_link_has_a_definition_and_its_field() {
        let options = Cli::parse_from(["impair"]).options;
        let summary =
            Summary { seconds: 2.5, options, a_to_b: direction(100), b_to_a: direction(200) };
        let text = summary.text();
        let last = text.lines().last().unwrap();
        assert_eq!(last, "2.5 s");
        let labels = figures_page::rows(&text).into_iter().chain(figures_page::sentences(last));
        figures_page::compare("impair", labels);
        let rows = text.lines().filter_map(|line| line.strip_prefix('│')).skip(1);
        for (row, number) in rows.zip(100..) {
            let cells: Vec<_> = row.split(['┆', '│']).map(str::trim).collect();
            assert_eq!(cells[1..3], [number.to_string(), (number + 100).to_string()], "{text}");
        }
        figures_page::compare_json("impair", &[summary]);
    }
}
