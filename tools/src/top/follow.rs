//! Main loop: queries all endpoints, prints a line for each, waits.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{Timespec, poll};
use urnic::monotonic_now;
use urnic::top::{Answer, Process};

use super::line::{EndpointLine, Line, Unanswered};
use super::process::{Wanted, command};
use super::reports::EndpointReport;
use crate::interrupt::{CHECK_NS, Interrupt};
use crate::report;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    pub(crate) count: Option<u64>,
    /// One line at once, with the totals since each endpoint was opened with `--top`.
    pub(crate) is_once: bool,
}

pub(crate) struct Following {
    wanted: Wanted,
    pace: Pace,
    rows: usize,
    is_json: bool,
    begin_ns: u64,
    before: HashMap<Process, EndpointReport>,
}

impl Following {
    pub(crate) fn new(wanted: Wanted, pace: Pace, rows: usize, is_json: bool) -> Self {
        let begin_ns = monotonic_now().as_nanos();
        Self { wanted, pace, rows, is_json, begin_ns, before: HashMap::new() }
    }

    /// Queries until it is interrupted, has printed its lines, or the named processes have ended.
    /// Fails if there is no endpoint in the beginning.
    pub(crate) fn run(mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let first = self.look()?;
        // By now the sockets of ended processes are removed.
        self.wanted.check(&self.wanted.running()?)?;
        if self.pace.is_once {
            return self.show(&first);
        }
        let mut left = self.pace.count.unwrap_or(u64::MAX);
        let mut next_ns = self.begin_ns;
        while left > 0 {
            let interval = u64::try_from(self.pace.interval.as_nanos()).unwrap_or(u64::MAX);
            // A late line does not make the next one earlier.
            next_ns = next_ns.saturating_add(interval).max(monotonic_now().as_nanos());
            if !wait_until(next_ns, interrupt) {
                return Ok(());
            }
            let line = self.look()?;
            if line.is_empty() && !self.wanted.pids.is_empty() {
                return Ok(());
            }
            self.show(&line)?;
            left -= 1;
        }
        Ok(())
    }

    fn look(&mut self) -> anyhow::Result<Line> {
        let mut line = Line { seconds: 0.0, endpoints: Vec::new(), unanswered: Vec::new() };
        let mut reports = HashMap::new();
        for process in self.wanted.running()? {
            let answer = match process.ask() {
                Answer::Gone => continue,
                Answer::Strange(reason) => Err(reason),
                Answer::Line(text) => serde_json::from_str::<EndpointReport>(&text)
                    .map_err(|_| "it is of another version of urnic".to_owned()),
            };
            match answer {
                Ok(now) => {
                    let before = self.before.get(&process);
                    let name = command(process.pid);
                    line.endpoints.push(EndpointLine::of(&process, name, before, &now));
                    reports.insert(process, now);
                }
                Err(reason) => {
                    let Process { pid, endpoint, .. } = process;
                    line.unanswered.push(Unanswered { pid, endpoint, reason });
                }
            }
        }
        self.before = reports;
        let since_ns = monotonic_now().as_nanos() - self.begin_ns;
        line.seconds = Duration::from_nanos(since_ns).as_secs_f64();
        Ok(line)
    }

    fn show(&self, line: &Line) -> anyhow::Result<()> {
        let printed = if self.is_json {
            report::print_json_line(line)
        } else {
            let text = line.text(self.rows);
            // Replaces the previous text.
            let is_redrawn = io::stdout().is_terminal() && !self.pace.is_once;
            report::print(&if is_redrawn { format!("{CLEAR}{text}") } else { text })
        };
        printed.context("writing the lines")
    }
}

impl Line {
    const fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.unanswered.is_empty()
    }
}

/// `false` if interrupted.
fn wait_until(until_ns: u64, interrupt: &Interrupt) -> bool {
    while !interrupt.has_come() {
        let left = until_ns.saturating_sub(monotonic_now().as_nanos()).min(CHECK_NS);
        if left == 0 {
            return true;
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(left).unwrap_or(0) };
        // A signal ends the sleep early: the loop checks if it must stop.
        let _interrupted = poll(&mut [], Some(&timeout));
    }
    false
}

/// Moves to the upper left corner and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";
