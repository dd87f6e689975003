//! `urnic get`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::client;
use crate::clock::Stopwatch;
use crate::cmd::put::connect;
use crate::device::DEVICES;
use crate::file_report::{FileReport, Remote, TransferOptions};
use crate::host::{Host, SPIN};
use crate::progress::Progress;
use crate::protocol::{Hello, Session};
use crate::transfer::{Partial, Place};

/// Fetch a file from a server
///
/// The file comes by RDMA Reads, from where it is mapped there into where it is mapped here. It gets
/// its name when it is whole, on the disk, and its SHA-256 is right.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Where 'urnic serve --dir' listens, and the name of the file there
    #[arg(value_name = "IP:PORT/NAME")]
    from: Remote,

    /// Where to put it
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    options: TransferOptions,
}

const EXAMPLES: &str = "\
What has arrived when a transfer breaks off is kept beside FILE, under another name; the same
command goes on from there.

Exit status: 0 when the file is there, 1 when its checksum was wrong, 2 when it could not be had.

Examples:
  urnic get 192.0.2.1:7174/backup.tar backup.tar
  urnic get 192.0.2.1:7174/2026/november.tar /tmp/november.tar --force";

/// Runs the command.
///
/// # Errors
/// When the file is not here in the end.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.from.name.clone().context("which file? Write IP:PORT/NAME")?;
    let options = &args.options;
    let place = Place::at(&args.file)?;
    let is_free = options.force || !place.exists();
    ensure!(is_free, "{} exists: give --force to replace it", args.file.display());
    let host = Host::open(&options.stack, SPIN)?;
    let hello = Hello { session: Session::Get { name }, len: 0, depth: 0 };
    let mut client = connect(&host, args.from.address, &hello)?;
    let len = client.welcome.len;
    let partial = Partial::open(place, len, options.force)?;
    let progress = Progress::octets(len, options.json);
    let time = Stopwatch::start();
    let result = client::get(&mut client, partial, options.rate, &progress);
    progress.clear();
    let transferred = result?;
    let report =
        FileReport::new("get", &args.file, args.from.address, len, &transferred, time.elapsed());
    client.close()?;
    report.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}
