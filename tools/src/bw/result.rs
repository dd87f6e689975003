//! Report of `urnic bw`: text and JSON from one struct.

use serde::Serialize;

use crate::bw::{Measured, Moment, Plan};
use crate::counters::Counters;
use crate::host::StackOptions;
use crate::measure::{Interval, Op, Processor};
use crate::{figure, report, size};

/// The result. `docs/json.md` defines each field.
#[derive(Debug, Serialize)]
pub(crate) struct Bandwidth {
    op: Op,
    size_bytes: u32,
    depth: u32,
    /// Most messages that a connection had in flight.
    depth_used: u32,
    /// Most messages that it could have had.
    #[serde(skip)]
    depth_max: u32,
    post_list: u32,
    signal_every: u32,
    connections: u32,
    bidirectional: bool,
    interrupted: bool,
    seconds: f64,
    messages: u64,
    posting_calls: u64,
    completions: u64,
    /// Including the server's messages.
    bytes: u64,
    bytes_of_server: u64,
    gbps: f64,
    messages_per_second: f64,
    processor: Processor,
    device: String,
    stack: &'static str,
    markers: bool,
    crc: bool,
    local: Counters,
    peer: Counters,
    intervals: Vec<Interval<Moment>>,
    #[serde(skip)]
    reads_max: u32,
}

#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) sizes: Vec<Bandwidth>,
}

impl Bandwidth {
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    pub(crate) fn new(
        plan: &Plan,
        measured: &Measured,
        intervals: Vec<Interval<Moment>>,
        stack: &StackOptions,
    ) -> Self {
        let seconds = measured.time.as_secs_f64();
        let bytes_of_server = measured.messages_of_server.saturating_mul(u64::from(plan.size));
        let messages = measured.messages.saturating_add(measured.messages_of_server);
        let bytes = messages.saturating_mul(u64::from(plan.size));
        let (local, server) = measured.processor;
        Self {
            op: plan.op,
            size_bytes: plan.size,
            depth: plan.depth_asked,
            depth_used: measured.depth,
            depth_max: measured.depth_max,
            post_list: plan.post_list,
            signal_every: plan.signal_every,
            connections: plan.connections,
            bidirectional: plan.is_both,
            interrupted: measured.was_interrupted,
            seconds,
            messages,
            posting_calls: measured.calls,
            completions: measured.completions,
            bytes,
            bytes_of_server,
            gbps: bytes as f64 * 8e-9 / seconds,
            messages_per_second: messages as f64 / seconds,
            processor: Processor::new(local, server, bytes),
            device: stack.dev.to_string(),
            stack: stack.stack_kind().name(),
            markers: measured.markers,
            crc: measured.crc,
            local: measured.local,
            peer: measured.peer,
            intervals,
            reads_max: measured.reads_max,
        }
    }

    pub(crate) fn row(&self) -> String {
        let size = size::format(u64::from(self.size_bytes));
        let rate = figure::bits_per_second(self.gbps * 1e9);
        let often = figure::frequency(self.messages_per_second);
        let mut row = format!("{size:>8} {:>6} {rate:>12} {often:>12}", self.depth_used);
        if self.bidirectional {
            let [here, there] = self.ways().map(figure::bits_per_second);
            row.push_str(&format!(" {here:>12} {there:>12}"));
        }
        let Processor { local_seconds_per_gb, server_seconds_per_gb, .. } = self.processor;
        for per_gb in [local_seconds_per_gb, server_seconds_per_gb] {
            row.push_str(&format!(" {:>10}", seconds_per_gb(per_gb)));
        }
        row
    }

    /// Bits per second whose requests this end has posted, and those of the server.
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    fn ways(&self) -> [f64; 2] {
        let rate = |bytes: u64| bytes as f64 * 8.0 / self.seconds;
        let there = self.bytes_of_server;
        [rate(self.bytes.saturating_sub(there)), rate(there)]
    }

    pub(crate) fn text(&self) -> String {
        let Self { op, device, stack, processor, connections, .. } = self;
        let mut table = report::table(&["", "here", "server"]);
        // Without rows that neither end has counted.
        let has_any = |row: &(_, Option<u64>, Option<u64>)| row.1 > Some(0) || row.2 > Some(0);
        for (name, here, there) in self.rows().into_iter().filter(has_any) {
            let [here, there] = [here, there].map(|count| figure::known(count, report::count));
            report::row(&mut table, [name.into(), here, there]);
        }
        let ways = if self.bidirectional { ", both ways" } else { "" };
        let until = if self.interrupted { ", when it was interrupted" } else { "" };
        let on_off = |is_on| if is_on { "on" } else { "off" };
        let each = if *connections == 1 {
            String::new()
        } else {
            format!(" on each of {connections} connections")
        };
        format!(
            "{} of {}{ways}: {}, {} messages/s for {}{until}{}\n\
             {device}, {stack}, markers {}, CRC {}, {} in flight{each}{}{}\n\
             processor time: {} here, {} at the server; {} and {} s for a gigabyte\n\
             {table}",
            op.name(),
            size::format(u64::from(self.size_bytes)),
            figure::bits_per_second(self.gbps * 1e9),
            figure::frequency(self.messages_per_second),
            figure::seconds(self.seconds),
            self.ways_text(),
            on_off(self.markers),
            on_off(self.crc),
            figure::counted(u64::from(self.depth_used), "message"),
            self.depth_text(),
            self.posting_text(),
            figure::seconds(processor.local_seconds),
            figure::seconds(processor.server_seconds),
            seconds_per_gb(processor.local_seconds_per_gb),
            seconds_per_gb(processor.server_seconds_per_gb),
        )
    }

    fn ways_text(&self) -> String {
        if !self.bidirectional {
            return String::new();
        }
        let [here, there] = self.ways().map(figure::bits_per_second);
        format!("\n{here} requested by this end, {there} by the server")
    }

    /// Says why fewer messages were in flight than requested.
    fn depth_text(&self) -> String {
        if self.depth_used >= self.depth {
            return String::new();
        }
        let why = if self.depth_used < self.depth_max {
            "fewer were needed at a time"
        } else if self.op.is_read() && self.depth_used == self.reads_max {
            "the peer's limit on Reads"
        } else {
            "the limit of bytes in flight"
        };
        format!(" (--depth {}: {why})", self.depth)
    }

    /// Empty if messages were posted one by one with a completion each.
    fn posting_text(&self) -> String {
        if self.post_list == 1 && self.signal_every == 1 {
            return String::new();
        }
        let calls = figure::counted(self.posting_calls, "call");
        format!(", posted by {calls}, {}", figure::counted(self.completions, "completion"))
    }

    fn rows(&self) -> [(&'static str, Option<u64>, Option<u64>); 11] {
        let (here, there) = (&self.local, &self.peer);
        let known =
            |name, value: fn(&Counters) -> u64| (name, Some(value(here)), Some(value(there)));
        let of_tcp = |name, value: fn(&Counters) -> u64| {
            (name, here.of_tcp(value(here)), there.of_tcp(value(there)))
        };
        [
            known("bytes placed", |end| end.figures.bytes_placed),
            known("payload copied, sending", |end| end.payload_bytes_copied_tx),
            known("of it, Read Responses", |end| end.figures.payload_bytes_snapshot),
            known("payload copied, receiving", Counters::payload_bytes_copied_rx),
            known("FPDUs sent", |end| end.figures.fpdus_sent),
            known("FPDUs received", |end| end.figures.fpdus_received),
            of_tcp("segments with FPDUs sent", |end| end.figures.segments_sent),
            of_tcp("of them aligned", |end| end.figures.segments_aligned),
            of_tcp("segments retransmitted", |end| end.figures.retransmissions),
            of_tcp("frames sent", |end| end.figures.frames_sent),
            of_tcp("of them super-frames", |end| end.figures.super_frames_sent),
        ]
    }
}

fn seconds_per_gb(seconds: Option<f64>) -> String {
    figure::known(seconds, |seconds| format!("{seconds:.3}"))
}

pub(crate) fn header(is_both: bool) -> String {
    let mut header = format!("{:>8} {:>6} {:>12} {:>12}", "size", "depth", "rate", "messages/s");
    if is_both {
        header.push_str(&format!(" {:>12} {:>12}", "by us", "by server"));
    }
    header.push_str(&format!(" {:>10} {:>10}\n", "here s/GB", "there s/GB"));
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use urnic::Figures;

    use crate::host::StackOptions;

    /// Two seconds of messages of 125,000 bytes: 3000 of this end, 1000 of the server.
    fn outcome(op: Op, is_both: bool) -> Bandwidth {
        let of = |figures| Counters { figures, ..Counters::default() };
        let own = Figures { segments_received: 1, frames_sent: 40, ..Figures::default() };
        let local = of(Figures { bytes_placed: 1, segments_sent: 12, segments_aligned: 9, ..own });
        let peer = of(Figures { bytes_placed: 500_000_000, ..Figures::default() });
        let measured = Measured {
            messages: 3000,
            messages_of_server: if is_both { 1000 } else { 0 },
            calls: 750,
            completions: 30,
            time: Duration::from_secs(2),
            depth: 16,
            depth_max: 16,
            reads_max: 16,
            markers: true,
            crc: false,
            local,
            peer,
            processor: (Duration::from_millis(750), Duration::from_millis(1500)),
            was_interrupted: false,
        };
        let plan = Plan {
            op,
            size: 125_000,
            time: None,
            count: None,
            rate: None,
            depth_asked: 64,
            depth: 64,
            post_list: 4,
            signal_every: 100,
            connections: 2,
            is_both,
        };
        let stack = StackOptions::kernel(Duration::from_secs(1));
        Bandwidth::new(&plan, &measured, Vec::new(), &stack)
    }

    #[test]
    fn figures_of_one_direction() {
        let result = outcome(Op::Write, false);
        let json = serde_json::to_value(&result).unwrap();
        for (name, expected) in [
            ("messages", 3000.0),
            ("bytes", 375e6),
            ("bytes_of_server", 0.0),
            ("seconds", 2.0),
            ("gbps", 1.5),
            ("messages_per_second", 1500.0),
            ("depth", 64.0),
            ("depth_used", 16.0),
            ("post_list", 4.0),
            ("signal_every", 100.0),
            ("posting_calls", 750.0),
            ("completions", 30.0),
        ] {
            let found = json[name].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-9, "{name}: {found}");
        }
        let processor = &json["processor"];
        assert_eq!(
            (&processor["local_seconds"], &processor["server_seconds"]),
            (&0.75.into(), &1.5.into())
        );
        assert_eq!(
            (&processor["local_seconds_per_gb"], &processor["server_seconds_per_gb"]),
            (&2.0.into(), &4.0.into())
        );
        let text = result.text();
        for part in [
            "write of 122.07K: 1.50 Gbit/s, 1 500 messages/s for 2.00 s\n",
            "kernel, layered, markers on, CRC off, 16 messages in flight on each of 2 connections (--depth 64: the limit",
            ", posted by 750 calls, 30 completions\nprocessor",
            "processor time: 750 ms here, 1.50 s at the server; 2.000 and 4.000 s for a gigabyte\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let row = result.row();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(cells, ["122.07K", "16", "1.50", "Gbit/s", "1", "500", "2.000", "4.000"]);
    }

    #[test]
    fn a_depth_that_was_not_reached_says_why() {
        let mut result = outcome(Op::Write, false);
        result.depth_used = 4;
        let text = result.text();
        assert!(text.contains("4 messages in flight on each"), "{text}");
        assert!(text.contains("(--depth 64: fewer were needed at a time)"), "{text}");
    }

    #[test]
    fn both_directions_have_their_own_figures() {
        let result = outcome(Op::Read, true);
        let [here, there] = result.ways();
        assert!((here - 1.5e9).abs() < 1.0 && (there - 0.5e9).abs() < 1.0, "{here} {there}");
        let text = result.text();
        assert!(text.contains("both ways: 2.00 Gbit/s, 2 000 messages/s"), "{text}");
        assert!(
            text.contains("1.50 Gbit/s requested by this end, 500 Mbit/s by the server"),
            "{text}"
        );
        assert!(text.contains("(--depth 64: the peer's limit on Reads"), "{text}");
        assert!(result.row().contains("1.50 Gbit/s   500 Mbit/s"), "{}", result.row());
        assert_eq!(
            header(true).trim_end().len(),
            result.row().trim_end().len(),
            "columns are in line"
        );
        assert_eq!(header(false).trim_end().len(), outcome(Op::Read, false).row().len());
    }

    #[test]
    fn each_figure_that_has_a_definition_is_printed() {
        let mut result = outcome(Op::Read, true);
        result.local.payload_bytes_copied_tx = 1;
        result.local.figures = Figures {
            payload_bytes_snapshot: 2,
            bytes_held: 2,
            fpdus_sent: 4,
            fpdus_received: 5,
            retransmissions: 6,
            super_frames_sent: 7,
            ..result.local.figures
        };
        let text = format!("{}{}", header(true), result.text());
        crate::figures_page::are_printed("bw", &text);
        for (name, here) in [
            ("payload copied, sending", "1"),
            ("of it, Read Responses", "2"),
            ("payload copied, receiving", "3"),
            ("FPDUs sent", "4"),
            ("FPDUs received", "5"),
            ("segments retransmitted", "6"),
            ("of them super-frames", "7"),
        ] {
            assert_eq!(cells(&text, name).unwrap()[0], here, "{name}: {text}");
        }
    }

    /// Cells of a row of the table.
    fn cells(text: &str, name: &str) -> Option<Vec<String>> {
        let line = text.lines().find(|line| line.contains(&format!("│ {name} ")))?;
        Some(line.split(['│', '┆']).map(|cell| cell.trim().to_owned()).skip(2).take(2).collect())
    }

    #[test]
    fn figures_unknown_to_one_end_are_a_dash() {
        let text = outcome(Op::Write, false).text();
        let of = |name| cells(&text, name).map(|cells| cells.join(" | "));
        assert_eq!(of("bytes placed").as_deref(), Some("1 | 500 000 000"));
        assert_eq!(of("segments with FPDUs sent").as_deref(), Some("12 | –"));
        assert_eq!(of("of them aligned").as_deref(), Some("9 | –"));
        assert_eq!(of("frames sent").as_deref(), Some("40 | –"));
        assert_eq!(of("segments retransmitted"), None, "no end has sent one");
    }
}
