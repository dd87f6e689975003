//! `urnic demo`.

use std::process::ExitCode;

use crate::EXIT_UNVERIFIED;
use crate::demo::{Options, Session};
use crate::progress::{self, Progress};
use crate::report;

/// Move data between two RNICs on a link in memory, and verify every byte
///
/// Two RNICs in this process, joined by a link that loses, reorders, duplicates and corrupts frames
/// as you ask, run RDMA Writes, Reads, Sends of all four kinds, Immediate Data and Atomics in both
/// directions at once. Every byte of every operation is compared with its expected value, and the
/// guards around each range with their former values. No privilege is needed: nothing leaves the
/// process.
///
/// The link has a clock of its own, so the same seed and options give the same run on any machine,
/// counter for counter; only the throughput is this machine's.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,

    /// Print the result as JSON
    #[arg(long, help_heading = crate::demo::OUTPUT)]
    json: bool,

    /// Print nothing; the exit status is the result
    #[arg(long, help_heading = crate::demo::OUTPUT, conflicts_with = "json")]
    quiet: bool,
}

const EXAMPLES: &str = "\
SIZEs are in bytes and take K, M, G and T (powers of 1024): 64K, 1.5M, 2GiB.

The table has a column for each direction, with the counts of its sender and its receiver. Segments
are TCP segments with FPDUs, each counted once, however often it was sent; they are aligned if they
begin and end with FPDUs. 'Found by marker' are FPDUs in segments that arrived ahead of others,
located by a marker inside. 'Bytes placed out of order' were placed before all earlier bytes had
arrived. 'Held' are bytes of incomplete FPDUs. Copies are counted between registered memory and the
device's buffers: the sender's device gathers from memory itself, the receiver copies each byte
once, and held bytes once more.

Exit status: 0 if all was verified, 1 if something was not or the run got stuck, 2 if the options
contradict each other or a file cannot be written.

Examples:
  urnic demo
      See how fast it is here.
  urnic demo --loss 1 --reorder 5 --duplicate 1 --corrupt 0.1 --markers on
      A bad link. With markers, data is placed as it arrives, in any order; hardly anything is held.
  urnic demo --loss 1 --markers on --stack layered
      The same without the integration of MPA and TCP: compare 'out of order' and 'held'.
  urnic demo --resegment 100 --markers on --bytes 16M
      A middlebox cuts every segment: FPDUs are put together from pieces.
  urnic demo --mtu 9000 --super-frames on
      As fast as it goes.
  urnic demo --bytes 1M --loss 2 --markers on --record run.pcapng
      Record the frames of the link; 'urnic replay run.pcapng' analyses them.";

/// A failed verification is an exit status, not an error.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.options.check()?;
    let mut progress = Progress::octets(args.options.total_bytes(), args.quiet);
    if !args.quiet && !args.json {
        progress = progress.with_lines(progress::octets);
    }
    let outcome = Session::new(&args.options)?.run(&progress)?;
    if args.json {
        report::print_json(&outcome)?;
    } else if !args.quiet {
        report::print(&outcome.text())?;
    }
    match &outcome.error {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => {
            report::complain(&format!("not verified (seed {}): {error}", args.options.seed));
            Ok(ExitCode::from(EXIT_UNVERIFIED))
        }
    }
}
