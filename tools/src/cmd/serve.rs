//! `urnic serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::EXIT_UNVERIFIED;
use crate::device::DEVICES;
use crate::host::{Host, SPIN, StackOptions};
use crate::report;
use crate::server::{Ended, Limits, Server};
use crate::size;
use crate::transfer::Folder;

/// Wait for peers, and be the other end of ping, bw, lat, put and get
///
/// Prints one line when it listens, then serves any number of peers at once until it is stopped by
/// SIGINT or SIGTERM. Each peer has memory of its own; no peer reaches another's.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Address and TCP port to listen at; port 0 chooses a free one (kernel device)
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,

    /// Folder whose files peers may get, and where they may put files; none without this
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Memory that one peer may have
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    size: u64,

    /// Largest file that a peer may put
    #[arg(long, value_name = "SIZE", default_value = "1T", value_parser = size::parse)]
    file_size: u64,

    /// Peers at a time
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    peers: u32,

    /// End when the first peer has gone; the exit status tells how
    #[arg(long)]
    once: bool,

    /// Print the line as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    stack: StackOptions,
}

const EXAMPLES: &str = "\
A peer that does nothing for the time of --timeout is given up. Files arrive under another name and
get their own when they are whole and their checksum is right; what has arrived of a file when its
sender goes away is kept, hidden, and the next attempt goes on from there. Nobody else may shorten
files while they are served.

Exit status: 0 when it was stopped, 1 with --once when the session failed, 2 when it cannot listen.

Examples:
  urnic serve --listen 0.0.0.0:7174
      On all addresses of this machine, over the kernel's TCP. No privilege is needed.
  urnic serve --listen 0.0.0.0:7174 --dir /srv/files
      Serve files, too.
  urnic serve --dev tap:urn0,ip=10.7.0.2/24 --listen 10.7.0.2:7174
      On a TAP interface, with our own TCP; 'ip address add 10.7.0.1/24 dev urn0' gives the kernel
      an address on it, and then 'ping 10.7.0.2' is answered, too.";

/// The line that tells where it listens.
#[derive(Serialize)]
struct Listening {
    event: &'static str,
    address: SocketAddr,
    device: String,
    stack: &'static str,
}

/// Runs the command.
///
/// # Errors
/// When it cannot listen.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = args.dir.as_deref().map(Folder::open).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("waiting for signals")?;
    }
    let host = Host::open(&args.stack, SPIN)?;
    let limits = Limits {
        folder,
        memory_max: args.size,
        file_max: args.file_size,
        peers_max: usize::try_from(args.peers)?,
    };
    let mut server = Server::new(&host, args.listen, limits)?;
    let listening = Listening {
        event: "listening",
        address: server.local(),
        device: args.stack.dev.to_string(),
        stack: args.stack.stack_kind().name(),
    };
    if args.json {
        report::print(&serde_json::to_string(&listening)?)?;
    } else {
        report::print(&format!("listening at {} on {}", listening.address, listening.device))?;
    }
    Ok(match server.run(args.once, &stop)? {
        Ended::Well => ExitCode::SUCCESS,
        Ended::Badly => ExitCode::from(EXIT_UNVERIFIED),
    })
}
