//! The listener for queue pairs that connect without rdma_cm. A peer may be quicker than our program:
//! its request waits until the queue pair that it names goes to RTR.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tracing::debug;
use urnic::{ConnectRequest, Listener, monotonic_now};
use urnic_engine::time::Instant;

use super::address::may_be;
use super::hello::Hello;
use crate::event_queue::locked;
use crate::process::Process;
use crate::turn::{OwnWaker, Timer, Turn};

/// Requests that may wait. One that finds no place is closed, and tried again.
const WAITING_MAX: usize = 256;
/// How many of them may come from one address: no host keeps all others out.
const WAITING_OF_ONE_MAX: usize = WAITING_MAX / 2;
/// How long one may wait, less than its peer waits for the Reply.
const PATIENCE: Duration = Duration::from_secs(25);

/// A peer's request whose queue pair is not there yet.
#[derive(Debug)]
struct Waiting {
    request: ConnectRequest,
    hello: Hello,
    until: Instant,
}

#[derive(Debug)]
pub(super) struct Requests {
    process: Weak<Process>,
    listener: Listener,
    waiting: Mutex<Vec<Waiting>>,
    /// For those that have waited long enough.
    timer: Timer,
    waker: OwnWaker,
}

impl Requests {
    pub(super) fn new(process: &Arc<Process>, listener: Listener) -> Self {
        let process = Arc::downgrade(process);
        let (timer, waker) = (Timer::default(), OwnWaker::default());
        Self { process, listener, waiting: Mutex::default(), timer, waker }
    }

    /// Gives a request to its queue pair; it comes back if that is not ready.
    fn give(&self, waiting: Waiting) -> Option<Waiting> {
        let Waiting { request, hello, until } = waiting;
        let process = self.process.upgrade()?;
        let Some(qp) = process.qp(hello.to.number) else {
            debug!(target: "urnic", ?hello, "there is no such queue pair");
            let _closed_all_the_same = request.reject(b"");
            return None;
        };
        match qp.link() {
            Some(link) => {
                link.take_request(request, &hello);
                None
            }
            None => Some(Waiting { request, hello, until }),
        }
    }

    fn take_new(&self, waiting: &mut Vec<Waiting>) {
        while let Ok(Some(request)) = self.listener.next_request(Duration::ZERO) {
            let remote = request.remote();
            let hello = Hello::parse(&request.request().private_data);
            let Some(hello) = hello.filter(|hello| may_be(remote.ip(), hello.from.address)) else {
                debug!(target: "urnic", %remote, "a request of nobody who may ask");
                let _closed_all_the_same = request.reject(b"");
                continue;
            };
            let of_same = |one: &&Waiting| one.request.remote().ip() == remote.ip();
            if waiting.len() < WAITING_MAX
                && waiting.iter().filter(of_same).count() < WAITING_OF_ONE_MAX
            {
                waiting.push(Waiting { request, hello, until: monotonic_now() + PATIENCE });
            }
        }
    }
}

impl Turn for Requests {
    fn turn(self: Arc<Self>) {
        self.listener.notify(self.waker.of(&self));
        let mut waiting = locked(&self.waiting);
        self.take_new(&mut waiting);
        let now = monotonic_now();
        let all = std::mem::take(&mut *waiting);
        *waiting = all
            .into_iter()
            .filter_map(|one| self.give(one))
            .filter(|one| one.until > now)
            .collect();
        if let Some(next) = waiting.iter().map(|one| one.until).min() {
            self.timer.set(&self, next);
        }
    }
}
