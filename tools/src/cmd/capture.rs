//! `urnic capture`.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, mem};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use urnic::monotonic_now;
use urnic_netdev::interface::Name;
use urnic_netdev::monitor::Monitor;
use urnic_replay::live::{Live, LiveFigures, LiveFile, LiveFrame, Wanted};

use crate::interrupt::Interrupt;
use crate::{report, size, units};

/// Capture the iWARP connections of an interface, and tell each second how they do
///
/// Frames go through the engine's own receive code as they pass, whichever stacks sent them. Written are
/// those of TCP connections whose MPA startup was seen: any port may carry iWARP, and most TCP does
/// not. Each gets a comment that Wireshark shows: its FPDUs, whether it is aligned with them, out of
/// order or a retransmission, and which rules it breaks. A connection that was open before is not known
/// to be iWARP; --port and --all write it all the same, without comments.
///
/// Frames for other stations are captured, too: while it runs, the interface is in promiscuous mode.
///
/// Runs until it is interrupted, or one of its limits is reached. Needs the capability CAP_NET_RAW.
#[derive(clap::Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The Ethernet interface to capture on, as `ip link` names it
    #[arg(long, short, value_name = "IFACE")]
    interface: Name,

    /// Write the frames to this file, as pcapng; - for standard output, which then has nothing else.
    /// Without it connections are only counted
    #[arg(long, short, value_name = "FILE.pcapng")]
    write: Option<PathBuf>,

    /// Write what comes from or goes to this TCP port, iWARP or not; may be given several times
    #[arg(long, value_name = "PORT", conflicts_with = "all",
          value_parser = clap::value_parser!(u16).range(1..))]
    port: Vec<u16>,

    /// Write every frame
    #[arg(long)]
    all: bool,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,

    /// Stop after so many frames
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Stop before the file is longer than this
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "write")]
    max_size: Option<u64>,

    /// Print lines of JSON: the interface when capturing has begun, one each second, one at the end
    #[arg(long, help_heading = crate::demo::OUTPUT)]
    json: bool,

    /// Print nothing
    #[arg(long, help_heading = crate::demo::OUTPUT, conflicts_with = "json")]
    quiet: bool,
}

const EXAMPLES: &str = "\
Exit status: 0 when stopped, 2 when the interface cannot be opened or the file not be written.

What is found out about a frame within a second after it is in its comment; at high rates within less,
because frames that wait take 32 MiB at most. Frames that there was no room for are counted as lost, and
the file says so; behind them the FPDUs of that direction are not known any more, and have no comments. On the sending host segments may be longer than on the wire: the card cuts them.

Examples:
  sudo urnic capture --interface eth0 --write iwarp.pcapng
  sudo urnic capture --interface eth0 --json --duration 60s | jq .bits_per_second
  sudo urnic capture --interface eth0 --write - | wireshark -k -i -
  sudo setcap cap_net_raw+ep $(command -v urnic)      Let every user capture";

/// The interval between two lines.
const LINE_NS: u64 = 1_000_000_000;
/// How long a stop may go unnoticed when the signal comes between looking and waiting.
const STOP_CHECK_NS: u64 = 100_000_000;
/// Frames that are handled before anything else is looked at.
const BURST: usize = 256;
/// Bursts read at the end, at most: an interface may bring frames as fast as they are read.
const BURSTS_AT_END: usize = 64;

/// Where frames go, and when that is enough.
struct Sink {
    file: Option<LiveFile<Box<dyn Write>>>,
    frames: u64,
    count_max: u64,
    len_max: u64,
    is_full: bool,
    error: Option<io::Error>,
}

impl Sink {
    fn take(&mut self, frame: &LiveFrame, comment: Option<&str>) {
        if self.is_full || self.error.is_some() {
            return;
        }
        if let Some(file) = &mut self.file {
            match file.frame(frame, comment, self.len_max) {
                Ok(true) => {}
                Ok(false) => {
                    self.is_full = true;
                    return;
                }
                Err(error) => self.error = Some(error),
            }
        }
        self.frames += 1;
        self.is_full = self.frames >= self.count_max;
    }

    fn check(&mut self) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file
            && self.error.is_none()
        {
            self.error = file.flush().err();
        }
        self.error.take().map_or(Ok(()), |error| Err(error).context("writing the capture"))
    }
}

/// It captures from now on.
#[derive(Debug, Serialize)]
struct Begun<'a> {
    interface: &'a str,
}

/// What happened in a second.
#[derive(Debug, Serialize)]
struct Line {
    /// Since the beginning.
    seconds: f64,
    connections: u64,
    connections_open: u64,
    bits_per_second: f64,
    segments: u64,
    segments_aligned: u64,
    segments_unaligned: u64,
    segments_out_of_order: u64,
    segments_retransmitted: u64,
    bytes_held: u64,
    /// Directions whose FPDUs are not followed any more: frames of them were lost.
    directions_incomplete: u64,
    /// Frames written so far, or that would have been.
    frames: u64,
    /// Frames lost or cut so far, because there was no room for them.
    frames_lost: u64,
}

/// What happened in all.
#[derive(Debug, Serialize)]
struct Total {
    seconds: f64,
    frames: u64,
    frames_lost: u64,
    total: LiveFigures,
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn seconds_of(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl Line {
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    fn of(before: &LiveFigures, now: &LiveFigures, interval_ns: u64) -> Self {
        let since = |value: fn(&LiveFigures) -> u64| value(now).saturating_sub(value(before));
        let bits = since(|one| one.bytes) * 8;
        Self {
            seconds: 0.0,
            connections: now.connections,
            connections_open: now.connections_open,
            bits_per_second: bits as f64 / seconds_of(interval_ns.max(1)),
            segments: since(|one| one.segments),
            segments_aligned: since(|one| one.segments_aligned),
            segments_unaligned: since(|one| one.segments_unaligned),
            segments_out_of_order: since(|one| one.segments_out_of_order),
            segments_retransmitted: since(|one| one.segments_retransmitted),
            bytes_held: now.bytes_held,
            directions_incomplete: now.directions_incomplete,
            frames: 0,
            frames_lost: 0,
        }
    }

    fn text(&self) -> String {
        let known = self.segments_aligned + self.segments_unaligned;
        let mut text = format!(
            "{:6.0} s  {} of {} connections open  {:.3} Gbit/s  aligned {}  \
             out of order {}  sent again {}  held {}  lost {}",
            self.seconds,
            self.connections_open,
            self.connections,
            self.bits_per_second / 1e9,
            report::share(self.segments_aligned, known),
            report::share(self.segments_out_of_order, self.segments),
            report::share(self.segments_retransmitted, self.segments),
            size::format(self.bytes_held),
            self.frames_lost,
        );
        if self.directions_incomplete > 0 {
            let count = self.directions_incomplete;
            text.push_str(&format!("  FPDUs of {count} directions not followed any more"));
        }
        text
    }
}

/// Opens the file.
fn create(path: &Path, interface: Name) -> anyhow::Result<LiveFile<Box<dyn Write>>> {
    let sink: Box<dyn Write> = if path.as_os_str() == "-" {
        Box::new(BufWriter::new(io::stdout()))
    } else {
        let file = fs::File::create(path).with_context(|| format!("making {}", path.display()))?;
        Box::new(BufWriter::new(file))
    };
    let program = format!("urnic {}", env!("URNIC_VERSION"));
    LiveFile::new(sink, interface.as_str(), &program).context("writing the capture")
}

/// Runs the command.
///
/// # Errors
/// When the interface cannot be opened, or the file not be written.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_stream = args.write.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if is_stream && args.json {
        anyhow::bail!("--write - leaves no room on standard output for --json");
    }
    let mut monitor =
        Monitor::open(args.interface).with_context(|| format!("--interface {}", args.interface))?;
    let interrupt = Interrupt::default();
    interrupt.watch()?;
    let file = args.write.as_ref().map(|path| create(path, args.interface)).transpose()?;
    let sink = Sink {
        file,
        frames: 0,
        count_max: args.count.unwrap_or(u64::MAX),
        len_max: args.max_size.unwrap_or(u64::MAX),
        is_full: false,
        error: None,
    };
    let wanted = match () {
        () if args.all => Wanted::All,
        () if args.port.is_empty() => Wanted::Iwarp,
        () => Wanted::Ports(args.port.clone()),
    };
    let mut following = Following {
        live: Live::new(wanted),
        sink,
        begin_ns: monotonic_now().as_nanos(),
        before: LiveFigures::default(),
        line_ns: monotonic_now().as_nanos(),
        is_shown: !is_stream && !args.quiet,
        is_json: args.json,
        is_written: args.write.is_some(),
    };
    let begun = Begun { interface: args.interface.as_str() };
    let text = || format!("capturing on {}; interrupt to stop", args.interface);
    let told = following
        .show(&begun, text)
        .and_then(|()| following.follow(&mut monitor, args, &interrupt));
    // Whatever ended it: the frames that wait belong to the file.
    let finished = following.finish(&mut monitor, args);
    match told.and(finished) {
        // A reader that has seen enough may close the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.root_cause().downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// A capture under way.
struct Following {
    live: Live,
    sink: Sink,
    begin_ns: u64,
    before: LiveFigures,
    /// When the last line was printed.
    line_ns: u64,
    is_shown: bool,
    is_json: bool,
    /// There is a file, which goes on without the lines.
    is_written: bool,
}

impl Following {
    fn follow(
        &mut self,
        monitor: &mut Monitor,
        args: &Args,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let limit = args.duration.unwrap_or(Duration::MAX).as_nanos();
        let limit_ns = u64::try_from(limit).unwrap_or(u64::MAX);
        let end_ns = self.begin_ns.saturating_add(limit_ns);
        while !interrupt.has_come() && !self.sink.is_full {
            let now_ns = monotonic_now().as_nanos();
            if now_ns >= end_ns {
                break;
            }
            let read = self.read(monitor);
            if now_ns >= self.line_ns + LINE_NS {
                self.tell(monitor, now_ns)?;
            }
            if read == 0 {
                // An interface that goes down leaves an error: the socket is ready until it is taken.
                let _down_or_gone = monitor.take_error();
                wait(monitor, end_ns.min(now_ns + STOP_CHECK_NS) - now_ns)?;
            }
        }
        Ok(())
    }

    /// Reads frames that are there; returns how many slots they were in.
    fn read(&mut self, monitor: &mut Monitor) -> usize {
        let Self { live, sink, .. } = self;
        monitor.receive(BURST, &mut |frame| {
            let frame = LiveFrame {
                at_ns: frame.at_ns,
                is_outbound: frame.is_outbound,
                original_len: frame.original_len,
                bytes: frame.bytes.to_vec(),
            };
            live.handle(frame, &mut |frame, comment| sink.take(frame, comment));
        })
    }

    /// A second is over.
    fn tell(&mut self, monitor: &mut Monitor, now_ns: u64) -> anyhow::Result<()> {
        let Self { live, sink, .. } = self;
        live.release(unix_ns(), &mut |frame, comment| sink.take(frame, comment));
        sink.check()?;
        let figures = live.figures();
        let since_ns = now_ns - self.line_ns;
        let line = Line {
            seconds: seconds_of(now_ns - self.begin_ns),
            frames: sink.frames,
            frames_lost: monitor.dropped().context("asking for lost frames")?,
            ..Line::of(&self.before, &figures, since_ns)
        };
        (self.before, self.line_ns) = (figures, now_ns);
        self.show(&line, || line.text())
    }

    /// Prints a line.
    fn show(&mut self, line: &impl Serialize, text: impl Fn() -> String) -> anyhow::Result<()> {
        let printed = match (self.is_shown, self.is_json) {
            (true, true) => report::print_json_line(line),
            (true, false) => report::print(&text()),
            (false, _) => Ok(()),
        };
        match printed {
            // Its reader has seen enough; the file has not.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && self.is_written => {
                self.is_shown = false;
                Ok(())
            }
            printed => printed.context("writing the lines"),
        }
    }

    /// Writes what waits, and tells what there was.
    fn finish(&mut self, monitor: &mut Monitor, args: &Args) -> anyhow::Result<()> {
        // What has passed before the end belongs to it.
        for _ in 0..BURSTS_AT_END {
            if self.read(monitor) == 0 {
                break;
            }
        }
        let Self { live, sink, .. } = self;
        live.finish(&mut |frame, comment| sink.take(frame, comment));
        sink.check()?;
        let frames_lost = monitor.dropped().context("asking for lost frames")?;
        if let Some(file) = mem::take(&mut sink.file) {
            file.finish(unix_ns(), frames_lost).context("writing the capture")?;
        }
        let seconds = seconds_of(monotonic_now().as_nanos() - self.begin_ns);
        let (frames, total) = (sink.frames, live.figures());
        let connections = total.connections;
        let target = args.write.as_ref();
        let target = target.map_or_else(|| "no file".to_owned(), |path| path.display().to_string());
        self.show(&Total { seconds, frames, frames_lost, total }, || {
            format!("{frames} frames to {target}, {connections} iWARP connections, {frames_lost} frames lost")
        })
    }
}

/// Now, as frames are stamped.
#[expect(clippy::disallowed_methods, reason = "a capture tells the time of day")]
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until there is a frame, or for this long.
fn wait(monitor: &Monitor, for_ns: u64) -> anyhow::Result<()> {
    let timeout =
        Timespec { tv_sec: 0, tv_nsec: i64::try_from(for_ns.min(STOP_CHECK_NS)).unwrap_or(0) };
    let readiness = monitor.readiness();
    match poll(&mut [PollFd::new(&readiness, PollFlags::IN)], Some(&timeout)) {
        // A signal: the caller looks whether it is time to stop.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for frames"),
    }
}
