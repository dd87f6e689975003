//! Reading an endpoint's counters from outside the application's threads.

use std::mem;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};

use crate::clock::monotonic_now;
use crate::handle::link::WorkerLink;
use crate::mail::command::Command;
use crate::mail::figures::EndpointFigures;

/// Asks the workers of an endpoint for their counters. A watch neither runs an endpoint without a
/// thread nor keeps it alive.
#[derive(Debug)]
pub struct Watch {
    workers: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    link: WorkerLink,
    /// Answer that is awaited; meanwhile the worker gets no further request.
    pending: Option<Receiver<EndpointFigures>>,
    last: EndpointFigures,
}

/// Result of a [`Watch`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The latest counters.
    pub figures: EndpointFigures,
    /// All counters are current. False if the application does not run its endpoint.
    pub is_new: bool,
}

impl Watch {
    pub(super) fn new(links: &[WorkerLink]) -> Self {
        let watched = |link: &WorkerLink| Watched {
            link: link.clone(),
            pending: None,
            last: EndpointFigures::default(),
        };
        Self { workers: links.iter().map(watched).collect() }
    }

    /// Counters of all connections so far, waiting for at most `timeout` for the workers.
    pub fn look(&mut self, timeout: Duration) -> Seen {
        let until = monotonic_now() + timeout;
        for worker in &mut self.workers {
            worker.ask();
        }
        let mut seen = Seen { is_new: true, ..Seen::default() };
        for (queue, worker) in (0_u64..).zip(&mut self.workers) {
            seen.is_new &= worker.take(until - monotonic_now());
            let mut figures = worker.last.clone();
            // Each worker numbers its own connections.
            for one in &mut figures.open {
                one.number |= queue << QUEUE_SHIFT;
            }
            seen.figures.add(figures);
        }
        seen.figures.open.sort_unstable_by_key(|one| one.number);
        seen
    }
}

impl Watched {
    fn ask(&mut self) {
        if self.pending.is_none() {
            let (reply, answer) = bounded(1);
            let sent = self.link.outbox.send(Command::Figures { reply });
            self.pending = sent.is_ok().then_some(answer);
        }
    }

    /// Takes the answer. Returns false if there is none.
    fn take(&mut self, timeout: Duration) -> bool {
        let Some(answer) = mem::take(&mut self.pending) else { return false };
        match answer.recv_timeout(timeout) {
            Ok(figures) => {
                self.last = figures;
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.pending = Some(answer);
                false
            }
            // The worker has ended.
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }
}

const QUEUE_SHIFT: u32 = 48;
