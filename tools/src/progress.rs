//! A progress bar on standard error; silent when that is not a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Octets done out of octets to do.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for `total` octets; draws nothing when `quiet`, or without a terminal.
    pub(crate) fn octets(total: u64, quiet: bool) -> Self {
        let target =
            if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let style = ProgressStyle::with_template(
            "{bar:40} {binary_bytes:>11} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// A bar for `total` things called `name`; draws nothing when `quiet`, or without a terminal.
    pub(crate) fn items(total: u64, name: &str, quiet: bool) -> Self {
        let target =
            if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let style = ProgressStyle::with_template(&format!(
            "{{bar:40}} {{human_pos:>11}} of {{human_len}} {name}, {{per_sec}}, {{eta}} left",
        ));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// Takes the bar away while `action` writes something else.
    pub(crate) fn suspend<R>(&self, action: impl FnOnce() -> R) -> R {
        self.bar.suspend(action)
    }

    /// `done` octets, or things, are done.
    pub(crate) fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
