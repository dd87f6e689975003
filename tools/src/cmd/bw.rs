//! `urnic bw`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::bw::{self, Plan};
use crate::counters::Counters;
use crate::device::DEVICES;
use crate::host::{Host, SPIN, StackOptions};
use crate::{report, size, units};

/// Measure throughput to a server
///
/// Keeps a number of RDMA Writes, RDMA Reads or Sends under way for some seconds, waits until the
/// server has received them all, and tells what each end has counted.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Where 'urnic serve' listens
    #[arg(value_name = "IP:PORT")]
    peer: SocketAddr,

    /// What to do with the server's memory
    #[arg(long, value_enum, default_value = "write")]
    op: Op,

    /// Octets of a message
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = message_size)]
    size: u32,

    /// How long
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = units::seconds)]
    seconds: Duration,

    /// Messages under way at a time, on each connection
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,

    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    stack: StackOptions,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA Write into the server's memory
    Write,
    /// RDMA Read from the server's memory
    Read,
    /// Send to the server
    Send,
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}

const EXAMPLES: &str = "\
Rates are of payload, in units of 10^9 bits per second. At most 16 Reads are open at a time on a
connection, whatever the depth.

Examples:
  urnic bw 192.0.2.1:7174
      RDMA Writes of 64 KiB, 16 at a time.
  urnic bw 192.0.2.1:7174 --op read --size 1M --seconds 10
  urnic bw 10.7.0.2:7174 --dev tap:urn1,ip=10.7.0.3/24 --json | jq .gbps";

/// Reads the size of a message.
pub(crate) fn message_size(text: &str) -> Result<u32, String> {
    match u32::try_from(size::parse(text)?) {
        Ok(0) => Err("a message has 1 octet at least".into()),
        Ok(size) => Ok(size),
        Err(_) => Err("a message is shorter than 4 GiB (RFC 5041)".into()),
    }
}

/// The result.
#[derive(Debug, Serialize)]
struct Bandwidth {
    op: Op,
    size: u32,
    seconds: f64,
    bytes: u64,
    gbps: f64,
    messages_per_second: f64,
    device: String,
    stack: &'static str,
    markers: bool,
    crc: bool,
    local: Counters,
    peer: Counters,
}

impl Bandwidth {
    fn text(&self) -> String {
        let Self { op, size, seconds, gbps, messages_per_second, device, stack, .. } = self;
        let mut table = report::table(&["", "here", "server"]);
        let rows = [
            ("octets placed", self.local.bytes_placed, self.peer.bytes_placed),
            (
                "payload copied, sending",
                self.local.payload_bytes_copied_tx,
                self.peer.payload_bytes_copied_tx,
            ),
            (
                "payload copied, receiving",
                self.local.payload_bytes_copied_rx,
                self.peer.payload_bytes_copied_rx,
            ),
            ("FPDUs sent", self.local.fpdus_sent, self.peer.fpdus_sent),
            ("FPDUs received", self.local.fpdus_received, self.peer.fpdus_received),
            ("segments sent", self.local.segments_sent, self.peer.segments_sent),
            ("segments aligned", self.local.segments_aligned, self.peer.segments_aligned),
            ("retransmissions", self.local.retransmissions, self.peer.retransmissions),
            ("frames sent", self.local.frames_sent, self.peer.frames_sent),
            ("super-frames sent", self.local.super_frames_sent, self.peer.super_frames_sent),
        ];
        for (name, here, there) in rows {
            report::row(&mut table, [name.into(), report::count(here), report::count(there)]);
        }
        format!(
            "{} of {}: {gbps:.2} Gbit/s, {messages_per_second:.0} messages/s for {seconds:.2} s\n\
             {device}, {stack}, markers {}, CRC {}\n{table}",
            op.name(),
            size::format(u64::from(*size)),
            if self.markers { "on" } else { "off" },
            if self.crc { "on" } else { "off" },
        )
    }
}

/// Runs the command.
///
/// # Errors
/// When the server cannot be reached, or the session fails.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let host = Host::open(&args.stack, SPIN)?;
    let plan = Plan {
        op: args.op,
        size: args.size,
        time: args.seconds,
        depth: args.depth,
        connections: args.connections,
    };
    let measured = bw::measure(&host, args.peer, &plan)?;
    let seconds = measured.time.as_secs_f64();
    let bytes = measured.messages * u64::from(args.size);
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    let (bits, messages) = (bytes as f64 * 8.0, measured.messages as f64);
    let result = Bandwidth {
        op: args.op,
        size: args.size,
        seconds,
        bytes,
        gbps: bits / seconds / 1e9,
        messages_per_second: messages / seconds,
        device: args.stack.dev.to_string(),
        stack: args.stack.stack_kind().name(),
        markers: measured.markers,
        crc: measured.crc,
        local: measured.local,
        peer: measured.peer,
    };
    if args.json {
        report::print_json(&result)?;
    } else {
        report::print(&result.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
