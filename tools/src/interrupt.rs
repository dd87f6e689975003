//! SIGINT and SIGTERM: the first signal ends a command early with its results so far; the second
//! signal ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// State of the signals that end a command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    has_come: Arc<AtomicBool>,
    is_watched: Arc<AtomicBool>,
}

impl Interrupt {
    /// Records signals from now on. Earlier signals end the program: while it connects, there is
    /// nothing to report.
    ///
    /// # Errors
    /// If the signals cannot be registered.
    pub(crate) fn watch(&self) -> anyhow::Result<()> {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset, the second finds it set.
            flag::register_conditional_shutdown(signal, STATUS.into(), Arc::clone(&self.has_come))
                .and_then(|_| flag::register(signal, Arc::clone(&self.has_come)))
                .context("waiting for signals")?;
        }
        Ok(())
    }

    /// Returns true if a signal has come.
    #[inline]
    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Relaxed)
    }
}

/// Longest time in nanoseconds for which loops wait: a signal that comes between the check and the
/// wait is unnoticed for that long.
pub(crate) const CHECK_NS: u64 = 100_000_000;

/// Error: a signal ended the command before it was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Exit status after a signal: that of SIGINT, as in shells.
pub(crate) const STATUS: u8 = 130;
