//! `urnic put`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};

use crate::client::{self, Client, Depths};
use crate::clock::Stopwatch;
use crate::device::DEVICES;
use crate::file_report::{FileReport, Remote, TransferOptions};
use crate::host::{Host, SPIN};
use crate::progress::Progress;
use crate::protocol::{Hello, Session};

/// Bring a file to a server
///
/// The file goes by RDMA Writes from where it is mapped here into where it is mapped there. It gets
/// its name when it is whole, on the disk, and its SHA-256 is right.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where 'urnic serve --dir' listens, and the name there; the file's own if none is given
    #[arg(value_name = "IP:PORT[/NAME]")]
    to: Remote,

    #[command(flatten)]
    options: TransferOptions,
}

const EXAMPLES: &str = "\
What has arrived when a transfer breaks off is kept by the server, under another name; the same
command goes on from there. Do not change the file while it is sent.

Exit status: 0 when the file is there, 1 when its checksum was wrong, 2 when it could not be sent.

Examples:
  urnic put backup.tar 192.0.2.1:7174
  urnic put backup.tar 192.0.2.1:7174/2026/november.tar --force --rate 1G";

/// Runs the command.
///
/// # Errors
/// When the file is not there in the end.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = File::open(&args.file).with_context(|| args.file.display().to_string())?;
    let metadata = file.metadata()?;
    ensure!(metadata.is_file(), "{} is no regular file", args.file.display());
    let len = metadata.len();
    let name = match &args.to.name {
        Some(name) => name.clone(),
        None => own_name(&args.file)?,
    };
    let options = &args.options;
    let host = Host::open(&options.stack, SPIN)?;
    let session = Session::Put { name, force: options.force };
    let hello = Hello { session, len, depth: 0 };
    let mut client = connect(&host, args.to.address, &hello)?;
    let progress = Progress::octets(len, options.json);
    let time = Stopwatch::start();
    let result = client::put(&mut client, &file, len, options.rate, &progress);
    progress.clear();
    let transferred = result?;
    let report =
        FileReport::new("put", &args.file, args.to.address, len, &transferred, time.elapsed());
    client.close()?;
    report.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens a session for a file.
pub(crate) fn connect<'h>(
    host: &'h Host,
    address: SocketAddr,
    hello: &Hello,
) -> anyhow::Result<Client<'h>> {
    Client::connect(host, address, hello, Depths { send: 64, recv: 0, recv_len: 0 })
}

fn own_name(file: &Path) -> anyhow::Result<String> {
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| {
        format!("{} has no name in UTF-8: give one behind the port, IP:PORT/NAME", file.display())
    })?;
    Ok(name.to_owned())
}
