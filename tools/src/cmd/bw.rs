//! `urnic bw`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use crate::address::HostPort;
use crate::bw::{self, Bandwidth, Plan, Table, header};
use crate::host::{ClientOptions, Host, SPIN};
use crate::info::DEVICES;
use crate::interrupt::Interrupt;
use crate::measure::{Intervals, Op, message_size, sizes};
use crate::{figure, report, units};

/// Measure throughput to a server
///
/// Keeps a number of RDMA Writes, RDMA Reads, Sends or Atomics in flight for some seconds, waits
/// until the server has received them all, and reports the counters of both ends.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Address of 'urnic serve'; the default port is 7174
    #[arg(value_name = "HOST[:PORT]")]
    peer: HostPort,

    /// Operation on the server's memory
    #[arg(long, value_enum, default_value = "write")]
    op: Op,

    /// Bytes of a message; 64K by default
    #[arg(short, long, value_name = "SIZE", value_parser = message_size)]
    size: Option<u32>,

    /// All sizes from 2 bytes to 8 MiB, one after the other, in one table
    #[arg(short, long, conflicts_with_all = ["size", "interval"])]
    all_sizes: bool,

    /// Length of the measurement; 5 seconds by default, and 1 for each of --all-sizes
    #[arg(short = 't', long, value_name = "SECONDS", value_parser = units::seconds)]
    seconds: Option<Duration>,

    /// Messages to send, on all connections together, instead of a length in time
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "seconds",
          value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Both directions at once: the server writes or reads this end's memory, too
    #[arg(short, long)]
    bidir: bool,

    /// Bits of payload per second at most, on all connections together
    #[arg(long, value_name = "RATE", value_parser = units::rate, conflicts_with = "bidir")]
    rate: Option<u64>,

    /// Messages in flight at a time, on each connection
    #[arg(short, long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,

    /// Messages that one call posts, on each connection; at most --depth
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    post_list: u32,

    /// Messages for one completion; the last one posted at a time has a completion, too
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    signal_every: u32,

    /// Connections
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,

    /// Report the rate of each interval of this length, in seconds or with a unit
    #[arg(short, long, value_name = "TIME", value_parser = units::seconds)]
    interval: Option<Duration>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    client: ClientOptions,
}

const EXAMPLES: &str = "\
Rates are payload, in units of 10^9 bits per second, from the first request until the server has
received all; the start is included. A connection has at most 16 Reads in flight, whatever the
depth. All connections together have at most 128 MiB in flight, and at least one message each. The
result gives the number in flight. With --post-list and without --rate, messages wait until a whole
list may be in flight. --post-list and --signal-every are perftest's --post_list and --cq-mod. With
--rate, the first message waits for its time, too. Counted are the segments that carry FPDUs, and frames of any kind. The kernel's TCP does not report them:
the result has dashes. TCP retransmits lost segments, and also probes for a loss (RACK-TLP, RFC 8985
§7): on a link without loss it retransmits a few when an end has to wait for its core. Processor
time is that of both processes; the server's includes all its peers.

SIGINT (Ctrl-C) ends the measurement early; its result so far is reported. A second one ends the
command.

Exit status: 0 after a measurement, even a shortened one; 2 if it failed.

Examples:
  urnic bw server
      RDMA Writes of 64 KiB, 16 at a time.
  urnic bw server --op read -s 1M -t 10 -i 1
  urnic bw 192.0.2.1:7174 --all-sizes --bidir
  urnic bw 10.7.0.2 --dev tap:urn1,ip=10.7.0.3/24 --json | jq .gbps";

impl Args {
    fn plan(&self, size: u32) -> Plan {
        let default = if self.all_sizes { SECONDS_OF_EACH } else { SECONDS };
        let time = self.count.is_none().then(|| self.seconds.unwrap_or(default));
        let fit = if self.all_sizes { (UNDER_WAY_OF_ALL / size).max(1) } else { u32::MAX };
        Plan {
            op: self.op,
            size,
            time,
            count: self.count,
            rate: self.rate,
            depth_asked: self.depth,
            depth: self.depth.min(fit),
            post_list: self.post_list,
            signal_every: self.signal_every,
            connections: self.connections,
            is_both: self.bidir,
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sizes = sizes(args.op, args.size, args.all_sizes, SIZE)?;
    ensure!(
        !args.bidir || matches!(args.op, Op::Write | Op::Read),
        "--bidir is for --op write and --op read"
    );
    for (option, asked) in [("--post-list", args.post_list), ("--signal-every", args.signal_every)]
    {
        ensure!(
            asked <= args.depth,
            "{option} {asked}: only {} messages are in flight at a time; ask for a larger --depth",
            args.depth
        );
    }
    if let Some(count) = args.count.filter(|count| *count < u64::from(args.connections)) {
        let (connections, messages) = (args.connections, figure::counted(count, "message"));
        report::complain(&format!(
            "--connections {connections}: only {count} of them send one of the {messages}"
        ));
    }
    let remotes = args.peer.resolve(&args.client.stack.dev)?;
    let host = Host::client(&args.client, SPIN)?;
    let interrupt = Interrupt::default();
    let mut results = Vec::new();
    for size in sizes {
        let plan = args.plan(size);
        let mut intervals = Intervals::new(args.interval, args.json || args.all_sizes);
        let measured = bw::measure(&host, &remotes, &plan, &interrupt, &mut intervals)?;
        let result = Bandwidth::new(&plan, &measured, intervals.finish(), &args.client.stack);
        if args.all_sizes && !args.json {
            let above = if results.is_empty() { header(args.bidir) } else { String::new() };
            report::print(&format!("{above}{}", result.row()))?;
        }
        results.push(result);
        if interrupt.has_come() {
            break;
        }
    }
    match (results.first(), args.all_sizes, args.json) {
        (_, true, true) => report::print_json(&Table { sizes: results })?,
        (Some(result), false, true) => report::print_json(result)?,
        (Some(result), false, false) => report::print(&result.text())?,
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

const SIZE: u32 = 64 << 10;
const SECONDS: Duration = Duration::from_secs(5);
const SECONDS_OF_EACH: Duration = Duration::from_secs(1);
/// The server's limit for one peer allows them.
const UNDER_WAY_OF_ALL: u32 = 24 << 20;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn plan(options: &str, size: u32) -> Plan {
        let line = format!("bw 192.0.2.1 {options}");
        Command::try_parse_from(line.split_whitespace()).unwrap().args.plan(size)
    }

    #[test]
    fn a_measurement_lasts_for_its_time_or_its_count() {
        let of = |options| {
            let plan = plan(options, 64);
            (plan.time.map(|time| time.as_secs()), plan.count)
        };
        assert_eq!(of(""), (Some(5), None));
        assert_eq!(of("--all-sizes"), (Some(1), None));
        assert_eq!(of("-t 7"), (Some(7), None));
        assert_eq!(of("--all-sizes -t 7"), (Some(7), None));
        assert_eq!(of("-n 9"), (None, Some(9)));
    }

    #[test]
    fn a_plan_is_what_the_options_say() {
        let of = plan("--op read --depth 32 -P 3 --bidir", 4096);
        assert_eq!((of.op, of.size, of.depth, of.depth_asked), (Op::Read, 4096, 32, 32));
        assert_eq!((of.connections, of.is_both, of.rate), (3, true, None));
        assert_eq!(plan("--rate 1G", 4096).rate, Some(1_000_000_000));
        let plain = plan("", 4096);
        assert_eq!((plain.op, plain.depth, plain.connections), (Op::Write, 16, 1));
        assert_eq!((plain.is_both, plain.rate), (false, None));
        assert_eq!((plain.post_list, plain.signal_every), (1, 1));
        let lists = plan("--post-list 8 --signal-every 16", 64);
        assert_eq!((lists.post_list, lists.signal_every), (8, 16));
        // Of a table, the largest messages are as many as the server has memory for.
        let depths = [2, 1 << 20, 3 << 20, 8 << 20, 32 << 20].map(|size| {
            let plan = plan("--all-sizes --depth 16", size);
            (plan.depth, plan.depth_asked)
        });
        assert_eq!(depths, [(16, 16), (16, 16), (8, 16), (3, 16), (1, 16)]);
        assert_eq!(plan("--depth 16", 32 << 20).depth, 16);
    }
}
