//! Link from a handle to its worker: sends commands, waits for the results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use crossbeam::channel::{Receiver, RecvTimeoutError, TryRecvError, unbounded};

use crate::clock::monotonic_now;
use crate::config::EndpointConfig;
use crate::error::Error;
use crate::mail::channel::Receive;
use crate::mail::command::Command;
use crate::mail::command::outbox::Outbox;
use crate::mail::wakeup::Wakeup;
use crate::worker::shared::SharedWorker;
use urnic_engine::time::Duration;
use urnic_engine::verbs::{Alarm, Cq, Wc};

/// Sends commands of handles to their worker, and waits for the results.
#[derive(Clone, Debug)]
pub(crate) struct WorkerLink {
    pub(crate) outbox: Outbox,
    pub(crate) spin: Duration,
    /// The worker, unless only its own thread runs it.
    pub(crate) in_thread: Option<Arc<SharedWorker>>,
    pub(crate) end: Arc<ThreadEnd>,
}

impl WorkerLink {
    /// Runs the worker meanwhile if no other thread does.
    pub(crate) fn receive<T>(
        &self,
        from: &impl Receive<T>,
        timeout: Option<Duration>,
    ) -> Result<T, Error> {
        let deadline = timeout.map(|timeout| monotonic_now() + timeout);
        let Some(worker) = &self.in_thread else {
            return from.receive(timeout).map_err(|error| match error {
                RecvTimeoutError::Timeout => Error::Timeout,
                RecvTimeoutError::Disconnected => Error::Down,
            });
        };
        loop {
            let seen = worker.turns();
            match from.try_receive() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(Error::Down),
                Err(TryRecvError::Empty) => {}
            }
            if deadline.is_some_and(|deadline| monotonic_now() >= deadline) {
                return Err(Error::Timeout);
            }
            worker.turn(Some(seen), deadline, self.spin)?;
        }
    }

    /// Runs the worker meanwhile if no other thread does.
    pub(crate) fn wait(&self, cq: &Cq, timeout: Duration) -> Result<Option<Wc>, Error> {
        let started = monotonic_now();
        let deadline = started + timeout;
        loop {
            let seen = self.in_thread.as_ref().map_or(0, |worker| worker.turns());
            if let Some(wc) = cq.poll() {
                return Ok(Some(wc));
            }
            if let Some(worker) = &self.in_thread {
                worker.turn(Some(seen), Some(deadline), self.spin)?;
            } else if self.end.has_come() {
                // The worker may have completed something before it ended.
                return cq.poll().map(Some).ok_or(Error::Down);
            }
            let now = monotonic_now();
            if now >= deadline {
                return Ok(cq.poll());
            }
            if self.in_thread.is_some() {
                // The worker has waited, if there was nothing to do.
            } else if now - started < self.spin {
                // Lets a worker on the same core run.
                thread::yield_now();
            } else {
                UNPARK.with(|waker| self.park(cq, waker, deadline - now));
            }
        }
    }

    /// Sleeps until a completion, the end of the worker's thread, or the timeout.
    fn park(&self, cq: &Cq, waker: &Waker, timeout: Duration) {
        cq.req_notify(waker);
        self.end.alarm.arm(waker);
        // Completions before the request are not reported.
        if cq.is_empty() && !self.end.has_come() {
            thread::park_timeout(timeout);
        }
        cq.cancel_notify(waker);
        self.end.alarm.cancel(waker);
    }
}

/// A panic may end the worker's thread while other threads wait.
#[derive(Debug)]
pub(crate) struct ThreadEnd {
    has_come: AtomicBool,
    alarm: Alarm,
}

impl ThreadEnd {
    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }
}

/// Reports the end of the worker's thread when dropped.
pub(crate) struct Alive(pub(crate) Arc<ThreadEnd>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.has_come.store(true, Ordering::Release);
        self.0.alarm.ring();
    }
}

/// Created before the worker.
pub(crate) struct Mailbox {
    pub(crate) link: WorkerLink,
    pub(crate) commands: Receiver<Command>,
}

impl Mailbox {
    pub(crate) fn new(config: &EndpointConfig) -> Result<Self, Error> {
        let (sender, commands) = unbounded();
        let link = WorkerLink {
            outbox: Outbox::new(sender, Wakeup::new()?),
            spin: config.spin,
            in_thread: (!config.own_thread || config.polled).then(Arc::default),
            end: Arc::new(ThreadEnd { has_come: AtomicBool::new(false), alarm: Alarm::new() }),
        };
        Ok(Self { link, commands })
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

#[cfg(test)]
mod tests {
    use urnic_engine::verbs::{Rnic, RnicConfig};

    use super::*;

    #[test]
    fn waiting_at_a_worker_that_has_ended_fails_at_once() {
        let cq = Rnic::new(RnicConfig { seed: 1.into() }).create_cq(4).unwrap();
        let link = Mailbox::new(&EndpointConfig::default()).unwrap().link;
        assert_eq!(link.wait(&cq, Duration::ZERO), Ok(None));
        drop(Alive(Arc::clone(&link.end)));
        assert_eq!(link.wait(&cq, Duration::ZERO), Err(Error::Down));
    }
}
