//! SIGINT and SIGTERM: the first ends a command with its results; the second ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    has_come: Arc<AtomicBool>,
    is_watched: Arc<AtomicBool>,
}

impl Interrupt {
    /// Records signals from now on. Earlier ones end the program: there is nothing to report.
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

    #[inline]
    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Relaxed)
    }
}

/// Longest wait of a loop in nanoseconds: a signal just before the wait is unnoticed so long.
pub(crate) const CHECK_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Exit status after a signal: that of SIGINT, as in shells.
pub(crate) const STATUS: u8 = 130;
