//! The loop that turns an engine: polls while there is work, then waits.

use std::sync::Arc;
use std::task::Waker;

use crossbeam::channel::{Receiver, TryRecvError};

use crate::driver::clock::monotonic_now;
use crate::driver::command::Command;
use crate::driver::engine::Engine;
use crate::driver::wakeup::Wakeup;
use crate::time::{Duration, Instant};

/// An engine with its mailbox. Turned by a thread of its own, or by whoever waits for something.
#[derive(Debug)]
pub(crate) struct Worker {
    engine: Box<dyn Engine>,
    commands: Receiver<Command>,
    wakeup: Arc<Wakeup>,
    waker: Waker,
    spin: Duration,
    idle_since: Option<Instant>,
    stopped: bool,
}

/// How long to look for work before the core is offered to others: a few frames' time. An offer
/// costs as much as looking.
const BARE_SPIN: Duration = Duration::from_micros(5);

impl Worker {
    pub(crate) fn new(
        engine: Box<dyn Engine>,
        commands: Receiver<Command>,
        wakeup: Arc<Wakeup>,
        spin: Duration,
    ) -> Self {
        let waker = Waker::from(Arc::clone(&wakeup));
        Self { engine, commands, wakeup, waker, spin, idle_since: None, stopped: false }
    }

    /// Works until the endpoint is shut down.
    pub(crate) fn run(mut self) {
        while !self.stopped {
            self.turn_or_wait(None);
        }
    }

    /// Works once. Without anything to do for as long as the spin time, sleeps until there is, or
    /// until `deadline`.
    pub(crate) fn turn_or_wait(&mut self, deadline: Option<Instant>) {
        let now = monotonic_now();
        if self.turn(now) {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(now);
        let idle = now - since;
        if idle < self.spin.min(BARE_SPIN) {
            std::hint::spin_loop();
        } else if idle < self.spin {
            // With more threads than cores, the one that has the work this waits for may be waiting
            // for this core.
            std::thread::yield_now();
        } else if !self.stopped && deadline.is_none_or(|deadline| deadline > now) {
            self.wait(now, deadline);
        }
    }

    /// Works once; `false` when there was nothing to do.
    fn turn(&mut self, now: Instant) -> bool {
        let mut worked = false;
        while !self.stopped {
            match self.commands.try_recv() {
                // All handles are gone: nobody is left to stop the worker.
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => {
                    self.engine.shutdown(now);
                    self.stopped = true;
                }
                Ok(command) => self.engine.handle_command(now, command),
                Err(TryRecvError::Empty) => break,
            }
            worked = true;
        }
        let moved = if self.stopped { 0 } else { self.engine.turn(now) };
        worked || moved > 0
    }

    fn wait(&mut self, now: Instant, deadline: Option<Instant>) {
        // Commands ring the wakeup itself; only queue pairs have to be asked for a call.
        if self.engine.arm(&self.waker) {
            let next = match (self.engine.next_wakeup(), deadline) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if next.is_none_or(|next| next > now) {
                self.engine.wait(now, next, &self.wakeup);
            }
        }
        self.engine.disarm();
        self.wakeup.clear();
    }
}
