//! What `urnic bw` tells in the end: text and JSON from one struct.

use serde::Serialize;

use crate::bw::{Measured, Moment, Plan};
use crate::counters::Counters;
use crate::host::StackOptions;
use crate::measure::{Interval, Op, Processor};
use crate::{report, size};

/// The result. `docs/json.md` tells what each field means.
#[derive(Debug, Serialize)]
pub(crate) struct Bandwidth {
    op: Op,
    size_bytes: u32,
    depth: u32,
    connections: u32,
    bidirectional: bool,
    interrupted: bool,
    seconds: f64,
    messages: u64,
    /// Of the server's messages too.
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
}

/// Results of several sizes.
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
        // The server may say any number.
        let bytes_of_server = measured.messages_of_server.saturating_mul(u64::from(plan.size));
        let messages = measured.messages.saturating_add(measured.messages_of_server);
        let bytes = messages.saturating_mul(u64::from(plan.size));
        let (local, server) = measured.processor;
        Self {
            op: plan.op,
            size_bytes: plan.size,
            depth: plan.depth,
            connections: plan.connections,
            bidirectional: plan.is_both,
            interrupted: measured.was_interrupted,
            seconds,
            messages,
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
        }
    }

    /// A line of the table of all sizes.
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    pub(crate) fn row(&self) -> String {
        let Self { gbps, messages_per_second, processor, depth, .. } = self;
        let size = size::format(u64::from(self.size_bytes));
        let mut row = format!("{size:>8} {depth:>6} {gbps:>10.3} {messages_per_second:>14.0}");
        if self.bidirectional {
            let there = self.bytes_of_server as f64 * 8e-9 / self.seconds;
            row.push_str(&format!(" {:>10.3} {there:>10.3}", gbps - there));
        }
        let Processor { local_seconds_per_gb, server_seconds_per_gb, .. } = processor;
        row.push_str(&format!(" {local_seconds_per_gb:>10.3} {server_seconds_per_gb:>10.3}"));
        row
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let Self { op, seconds, gbps, messages_per_second, device, stack, processor, .. } = self;
        let mut table = report::table(&["", "here", "server"]);
        // Where the kernel has the segments, nothing is known of them.
        for (name, here, there) in self.rows().into_iter().filter(|row| row.1 > 0 || row.2 > 0) {
            report::row(&mut table, [name.into(), report::count(here), report::count(there)]);
        }
        let ways = if self.bidirectional { ", both ways" } else { "" };
        let until = if self.interrupted { ", when it was interrupted" } else { "" };
        let on_off = |is_on| if is_on { "on" } else { "off" };
        let rate = match gbps {
            0.01.. => format!("{gbps:.2} Gbit/s"),
            _ => format!("{:.3} Mbit/s", gbps * 1e3),
        };
        format!(
            "{} of {}{ways}: {rate}, {messages_per_second:.0} messages/s for {seconds:.2} s{until}\n\
             {device}, {stack}, markers {}, CRC {}\n\
             processor time: {:.3} s here, {:.3} s at the server; {:.3} and {:.3} s for a gigabyte\n\
             {table}",
            op.name(),
            size::format(u64::from(self.size_bytes)),
            on_off(self.markers),
            on_off(self.crc),
            processor.local_seconds,
            processor.server_seconds,
            processor.local_seconds_per_gb,
            processor.server_seconds_per_gb,
        )
    }

    const fn rows(&self) -> [(&'static str, u64, u64); 11] {
        let (here, there) = (&self.local, &self.peer);
        [
            ("bytes placed", here.bytes_placed, there.bytes_placed),
            (
                "payload copied, sending",
                here.payload_bytes_copied_tx,
                there.payload_bytes_copied_tx,
            ),
            ("of it, Read Responses", here.payload_bytes_snapshot, there.payload_bytes_snapshot),
            (
                "payload copied, receiving",
                here.payload_bytes_copied_rx,
                there.payload_bytes_copied_rx,
            ),
            ("FPDUs sent", here.fpdus_sent, there.fpdus_sent),
            ("FPDUs received", here.fpdus_received, there.fpdus_received),
            ("segments with FPDUs sent", here.segments_sent, there.segments_sent),
            ("of them aligned", here.segments_aligned, there.segments_aligned),
            ("segments sent again", here.retransmissions, there.retransmissions),
            ("frames with FPDUs sent", here.frames_sent, there.frames_sent),
            ("of them super-frames", here.super_frames_sent, there.super_frames_sent),
        ]
    }
}

/// The first line of the table of all sizes.
pub(crate) fn header(is_both: bool) -> String {
    let mut header = format!("{:>8} {:>6} {:>10} {:>14}", "size", "depth", "Gbit/s", "messages/s");
    if is_both {
        header.push_str(&format!(" {:>10} {:>10}", "by us", "by server"));
    }
    header.push_str(&format!(" {:>10} {:>10}\n", "here s/GB", "there s/GB"));
    header
}
