//! Looking at what an endpoint has counted, beside the program that uses it.

use std::mem;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};

use crate::clock::monotonic_now;
use crate::handle::link::WorkerLink;
use crate::mail::command::Command;
use crate::mail::figures::EndpointFigures;

/// Asks the workers of an endpoint for what they have counted. It does not turn an endpoint without a
/// thread, so the program's own work goes on as it would; and it does not keep the endpoint.
#[derive(Debug)]
pub struct Watch {
    workers: Vec<Watched>,
}

/// What is known of a worker.
#[derive(Debug)]
struct Watched {
    link: WorkerLink,
    /// An answer that has not come: nothing more is asked meanwhile, so a worker that is not turned
    /// has one question waiting, however often it is looked at.
    pending: Option<Receiver<EndpointFigures>>,
    last: EndpointFigures,
}

/// What a [`Watch`] sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What was counted, at last.
    pub figures: EndpointFigures,
    /// Whether all of it is of now. A program that does not turn its endpoint does not answer.
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

    /// What has been counted so far, waiting for at most `timeout` for those that know.
    pub fn look(&mut self, timeout: Duration) -> Seen {
        let until = monotonic_now() + timeout;
        for worker in &mut self.workers {
            worker.ask();
        }
        let mut seen = Seen { is_new: true, ..Seen::default() };
        for (queue, worker) in (0_u64..).zip(&mut self.workers) {
            seen.is_new &= worker.take(until - monotonic_now());
            let mut figures = worker.last.clone();
            // Each worker numbers its own.
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

    /// Takes the answer; `false` if there is none.
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

/// Above any number that a worker gives out.
const QUEUE_SHIFT: u32 = 48;
