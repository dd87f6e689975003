//! `urnic put`.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use rustix::fs::OFlags;

use crate::client::{self, Client, Depths};
use crate::clock::Stopwatch;
use crate::file_report::{FileReport, Remote, TransferOptions, broken_off, is_standard_stream};
use crate::host::{Host, SPIN};
use crate::info::DEVICES;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::protocol::{Hello, Session};
use crate::transfer::spooled;

/// Send a file to a server
///
/// The file goes by RDMA Writes, in chunks that are checked when they have arrived. It gets its
/// name when it is complete, on the disk, and its SHA-256 is right.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// The file; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Address of 'urnic serve --dir', and the name there; by default the file's own name
    #[arg(value_name = "HOST[:PORT][/NAME]")]
    to: Remote,

    #[command(flatten)]
    options: TransferOptions,
}

const EXAMPLES: &str = "\
If a transfer breaks off, the server keeps the incomplete file under another name, and the same
command goes on from there. SIGINT (Ctrl-C) breaks a transfer off. Do not change the file while it
is sent.

Exit status: 0 if the file was transferred, 1 if its checksum was wrong, 2 if it could not be sent.

Examples:
  urnic put backup.tar server
  urnic put backup.tar server/november.tar --rate 1G
  tar -c work | urnic put - server/work.tar";

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (file, len) = source(&args.file)?;
    let name = match &args.to.name {
        Some(name) => name.clone(),
        None => own_name(&args.file)?,
    };
    let options = &args.options;
    let host = Host::client(&options.client, SPIN)?;
    let session = Session::Put { name, force: options.force };
    let hello = Hello { session, len, depth: 0 };
    let remotes = args.to.address.resolve(&options.client.stack.dev)?;
    let mut client = connect(&host, &remotes, &hello)?;
    let interrupt = Interrupt::default();
    interrupt.watch()?;
    client.end_on(&interrupt);
    let progress = Progress::octets(len, options.json);
    let time = Stopwatch::start();
    let result = client::put(&mut client, &file, len, options.rate, &progress);
    progress.clear();
    let transferred = match result {
        Ok(transferred) => transferred,
        Err(error) => return Err(broken_off(client, error, progress.done(), "at the server")),
    };
    let report =
        FileReport::new("put", &args.file, client.remote(), len, &transferred, time.elapsed());
    client.close()?;
    report.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}

fn source(path: &Path) -> anyhow::Result<(File, u64)> {
    let shown = path.display();
    let file = if is_standard_stream(path) {
        let input = io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
        let mut input = File::from(input);
        let is_whole_file = input.metadata()?.is_file() && input.stream_position()? == 0;
        if is_whole_file { input } else { spooled(&mut input).context("standard input")? }
    } else {
        // A pipe must not block the open until its other end is opened.
        let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        opened.with_context(|| shown.to_string())?
    };
    let metadata = file.metadata()?;
    ensure!(metadata.is_file(), "{shown} is no regular file; '-' sends standard input");
    let len = metadata.len();
    // Files of /proc have contents but a length of 0.
    let has_more = file.read_at(&mut [0], len).with_context(|| shown.to_string())? > 0;
    ensure!(
        !has_more,
        "{shown} has more bytes than its length says: send it by 'urnic put - HOST[:PORT]/NAME < {shown}'"
    );
    Ok((file, len))
}

pub(crate) fn connect<'h>(
    host: &'h Host,
    remotes: &[SocketAddr],
    hello: &Hello,
) -> anyhow::Result<Client<'h>> {
    Client::connect(host, remotes, hello, Depths { send: 64, recv: 0, recv_len: 0 })
}

fn own_name(file: &Path) -> anyhow::Result<String> {
    ensure!(!is_standard_stream(file), "standard input has no name: write HOST[:PORT]/NAME");
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| {
        format!(
            "{} has no name in UTF-8: give one behind the port, HOST[:PORT]/NAME",
            file.display()
        )
    })?;
    Ok(name.to_owned())
}
