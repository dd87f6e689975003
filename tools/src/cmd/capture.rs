//! `urnic capture`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use urnic_netdev::interface::Name;
use urnic_netdev::monitor::Monitor;
use urnic_replay::live::Wanted;

use crate::capture::{Following, Shown, Sink};
use crate::interrupt::Interrupt;
use crate::report::is_broken_pipe;
use crate::{size, units};

/// Capture the iWARP connections of an interface, and report on them each second
///
/// Frames go through the engine's own receive code as they pass, whichever stacks sent them. The
/// command writes the frames of TCP connections whose MPA startup it saw: any port may carry iWARP,
/// and most TCP does not. Each frame gets a comment that Wireshark shows: its FPDUs, if it is
/// aligned with them, out of order or a retransmission, and the rules that it breaks. A connection
/// that was open before the start is not recognised as iWARP; --port and --all write it all the
/// same, without comments.
///
/// Frames for other stations are captured, too: the interface is in promiscuous mode meanwhile.
///
/// Runs until it is interrupted, or until it reaches a limit. Needs the capability CAP_NET_RAW.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The Ethernet interface to capture on, as `ip link` names it
    #[arg(long, short, value_name = "IFACE")]
    interface: Name,

    /// Write the frames to this file, as pcapng; - for standard output, with no other output there.
    /// Without it connections are only counted
    #[arg(long, short, value_name = "FILE.pcapng")]
    write: Option<PathBuf>,

    /// Write frames from or to this TCP port, iWARP or not; may be given several times
    #[arg(long, value_name = "PORT", conflicts_with = "all",
          value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,

    /// Write every frame
    #[arg(long)]
    all: bool,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,

    /// Stop after this number of frames
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Keep at most this many bytes of each frame in the file, as `tcpdump -s` does: headers without
    /// payload. Figures and comments are of whole frames
    #[arg(long, value_name = "BYTES", value_parser = snap_len, requires = "write")]
    snap_len: Option<u32>,

    /// Stop before the file is longer than this; with --files, go on in another
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "write")]
    max_size: Option<u64>,

    /// Begin another file when one has reached --max-size, and keep this number of the newest:
    /// FILE.00001.pcapng, FILE.00002.pcapng and so on
    #[arg(long, value_name = "N", requires = "max_size",
          value_parser = clap::value_parser!(u32).range(1..))]
    files: Option<u32>,

    /// Print lines of JSON: the interface when capturing has begun, one each second, one at the end
    #[arg(long, help_heading = crate::demo::OUTPUT)]
    json: bool,

    /// Print nothing
    #[arg(long, help_heading = crate::demo::OUTPUT, conflicts_with = "json")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Exit status: 0 when stopped, 2 if the interface cannot be opened or is deleted, or if the file
cannot be written.

A frame waits up to a second for its comment, so that later frames can tell about it; at high rates
less, because waiting frames take 32 MiB at most. Frames without room in the kernel's buffer are
counted as lost, and the file says so; behind them the FPDUs of that direction are unknown, and
frames have no comments. On the sending host segments may be longer than on the wire: the card cuts
them.

Examples:
  sudo urnic capture -i eth0 --write iwarp.pcapng
  sudo urnic capture -i eth0 --write last.pcapng --max-size 100M --files 10
  sudo urnic capture -i eth0 --write headers.pcapng --snap-len 160
  sudo urnic capture -i eth0 --json --duration 60s | jq .bits_per_second
  sudo urnic capture -i eth0 --write - | wireshark -k -i -
  sudo setcap cap_net_raw,cap_net_admin+ep $(command -v urnic)
      Lets every user capture";

/// The longest headers of a segment: Ethernet with two VLAN tags, IPv6, TCP with all options, MPA
/// and DDP.
const HEADERS_LEN: u32 = 14 + 8 + 40 + 60 + 2 + 18;
/// Longest frame that other programs read.
const SNAP_LEN_MAX: u32 = 262_144;

fn snap_len(text: &str) -> Result<u32, String> {
    let len: u32 = text.parse().map_err(|_| "that is no number of bytes".to_owned())?;
    match len {
        ..HEADERS_LEN => Err(format!("headers take up to {HEADERS_LEN} bytes")),
        HEADERS_LEN..=SNAP_LEN_MAX => Ok(len),
        _ => Err(format!("{SNAP_LEN_MAX} bytes at most; without it frames are kept whole")),
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_stream = args.write.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if is_stream && args.json {
        anyhow::bail!("--write - leaves no room on standard output for --json");
    }
    if is_stream && args.files.is_some() {
        anyhow::bail!("--files needs --write with the name of a file");
    }
    let mut monitor =
        Monitor::open(args.interface).with_context(|| format!("--interface {}", args.interface))?;
    let interrupt = Interrupt::default();
    interrupt.watch()?;
    let files_max = args.files.map(|files| usize::try_from(files).unwrap_or(usize::MAX));
    let path = args.write.as_deref();
    let sink =
        Sink::new(path, args.interface, args.count, args.max_size, files_max, args.snap_len)?;
    let wanted = match () {
        () if args.all => Wanted::All,
        () if args.port.is_empty() => Wanted::Iwarp,
        () => Wanted::Ports(args.port.clone()),
    };
    let shown = Shown {
        is_shown: !is_stream && !args.quiet,
        is_json: args.json,
        has_file: args.write.is_some(),
    };
    let following = Following::new(wanted, sink, shown);
    match following.run(&mut monitor, args.interface, args.duration, &interrupt) {
        // A reader that has read enough may close the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snap_length_holds_the_headers() {
        assert_eq!((snap_len("142"), snap_len("262144")), (Ok(142), Ok(262_144)));
        for text in ["0", "1", "141", "262145", "4294967296", "-1", "1K", ""] {
            assert!(snap_len(text).is_err(), "{text}");
        }
        assert_eq!(snap_len("96"), Err("headers take up to 142 bytes".to_owned()));
    }
}
