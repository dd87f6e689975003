//! The way between handles and their worker: requests there, waiting for what comes of them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};

use crate::driver::clock::monotonic_now;
use crate::driver::command::{Command, ConnectionKey};
use crate::driver::endpoint::{EndpointConfig, EndpointError};
use crate::driver::wakeup::Wakeup;
use crate::driver::worker::Worker;
use crate::time::{Duration, Instant};
use crate::verbs::{Cq, Wc};

/// The way from handles to their worker.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(super) commands: Sender<Command>,
    pub(super) wakeup: Arc<Wakeup>,
    key_next: Arc<AtomicU64>,
    /// How long to look before sleeping.
    pub(super) spin: Duration,
    /// The worker, when it has no thread of its own.
    pub(super) in_thread: Option<Arc<Mutex<Option<Worker>>>>,
}

impl Link {
    pub(crate) fn next_key(&self) -> ConnectionKey {
        ConnectionKey(self.key_next.fetch_add(1, Ordering::Relaxed))
    }

    /// Hands a request to the worker.
    pub(crate) fn send(&self, command: Command) -> Result<(), EndpointError> {
        self.commands.send(command).map_err(|_| EndpointError::Down)?;
        self.wakeup.ring();
        Ok(())
    }

    /// Waits for a message, turning the worker meanwhile if nobody else does.
    pub(crate) fn receive<T>(
        &self,
        from: &Receiver<T>,
        timeout: Option<Duration>,
    ) -> Result<T, EndpointError> {
        let deadline = timeout.map(|timeout| monotonic_now() + timeout);
        let Some(worker) = &self.in_thread else {
            let received = match timeout {
                Some(timeout) => from.recv_timeout(timeout),
                None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            return received.map_err(|error| match error {
                RecvTimeoutError::Timeout => EndpointError::Timeout,
                RecvTimeoutError::Disconnected => EndpointError::Down,
            });
        };
        loop {
            match from.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(EndpointError::Down),
                Err(TryRecvError::Empty) => {}
            }
            if deadline.is_some_and(|deadline| monotonic_now() >= deadline) {
                return Err(EndpointError::Timeout);
            }
            turn(worker, deadline)?;
        }
    }

    /// Waits for a completion, turning the worker meanwhile if nobody else does.
    pub(super) fn wait(&self, cq: &Cq, timeout: Duration) -> Result<Option<Wc>, EndpointError> {
        let started = monotonic_now();
        let deadline = started + timeout;
        loop {
            if let Some(wc) = cq.poll() {
                return Ok(Some(wc));
            }
            if let Some(worker) = &self.in_thread {
                turn(worker, Some(deadline))?;
            }
            let now = monotonic_now();
            if now >= deadline {
                return Ok(cq.poll());
            }
            if self.in_thread.is_some() {
                // The worker has waited, if there was nothing to do.
            } else if now - started < self.spin {
                // Lets a worker that shares this core go on.
                thread::yield_now();
            } else {
                UNPARK.with(|waker| cq.req_notify(waker));
                // What came before the request is not announced.
                if cq.is_empty() {
                    thread::park_timeout(deadline - now);
                }
            }
        }
    }
}

/// A worker's link to its handles, before there is a worker.
pub(super) struct Mailbox {
    pub(super) link: Link,
    pub(super) commands: Receiver<Command>,
}

impl Mailbox {
    pub(super) fn new(config: &EndpointConfig) -> io::Result<Self> {
        let (sender, commands) = unbounded();
        let link = Link {
            commands: sender,
            wakeup: Wakeup::new()?,
            key_next: Arc::new(AtomicU64::new(0)),
            spin: config.spin,
            in_thread: (!config.own_thread).then(|| Arc::new(Mutex::new(None))),
        };
        Ok(Self { link, commands })
    }
}

/// Ends a [`thread::park`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// Wakes the thread it is made in, when that waits for a completion.
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Turns a worker without a thread, or waits a little for the thread that does it just now.
pub(super) fn turn(
    worker: &Mutex<Option<Worker>>,
    deadline: Option<Instant>,
) -> Result<(), EndpointError> {
    let mut guard = match worker.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(_)) => return Err(EndpointError::Down),
        Err(TryLockError::WouldBlock) => {
            thread::yield_now();
            return Ok(());
        }
    };
    guard.as_mut().ok_or(EndpointError::Down)?.turn_or_wait(deadline);
    Ok(())
}
