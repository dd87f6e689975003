//! Failures of `accept`, and the time of the next attempt.

use std::io;

use rustix::io::Errno;

use crate::worker::kernel::KernelEngine;
use urnic_engine::limits::ACCEPT_RETRY_NS;
use urnic_engine::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoConnection {
    Empty,
    /// This connection is over already; the next may not be.
    Lost,
    /// No descriptor or memory for the connection, which stays in the kernel's backlog: the
    /// listener stays readable.
    Exhausted,
}

impl NoConnection {
    pub(super) fn of(error: &io::Error) -> Self {
        let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else {
            return Self::Exhausted;
        };
        match errno {
            Errno::AGAIN => Self::Empty,
            // accept(2): Linux reports errors of the new connection here; try again.
            Errno::INTR
            | Errno::CONNABORTED
            | Errno::PERM
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH => Self::Lost,
            // EMFILE, ENFILE, ENOBUFS, ENOMEM. For unknown errors the listener stays readable, too.
            _ => Self::Exhausted,
        }
    }
}

impl KernelEngine {
    /// Stops polling a listener for a while: it would be reported as readable continuously.
    pub(super) fn pause_accepting(&mut self, now: Instant, slot: usize) {
        let Some(listener) = self.listeners.get_mut(slot) else { return };
        // A listener that cannot be removed from the set is polled again at once.
        if self.events.watch_listener(&listener.socket, slot, false).is_ok() {
            listener.paused = true;
            let retry = now.plus_nanos(ACCEPT_RETRY_NS);
            self.accept_retry = Some(self.accept_retry.map_or(retry, |at| at.min(retry)));
        }
    }

    pub(super) fn resume_accepting(&mut self) {
        if self.accept_retry.take().is_none() {
            return;
        }
        for (slot, listener) in &mut self.listeners {
            if listener.paused {
                // Waiting connections are reported as long as they wait.
                let watched = self.events.watch_listener(&listener.socket, slot, true);
                debug_assert!(watched.is_ok(), "an entry of the set is changed: {watched:?}");
                listener.paused = false;
            }
        }
    }

    pub(super) const fn accept_retry(&self) -> Option<Instant> {
        self.accept_retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_in_the_backlog_pauses_a_listener() {
        let judged = |errno: Errno| NoConnection::of(&io::Error::from(errno));
        assert_eq!(judged(Errno::AGAIN), NoConnection::Empty);
        assert_eq!(judged(Errno::CONNABORTED), NoConnection::Lost);
        assert_eq!(judged(Errno::INTR), NoConnection::Lost);
        for exhausted in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert_eq!(judged(exhausted), NoConnection::Exhausted);
        }
    }
}
