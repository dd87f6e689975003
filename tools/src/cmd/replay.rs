//! `urnic replay`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use urnic_replay::input::Input;
use urnic_replay::{FileReport, Report, text};

use crate::report::{complain, print, print_json};
use crate::{EXIT_UNUSABLE, EXIT_UNVERIFIED};

/// Read captures through the receive code and tell what is in them
///
/// Frames of pcap and pcapng files (Ethernet, raw IP, Linux cooked) go through the engine's own TCP,
/// MPA, DDP and RDMAP receive code, one passive endpoint per direction. Buffers are made up from the
/// STags that occur; what was written to them is reported as a hash. Findings say where a peer
/// departed from the RFCs (error), where a session failed or the capture is incomplete (warning),
/// and what else is worth knowing (note).
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Capture files, pcap or pcapng; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Exit with status 1 if any finding is an error
    #[arg(long)]
    strict: bool,
}

const EXAMPLES: &str = "\
Exit status: 0 when all files were read, 1 with --strict when a finding is an error, 2 when a file
cannot be read. A capture that merely ends early is read as far as it goes. What comes from a pipe is
copied to a file in the folder for temporary ones, because it is read twice.

Examples:
  urnic replay pcaps/siw-write-crc.pcap
  urnic replay --json a.pcap b.pcapng | jq '.files[].connections[].findings'
  urnic replay --strict *.pcapng
  ssh host tcpdump -i eth0 -w - tcp port 7174 | urnic replay -";

/// Reads a file, or a pipe.
fn replay_file(path: &Path) -> FileReport {
    let mut input = Input::of(path);
    let open = || match &mut input {
        Ok(input) => input.open(),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    urnic_replay::replay(&path.to_string_lossy(), open)
}

/// Runs the command.
///
/// # Errors
/// When the report cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = Report { files: args.files.iter().map(|path| replay_file(path)).collect() };
    let mut is_readable = true;
    for file in &report.files {
        if let Some(error) = &file.error {
            is_readable = false;
            complain(&format!("{}: {error}", file.file));
        }
    }
    let printed = if args.json { print_json(&report) } else { print(text::of(&report).trim_end()) };
    match printed {
        // A reader that has seen enough may close the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        result => result.context("writing the report")?,
    }
    Ok(match () {
        () if !is_readable => ExitCode::from(EXIT_UNUSABLE),
        () if args.strict && report.has_errors() => ExitCode::from(EXIT_UNVERIFIED),
        () => ExitCode::SUCCESS,
    })
}
