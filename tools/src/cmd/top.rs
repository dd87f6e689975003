//! `urnic top`.

use std::process::ExitCode;
use std::time::Duration;

use crate::interrupt::Interrupt;
use crate::report::is_broken_pipe;
use crate::top::{Following, Pace, Wanted};
use crate::units;

/// Show running endpoints: connections, rates, alignment, each second
///
/// Shows endpoints of your own processes that were started with --top, or with URNIC_TOP=1 in the
/// environment: serve, ping, bw, lat, put, get and rping, and programs under 'urnic run'. No
/// privilege is needed. Each endpoint has a line each second, and a table of its busiest
/// connections, with the columns of 'urnic capture': rates in and out (of the TCP stream), the
/// shares of sent segments that are aligned with FPDUs, of received segments that came out of
/// order, of sent segments that were retransmissions, and bytes held because their FPDU is
/// incomplete. The kernel's TCP does not report its segments: its connections have dashes.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Processes to show; by default all that can be shown
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pids: Vec<u32>,

    /// Time between two lines, in seconds or with a unit
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::seconds)]
    interval: Duration,

    /// End after this number of lines
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Print one line immediately, with the means since each endpoint began, and end
    #[arg(long, conflicts_with_all = ["interval", "count"])]
    once: bool,

    /// Connections of each endpoint in the table, the busiest first; 0 for no table
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "json",
          value_parser = clap::value_parser!(u16).range(0..=1024))]
    connections: u16,

    /// Print lines of JSON, an object each time, with all connections and counters
    #[arg(long, help_heading = crate::demo::OUTPUT)]
    json: bool,
}

const EXAMPLES: &str = "\
An endpoint that can be shown has a socket in $XDG_RUNTIME_DIR/urnic, or in urnic-top-UID in the
folder for temporary files if that variable is not set: set it alike for both commands. Only you can
enter that folder. Reading costs an endpoint little, and never blocks it; at most 8 processes read
at a time. A process that is busy with other work than its endpoint is shown with its previous
values.

Exit status: 0 when stopped, or when the named processes have ended; 2 if there is nothing to show.

Examples:
  urnic serve --listen 0.0.0.0 --top &
  urnic top
  urnic top --once 4711
  urnic top --json --count 60 | jq '.endpoints[].bits_per_second_in'
  urnic run --top -- ib_write_bw -F 10.0.0.2";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::default();
    interrupt.watch()?;
    let wanted = Wanted { pids: args.pids.clone() };
    let pace = Pace { interval: args.interval, count: args.count, is_once: args.once };
    let following = Following::new(wanted, pace, args.connections.into(), args.json);
    match following.run(&interrupt) {
        // A reader that has read enough may close the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}
