//! `urnic get`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};

use crate::client;
use crate::clock::Stopwatch;
use crate::cmd::put::connect;
use crate::file_report::{FileReport, Remote, TransferOptions, broken_off, is_standard_stream};
use crate::host::{Host, SPIN};
use crate::info::DEVICES;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::protocol::{Hello, Session};
use crate::transfer::{Partial, Place, Room};

/// Fetch a file from a server
///
/// The file comes by RDMA Reads, in chunks that are checked when they have arrived. It gets its
/// name when it is complete, on the disk, and its SHA-256 is right; only then it goes to standard
/// output.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Address of 'urnic serve --dir', and the name of the file there
    #[arg(value_name = "HOST[:PORT]/NAME")]
    from: Remote,

    /// Path for the file; - for standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    options: TransferOptions,
}

const EXAMPLES: &str = "\
If a transfer breaks off, the incomplete file is kept beside FILE under another name, and the same
command goes on from there. SIGINT (Ctrl-C) breaks a transfer off.

Exit status: 0 if the file was transferred, 1 if its checksum was wrong, 2 if it could not be
received.

Examples:
  urnic get server/backup.tar backup.tar
  urnic get server/2026/november.tar /tmp/november.tar --force
  urnic get server/work.tar - | tar -x";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.from.name.clone().context("which file? Write HOST[:PORT]/NAME")?;
    let options = &args.options;
    let is_output = is_standard_stream(&args.file);
    ensure!(
        !(is_output && options.json),
        "the file and its report cannot both go to standard output: leave --json out"
    );
    ensure!(!(is_output && options.force), "--force: standard output cannot be replaced");
    let place = (!is_output).then(|| Place::at(&args.file)).transpose()?;
    if let Some(place) = &place {
        place.check_free(options.force)?;
    }
    let host = Host::client(&options.client, SPIN)?;
    let hello = Hello { session: Session::Get { name }, len: 0, depth: 0 };
    let remotes = args.from.address.resolve(&options.client.stack.dev)?;
    let mut client = connect(&host, &remotes, &hello)?;
    let interrupt = Interrupt::default();
    interrupt.watch()?;
    client.end_on(&interrupt);
    let len = client.welcome.len;
    let room = Arc::new(Room::new(None, 0));
    let partial = match place {
        Some(place) => Partial::open(place, len, options.force, room)?,
        None => Partial::unnamed(len, room)?,
    };
    let progress = Progress::octets(len, options.json);
    let time = Stopwatch::start();
    let result = client::get(&mut client, partial, options.rate, &progress);
    progress.clear();
    let transferred = match result {
        Ok(transferred) => transferred,
        // Data for standard output is not kept.
        Err(error) => {
            let moved = if is_output { 0 } else { progress.done() };
            return Err(broken_off(client, error, moved, "here"));
        }
    };
    let report =
        FileReport::new("get", &args.file, client.remote(), len, &transferred, time.elapsed());
    client.close()?;
    if !is_output {
        report.print(options.json)?;
    }
    Ok(ExitCode::SUCCESS)
}
