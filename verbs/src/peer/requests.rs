//! Listener for queue pairs that connect without rdma_cm. A peer may be faster than the local
//! application, so a request waits here until the queue pair that it names goes to RTR.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tracing::{debug, warn};
use urnic::{ConnectRequest, Error, ListenParams, Listener, monotonic_now};
use urnic_engine::time::Instant;

use super::address::may_be;
use super::hello::{Hello, Sender};
use super::link::Link;
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::numbers::PeerListener;
use crate::process::{Process, startup};
use crate::turn::{self, OwnWaker, Timer, Turn};

/// Maximum number of waiting requests. Further ones are closed, and the peer tries again.
const WAITING_MAX: usize = 256;
/// Maximum number of waiting requests from one address, so that no host keeps all others out.
const WAITING_OF_ONE_MAX: usize = WAITING_MAX / 2;
/// Maximum waiting time, less than the peer waits for the Reply.
const PATIENCE: Duration = Duration::from_secs(25);
/// Maximum for a sender that is not proved yet. It connects again, and in RTS its request has a
/// proof that can be checked.
const UNPROVED_FOR: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Waiting {
    request: ConnectRequest,
    hello: Hello,
    until: Instant,
}

#[derive(Debug)]
pub(crate) struct Requests {
    process: Weak<Process>,
    listener: Listener,
    waiting: Mutex<Vec<Waiting>>,
    timer: Timer,
    waker: OwnWaker,
    refused: Refused,
    of_other_versions: Refused,
}

/// Refused requests of one kind. Peers choose how many: a log line for each power of two.
#[derive(Debug, Default)]
struct Refused(AtomicU64);

impl Refused {
    /// Returns the count if it must be logged.
    fn count(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        count.is_power_of_two().then_some(count)
    }
}

impl Requests {
    pub(crate) fn listen(process: &Arc<Process>) -> Result<Arc<dyn PeerListener>, Errno> {
        let requests = Arc::new(Self::new(process, listen(process)?));
        turn::request(&requests);
        Ok(requests)
    }

    fn new(process: &Arc<Process>, listener: Listener) -> Self {
        let process = Arc::downgrade(process);
        let (timer, waker) = (Timer::default(), OwnWaker::default());
        let (refused, of_other_versions) = (Refused::default(), Refused::default());
        let waiting = Mutex::default();
        Self { process, listener, waiting, timer, waker, refused, of_other_versions }
    }

    /// Returns the request if the queue pair is not ready.
    fn give(&self, waiting: Waiting) -> Option<Waiting> {
        let Waiting { request, hello, until } = waiting;
        let process = self.process.upgrade()?;
        let Some(link) = process.with_qp(hello.to.number, |qp| Link::of(qp.as_ref())) else {
            debug!(target: "urnic", ?hello, "there is no such queue pair");
            let _closed_all_the_same = request.reject(b"");
            return None;
        };
        let Some(link) = link else { return Some(Waiting { request, hello, until }) };
        match link.sender(&hello) {
            Sender::Peer => link.take_request(request, &hello),
            Sender::Unproved => {
                let until = until.min(monotonic_now() + UNPROVED_FOR);
                return Some(Waiting { request, hello, until });
            }
            Sender::Other => {
                if let Some(count) = self.refused.count() {
                    let Hello { from, to, .. } = hello;
                    warn!(target: "urnic", remote = %request.remote(), ?from, ?to, count,
                        "the request is not from the peer of this queue pair, or the PSNs differ");
                }
                let _closed_all_the_same = request.reject(b"");
            }
        }
        None
    }

    fn take_new(&self, waiting: &mut Vec<Waiting>) {
        while let Ok(Some(request)) = self.listener.next_request(Duration::ZERO) {
            let remote = request.remote();
            let octets = &request.request().private_data;
            let hello = Hello::parse(octets);
            if let (None, Some(version)) = (hello, Hello::version(octets))
                && let Some(count) = self.of_other_versions.count()
            {
                warn!(target: "urnic", %remote, version, count,
                    "the peer runs another release, which connects without rdma_cm by another protocol: update it");
            }
            let Some(hello) = hello.filter(|hello| may_be(remote.ip(), hello.from.address)) else {
                debug!(target: "urnic", %remote, "the request is invalid, or does not come from the address that it states");
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

impl PeerListener for Requests {
    fn tcp_port(&self) -> u16 {
        self.listener.local().port()
    }

    fn look(self: Arc<Self>) {
        turn::request(&self);
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

fn listen(process: &Process) -> Result<Listener, Error> {
    let listen = |any: IpAddr| {
        process.network.endpoint.listen(
            SocketAddr::new(any, 0),
            ListenParams { startup: startup(), ..ListenParams::default() },
        )
    };
    listen(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| listen(Ipv4Addr::UNSPECIFIED.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_refused_requests_are_twenty_lines() {
        let refused = Refused::default();
        let logged: Vec<u64> = (0..1_000_000).filter_map(|_| refused.count()).collect();
        assert_eq!(logged, (0..20).map(|power| 1 << power).collect::<Vec<u64>>());
    }
}
