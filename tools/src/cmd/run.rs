//! `urnic run`: an unchanged rdma-core program on urnic.

mod libraries;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::device::{self, DeviceSpec};
use crate::info::DEVICES;
use crate::report::complain;

/// Run a program written for libibverbs and librdmacm on urnic
///
/// The program is not changed: it finds urnic's libibverbs.so.1 and librdmacm.so.1 before those of
/// the system, and one device, urnic0. It needs no root, no kernel module and no /dev/infiniband.
/// It sends iWARP over the kernel's TCP, or over urnic's own TCP on an interface (--dev).
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Network of urnic0: kernel, tap:NAME,…, packet:IFACE,…, xdp:IFACE,… and others: --help has
    /// all
    #[arg(long, value_name = "DEVICE", default_value = "kernel")]
    dev: DeviceSpec,
    /// Appearance of the device: ib as RoCE, which most programs are written for, or iwarp
    #[arg(long, value_enum, default_value_t = Personality::Ib)]
    personality: Personality,
    /// Moment when Sends and Writes complete: peer, when they are placed at the other end, as for
    /// InfiniBand, or local, when TCP has accepted them, as iWARP allows [default: peer with ib,
    /// local with iwarp]
    #[arg(long, value_enum)]
    ack: Option<Ack>,
    /// Show the program a device file, /dev/infiniband/urnic0, which UCX requires. UCX then also
    /// needs its transports, as in UCX_TLS=rc_verbs
    #[arg(long)]
    device_file: bool,
    /// Show the program's connections and counters to 'urnic top'
    #[arg(long, env = "URNIC_TOP", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    top: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Personality {
    Ib,
    Iwarp,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Ack {
    Peer,
    Local,
}

const EXAMPLES: &str = "\
Without this command: put libibverbs.so.1 and librdmacm.so.1, both links to liburnic_rdma.so, into a
folder, name it in LD_LIBRARY_PATH, and set URNIC_PERSONALITY=iwarp, URNIC_ACK=local and
URNIC_DEV=DEVICE if wanted; URNIC_TOP=1 shows the program to urnic top. With URNIC_LOG=debug the
library logs its work.

One program at a time can use an interface. The addresses of --dev are those of urnic0; ordinary
sockets of the program still use the kernel.

Exit status: that of the program; 127 if there is no such program, 126 if it cannot be started, 2 if
no folder can be created for the libraries.

Examples:
  urnic run -- ibv_devinfo
  urnic run -- rping -s -a 127.0.0.1 -C 10 -v        # in one terminal
  urnic run -- rping -c -a 127.0.0.1 -C 10 -v        # in another
  urnic run -- ib_write_bw -R -d urnic0 -F 10.0.0.2
  urnic run --device-file -- ucx_perftest -x rc_verbs -t am_lat 10.0.0.2
  urnic run --dev tap:urn0,ip=10.7.0.2/24 -- rping -s -a 10.7.0.2 -v";

/// Exit statuses of shells for a missing program and for one that cannot be started.
const EXIT_NO_PROGRAM: u8 = 127;
const EXIT_NO_START: u8 = 126;

/// Returns only if the program cannot be started.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = args.program.split_first() else { bail!("no program") };
    let mut path = libraries::with_names(&libraries::RDMA.path()?)?.into_os_string();
    if let Some(others) = env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    let personality = match args.personality {
        Personality::Ib => "ib",
        Personality::Iwarp => "iwarp",
    };
    if let Some(problem) = device::problem(&args.dev) {
        writeln!(io::stderr(), "urnic: no frame can pass: {problem}").context("standard error")?;
    }
    let mut command = Command::new(program);
    if args.device_file {
        let mut preload = libraries::PRELOAD.path()?.into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload);
    }
    command.args(arguments).env("LD_LIBRARY_PATH", path).env("URNIC_PERSONALITY", personality);
    command.env("URNIC_DEV", args.dev.to_string());
    if args.top {
        command.env("URNIC_TOP", "1");
    }
    match args.ack {
        Some(Ack::Peer) => command.env("URNIC_ACK", "peer"),
        Some(Ack::Local) => command.env("URNIC_ACK", "local"),
        None => &mut command,
    };
    let error = command.exec();
    complain(&format!("cannot start {}: {error}", program.display()));
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    Ok(ExitCode::from(if is_missing { EXIT_NO_PROGRAM } else { EXIT_NO_START }))
}
