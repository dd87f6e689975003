//! Main loop of a capture: frames, the line of each second, the end.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use urnic::monotonic_now;
use urnic_netdev::interface::Name;
use urnic_netdev::monitor::{LinkState, Monitor};
use urnic_replay::live::{Live, LiveFigures, LiveFrame, Wanted};

use super::file::Sink;
use super::line::{Begun, Line, Total, seconds_of};
use crate::interrupt::{CHECK_NS, Interrupt};
use crate::report;

#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) is_shown: bool,
    pub(crate) is_json: bool,
    /// The file continues without the lines.
    pub(crate) has_file: bool,
}

pub(crate) struct Following {
    live: Live,
    sink: Sink,
    shown: Shown,
    begin_ns: u64,
    before: LiveFigures,
    line_ns: u64,
}

impl Following {
    pub(crate) fn new(wanted: Wanted, sink: Sink, shown: Shown) -> Self {
        let begin_ns = monotonic_now().as_nanos();
        let before = LiveFigures::default();
        Self { live: Live::new(wanted), sink, shown, begin_ns, before, line_ns: begin_ns }
    }

    /// Captures until interrupted or a limit is reached. After an error, earlier frames are in the
    /// file.
    pub(crate) fn run(
        mut self,
        monitor: &mut Monitor,
        interface: Name,
        duration: Option<Duration>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let begun = Begun { interface: interface.as_str() };
        let text = || format!("capturing on {interface}; interrupt to stop");
        let told = self.show(&begun, text).and_then(|()| self.follow(monitor, duration, interrupt));
        // The waiting frames belong to the file in all cases.
        let finished = self.finish(monitor);
        told.and(finished)
    }

    fn follow(
        &mut self,
        monitor: &mut Monitor,
        duration: Option<Duration>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let limit = duration.unwrap_or(Duration::MAX).as_nanos();
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
                // An interface that goes down leaves an error, which makes the socket ready.
                if monitor.take_error().is_some() && monitor.link_state() == LinkState::Gone {
                    anyhow::bail!(
                        "the interface was deleted; the frames before are in the capture"
                    );
                }
                wait(monitor, end_ns.min(now_ns + CHECK_NS) - now_ns)?;
            }
        }
        Ok(())
    }

    /// Returns the number of slots.
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

    fn tell(&mut self, monitor: &mut Monitor, now_ns: u64) -> anyhow::Result<()> {
        let Self { live, sink, .. } = self;
        live.release(unix_ns(), &mut |frame, comment| sink.take(frame, comment));
        sink.check()?;
        let figures = live.figures();
        sink.frames_lost = monitor.dropped().context(ASKING)?;
        let since_ns = now_ns - self.line_ns;
        let line = Line {
            seconds: seconds_of(now_ns - self.begin_ns),
            frames: sink.frames,
            frames_lost: sink.frames_lost,
            link_up: monitor.link_state() == LinkState::Up,
            ..Line::of(&self.before, &figures, since_ns)
        };
        (self.before, self.line_ns) = (figures, now_ns);
        self.show(&line, || line.text())
    }

    fn show(&mut self, line: &impl Serialize, text: impl Fn() -> String) -> anyhow::Result<()> {
        let printed = match (self.shown.is_shown, self.shown.is_json) {
            (true, true) => report::print_json_line(line),
            (true, false) => report::print(&text()),
            (false, _) => Ok(()),
        };
        match printed {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && self.shown.has_file => {
                self.shown.is_shown = false;
                Ok(())
            }
            printed => printed.context("writing the lines"),
        }
    }

    /// Frames that passed before the end belong to it.
    fn finish(&mut self, monitor: &mut Monitor) -> anyhow::Result<()> {
        for _ in 0..BURSTS_AT_END {
            if self.read(monitor) == 0 {
                break;
            }
        }
        let Self { live, sink, .. } = self;
        live.finish(&mut |frame, comment| sink.take(frame, comment));
        sink.check()?;
        sink.frames_lost = monitor.dropped().context(ASKING)?;
        let target = sink.finish(unix_ns())?;
        let seconds = seconds_of(monotonic_now().as_nanos() - self.begin_ns);
        let (frames, frames_lost, total) = (sink.frames, sink.frames_lost, live.figures());
        let total = Total { seconds, frames, frames_lost, total };
        self.show(&total, || total.text(&target))
    }
}

/// Time on the clock of the frames' timestamps.
#[expect(clippy::disallowed_methods, reason = "a capture tells the time of day")]
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn wait(monitor: &Monitor, for_ns: u64) -> anyhow::Result<()> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(for_ns.min(CHECK_NS)).unwrap_or(0) };
    let readiness = monitor.readiness();
    match poll(&mut [PollFd::new(&readiness, PollFlags::IN)], Some(&timeout)) {
        // A signal: the caller checks if it must stop.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for frames"),
    }
}

const ASKING: &str = "asking for lost frames";
const LINE_NS: u64 = 1_000_000_000;
const BURST: usize = 256;
/// Most bursts read at the end: an interface may deliver frames as fast as they are read.
const BURSTS_AT_END: usize = 64;
