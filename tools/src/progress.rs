//! A progress bar on standard error; silent if that is not a terminal, unless lines are requested.

use std::cell::Cell;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::clock::Stopwatch;
use crate::{figure, report};

pub(crate) fn octets(count: u64) -> String {
    figure::bytes(count)
}

pub(crate) fn items(count: u64) -> String {
    HumanCount(count).to_string()
}

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// The bar itself jumps to its end when it is cleared.
    done: Cell<u64>,
    lines: Option<Lines>,
}

#[derive(Debug)]
struct Lines {
    since: Stopwatch,
    next: Cell<Duration>,
    show: fn(u64) -> String,
}

/// The pause doubles after each line.
const LINE_AFTER: Duration = Duration::from_secs(5);
const LINE_PAUSE_MAX: Duration = Duration::from_secs(60);

impl Progress {
    /// Draws nothing if `quiet`, or without a terminal.
    pub(crate) fn octets(total: u64, quiet: bool) -> Self {
        let target =
            if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let style = ProgressStyle::with_template(
            "{bar:40} {decimal_bytes:>11} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, done: Cell::new(0), lines: None }
    }

    /// Draws nothing if `quiet`, or without a terminal.
    pub(crate) fn items(total: u64, name: &str, quiet: bool) -> Self {
        let target =
            if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let style = ProgressStyle::with_template(&format!(
            "{{bar:40}} {{human_pos:>11}} of {{human_len}} {name}, {{per_sec}}, {{eta}} left",
        ));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, done: Cell::new(0), lines: None }
    }

    pub(crate) fn with_lines(mut self, show: fn(u64) -> String) -> Self {
        if self.bar.is_hidden() {
            let next = Cell::new(LINE_AFTER);
            self.lines = Some(Lines { since: Stopwatch::start(), next, show });
        }
        self
    }

    pub(crate) fn suspend<R>(&self, action: impl FnOnce() -> R) -> R {
        self.bar.suspend(action)
    }

    pub(crate) fn set(&self, done: u64) {
        self.done.set(done);
        self.bar.set_position(done);
        if let Some(Lines { since, next, show }) = &self.lines {
            let elapsed = since.elapsed();
            if elapsed >= next.get() {
                next.set(elapsed + elapsed.min(LINE_PAUSE_MAX));
                let total = self.bar.length().unwrap_or_default();
                let seconds = elapsed.as_secs();
                report::complain(&format!("{} of {} after {seconds} s", show(done), show(total)));
            }
        }
    }

    pub(crate) const fn done(&self) -> u64 {
        self.done.get()
    }

    /// Sets the number of an earlier attempt, which does not count for the speed.
    pub(crate) fn resume(&self, done: u64) {
        self.done.set(done);
        self.bar.set_position(done);
        self.bar.reset_eta();
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
