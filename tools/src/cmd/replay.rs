//! `urnic replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context;
use urnic_replay::input::Input;
use urnic_replay::{PicturedFile, Report, compare, page, text};

use crate::report::{complain, print, print_json};
use crate::{EXIT_UNUSABLE, EXIT_UNVERIFIED};

/// Read captures through the receive code and tell what is in them
///
/// Frames of pcap and pcapng files (Ethernet, raw IP, IP over InfiniBand as LINKTYPE_IPOIB or in ERF,
/// Linux cooked; with VLAN tags, MPLS labels, GRE, VXLAN or IP in IP around them) go through the
/// engine's own TCP, MPA, DDP and RDMAP receive code, one passive endpoint per direction. Buffers are
/// made up from the STags that occur; what was written to them is reported as a hash. Findings say
/// where a peer departed from the RFCs (error), where a session failed or the capture is incomplete
/// (warning), and what else is worth knowing (note).
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Capture files, pcap or pcapng, as they are or packed by gzip or zstd; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Write a page with pictures of the connections, for a browser: one file that needs nothing else
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Write each picture as a file of its own into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print the longest connections of two captures side by side; of one, as it was placed and as it
    /// would have been in order only
    #[arg(long, conflicts_with = "json")]
    compare: bool,

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
  urnic replay --report page.html pcaps/demo-markers-reorder.pcapng
  urnic replay --compare before.pcap after.pcap
  ssh host tcpdump -i eth0 -w - tcp port 7174 | urnic replay -";

/// Reads a file, or a pipe.
fn replay_file(path: &Path, is_pictured: bool) -> PicturedFile {
    let mut input = Input::of(path);
    let open = || match &mut input {
        Ok(input) => input.open(),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    let name = path.to_string_lossy();
    if is_pictured {
        urnic_replay::replay_pictured(&name, open)
    } else {
        urnic_replay::replay(&name, open).into()
    }
}

/// Writes the page and the pictures that are asked for.
fn write_pictures(args: &Args, files: &[PicturedFile]) -> anyhow::Result<()> {
    if let Some(path) = &args.report {
        fs::write(path, page::of(files)).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(folder) = &args.svg {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        for (name, svg) in page::pictures(files) {
            let path = folder.join(name).with_extension("svg");
            fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// When the report cannot be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_pictured = args.compare || args.report.is_some() || args.svg.is_some();
    let files: Vec<PicturedFile> =
        args.files.iter().map(|path| replay_file(path, is_pictured)).collect();
    write_pictures(args, &files)?;
    let compared = args.compare.then(|| compare::of(&files));
    let report = Report { files: files.into_iter().map(|file| file.report).collect() };
    let mut is_readable = true;
    for file in &report.files {
        if let Some(error) = &file.error {
            is_readable = false;
            complain(&format!("{}: {error}", file.file));
        }
    }
    let printed = match compared {
        Some(Ok(table)) => print(table.trim_end()),
        // What could not be read was told.
        Some(Err(_)) if !is_readable => Ok(()),
        Some(Err(reason)) => return Err(anyhow::Error::msg(reason)),
        None if args.json => print_json(&report),
        None => print(text::of(&report).trim_end()),
    };
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
