//! `urnic replay`: captures through the receive code.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::replay::report::Report;
use crate::replay::{self, text};

/// Replay captures through the receive code and report what is in them.
///
/// Frames of pcap and pcapng files (Ethernet, raw IP, Linux cooked) go through the engine's own TCP,
/// MPA, DDP and RDMAP receive code, one passive endpoint per direction. Buffers are made up from the
/// steering tags that occur; their contents are reported as hashes.
///
/// Exit status: 0; 1 with --strict when a finding is an error; 2 when a file cannot be read.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Capture files, pcap or pcapng.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Exit with status 1 if any finding is an error.
    #[arg(long)]
    strict: bool,
}

const EXAMPLES: &str = "Examples:
  urnic replay pcaps/siw-write-crc.pcap
  urnic replay --json a.pcap b.pcapng | jq '.files[].connections[].findings'
  urnic replay --strict *.pcapng";

/// Runs the command.
///
/// # Errors
/// When the report cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files =
        args.files.iter().map(|path| replay::replay(&path.to_string_lossy(), || File::open(path)));
    let report = Report { files: files.collect() };
    let mut is_readable = true;
    for file in &report.files {
        if let Some(error) = &file.error {
            is_readable = false;
            // When this cannot be written there is nowhere left to say so.
            writeln!(io::stderr(), "urnic replay: {}: {error}", file.file).unwrap_or_default();
        }
    }
    match print(&report, args.json) {
        // A reader that has seen enough may close the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(error).context("writing the report");
        }
        _ => {}
    }
    Ok(match () {
        () if !is_readable => ExitCode::from(EXIT_UNUSABLE),
        () if args.strict && report.has_errors() => ExitCode::FAILURE,
        () => ExitCode::SUCCESS,
    })
}

fn print(report: &Report, as_json: bool) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if as_json {
        serde_json::to_writer(&mut out, report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        text::write(&mut out, report)?;
    }
    out.flush()
}

/// Exit status when a file cannot be read.
const EXIT_UNUSABLE: u8 = 2;
