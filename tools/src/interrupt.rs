//! SIGINT and SIGTERM: a command ends early and tells what it has; the second signal ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Whether the command was told to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    has_come: Arc<AtomicBool>,
    is_watched: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on signals are taken note of. Before, they end the program: while it connects, there
    /// is nothing to tell.
    ///
    /// # Errors
    /// When they cannot be.
    pub(crate) fn watch(&self) -> anyhow::Result<()> {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down, the second up.
            flag::register_conditional_shutdown(signal, STATUS.into(), Arc::clone(&self.has_come))
                .and_then(|_| flag::register(signal, Arc::clone(&self.has_come)))
                .context("waiting for signals")?;
        }
        Ok(())
    }

    /// Whether a signal has come.
    #[inline]
    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Relaxed)
    }
}

/// How long a stop may go unnoticed, in nanoseconds, when the signal comes between looking and waiting:
/// loops wait no longer at a time.
pub(crate) const CHECK_NS: u64 = 100_000_000;

/// The command was ended by a signal before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Exit status of what a signal has ended: that of SIGINT, as shells have it.
pub(crate) const STATUS: u8 = 130;
