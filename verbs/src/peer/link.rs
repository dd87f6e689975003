//! Connection of one queue pair that is connected without rdma_cm.
//!
//! 1. On both ends `ibv_modify_qp` to RTR names the peer's queue pair, and starts a [`Link`]. The
//!    end with the smaller name is active, the other end is passive.
//! 2. The active end connects as soon as it is in RTS, or 20 ms after RTR: a target of RDMA may
//!    never leave RTR. Its MPA Request carries a [`Hello`].
//! 3. The passive end's listener (`requests`) keeps the request until the queue pair that it names
//!    is in RTR, and until the proofs in it can be checked. Then the link accepts it.
//! 4. The active end repeats a failed attempt after a pause, which grows from 5 ms to 500 ms. It
//!    gives up when sends have waited too long, as InfiniBand does ([`Link::sends`]).
//!
//! Racy cases:
//!
//! - *The request arrives before the passive end is in RTR.* It waits, up to 25 s.
//! - *Both ends are in RTR, so that no proof can be checked.* The passive end drops the request
//!   after 50 ms, and the active end tries again: about every 0.55 s. Posted work waits meanwhile.
//! - *A request arrives at a link that is connecting or connected.* It is rejected.
//! - *The queue pair is destroyed, reset or set to error.* The link ends in that call. A turn that
//!   follows finds the phase `Ended`.

use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use tracing::debug;
use urnic::{
    ConnectOptions, ConnectRequest, Connecting, Connection, ConnectionEvent, Offer, WcStatus,
    monotonic_now,
};
use urnic_engine::limits::READS_OUTSTANDING_MAX;
use urnic_engine::time::Instant;

use super::address::{is_own, listener};
use super::hello::{Hello, Name, Psns, Sender};
use crate::abi::{IBV_EVENT_QP_FATAL, ibv_qp};
use crate::async_event::error_event;
use crate::context::Context;
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::object::CPtr;
use crate::process::{QueuePair, startup};
use crate::turn::{self, OwnWaker, Timer, Turn};

const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_LONGEST: Duration = Duration::from_millis(500);
/// Time that an end in RTR waits for RTS before it connects without the proof by its own PSN. Most
/// applications reach RTS at once; targets of RDMA may never do.
const RTS_FOLLOWS_WITHIN: Duration = Duration::from_millis(20);
/// Minimum time for which a queue pair with work in its send queue tries to connect, even if the
/// application's timeout for InfiniBand packets is shorter.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval at which the passive end checks if its sends have waited too long.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) own: Name,
    pub(crate) peer: Name,
    /// The interface that leads to the peer, for link-local addresses.
    pub(crate) interface_index: u32,
    /// Maximum number of outstanding Reads of the peer.
    pub(crate) ird: u16,
    pub(crate) peer_psn: u32,
}

impl Terms {
    /// Returns the verdict on the sender of a request for the queue pair with these parameters.
    fn sender(&self, hello: &Hello, psns: Psns) -> Sender {
        let is_named = hello.from == self.peer && hello.to.number == self.own.number;
        // A peer of a host with several addresses may know another one than this end uses.
        let is_here = hello.to.address == self.own.address || is_own(hello.to.address);
        if is_named && is_here { hello.sender(psns) } else { Sender::Other }
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    context: Arc<Context>,
    qp: CPtr<ibv_qp>,
    inner: urnic::Qp,
    terms: Terms,
    /// This end's packet sequence number; set in RTS.
    own_psn: OnceLock<u32>,
    phase: Mutex<Phase>,
    patience: Mutex<Patience>,
    timer: Timer,
    waker: OwnWaker,
}

#[derive(Debug)]
enum Phase {
    /// Waits for the peer to connect.
    Awaiting,
    /// Connects at `at`.
    Trying {
        at: Instant,
        wait: Duration,
    },
    /// Connection setup is in progress, started by either end.
    Connecting {
        connecting: Box<Connecting>,
        wait: Duration,
    },
    Connected(Box<Connection>),
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Patience {
    begin: Instant,
    limit: Option<Duration>,
}

impl Link {
    pub(crate) fn start(
        context: &Arc<Context>,
        qp: CPtr<ibv_qp>,
        inner: urnic::Qp,
        terms: Terms,
    ) -> Result<Arc<Self>, Errno> {
        // Numbers of this library contain a TCP port. Others are of rdma_cm, or of another device.
        if terms.own == terms.peer || terms.peer.number >> 8 == 0 {
            return Err(Errno::INVALID);
        }
        let begin = monotonic_now();
        let phase = if terms.own < terms.peer {
            Phase::Trying { at: begin + RTS_FOLLOWS_WITHIN, wait: RETRY_FIRST }
        } else {
            Phase::Awaiting
        };
        let link = Arc::new(Self {
            context: Arc::clone(context),
            qp,
            inner,
            terms,
            own_psn: OnceLock::new(),
            phase: Mutex::new(phase),
            patience: Mutex::new(Patience { begin, limit: Some(PATIENCE) }),
            timer: Timer::default(),
            waker: OwnWaker::default(),
        });
        link.timer.set(&link, begin + RTS_FOLLOWS_WITHIN);
        Ok(link)
    }

    pub(super) fn of(qp: &dyn QueuePair) -> Option<Arc<Self>> {
        qp.link()?.downcast().ok()
    }

    pub(crate) fn ready(&self) {
        self.context.process.numbers.ready(self.terms.own.number);
    }

    /// Handles RTS: connects at once, and waits for the peer at least as long as InfiniBand
    /// retransmits. `own_psn` proves this end's identity.
    pub(crate) fn sends(self: &Arc<Self>, own_psn: u32, timeout: u8, retry_count: u8) {
        let _said_before = self.own_psn.set(own_psn);
        let (now, limit) = (monotonic_now(), limit(timeout, retry_count));
        *locked(&self.patience) = Patience { begin: now, limit };
        if let Phase::Trying { at, .. } = &mut *locked(&self.phase) {
            *at = now;
        }
        self.ready();
        turn::request(self);
    }

    fn psns(&self) -> Psns {
        Psns { peer: self.terms.peer_psn, own: self.own_psn.get().copied() }
    }

    pub(super) fn sender(&self, hello: &Hello) -> Sender {
        self.terms.sender(hello, self.psns())
    }

    /// Accepts a request of the [peer](Sender::Peer) for this queue pair.
    pub(super) fn take_request(self: &Arc<Self>, request: ConnectRequest, hello: &Hello) {
        let mut phase = locked(&self.phase);
        if !matches!(*phase, Phase::Awaiting) {
            debug!(target: "urnic", ?hello, "the queue pair is connected already");
            let _closed_all_the_same = request.reject(b"");
            return;
        }
        let ord = request.request().depths.ird.unwrap_or(READS_OUTSTANDING_MAX);
        let offer = Offer { private_data: b"", ird: self.terms.ird, ord };
        if let Ok(connecting) = request.accept(&self.inner, &offer) {
            let wait = RETRY_FIRST;
            *phase = Phase::Connecting { connecting: Box::new(connecting), wait };
            drop(phase);
            turn::request(self);
        }
    }

    /// Flushes work at once, and closes the connection in order: data sent before is delivered, and
    /// the peer gets no error, as on InfiniBand.
    pub(crate) fn abort(&self) {
        // An endpoint that is down uses no memory.
        let _down = self.context.process.network.endpoint.release(&self.inner);
        let phase = std::mem::replace(&mut *locked(&self.phase), Phase::Ended);
        drop(phase);
        self.inner.give_up(WcStatus::WrFlushErr);
    }

    pub(crate) fn end(&self) {
        let phase = std::mem::replace(&mut *locked(&self.phase), Phase::Ended);
        drop(phase);
        self.inner.give_up(WcStatus::WrFlushErr);
    }

    fn waker(self: &Arc<Self>) -> &Waker {
        self.waker.of(self)
    }

    fn connect(&self) -> Option<Connecting> {
        let Terms { own, peer, interface_index, ird, .. } = self.terms;
        let tcp_port = u16::try_from(peer.number >> 8).unwrap_or(0);
        let remote = listener(peer.address, tcp_port, interface_index);
        let options = ConnectOptions {
            startup: startup(),
            private_data: Hello::new(own, peer, self.psns()).to_octets(),
            ird,
            ord: READS_OUTSTANDING_MAX,
            ..ConnectOptions::default()
        };
        self.context.process.network.endpoint.connect(remote, &self.inner, &options).ok()
    }

    fn again(self: &Arc<Self>, wait: Duration, now: Instant) -> Phase {
        if self.is_tired(now) {
            return self.give_up();
        }
        if self.terms.own > self.terms.peer {
            return self.awaiting(now);
        }
        let at = now + wait;
        self.timer.set(self, at);
        Phase::Trying { at, wait: (wait * 2).min(RETRY_LONGEST) }
    }

    fn awaiting(self: &Arc<Self>, now: Instant) -> Phase {
        if self.is_tired(now) {
            return self.give_up();
        }
        self.timer.set(self, now + LOOK);
        Phase::Awaiting
    }

    /// Returns true if sends have waited until the limit. Without sends there is no limit.
    fn is_tired(&self, now: Instant) -> bool {
        let Patience { begin, limit } = *locked(&self.patience);
        let is_over = limit.is_some_and(|limit| now - begin > limit);
        is_over && self.inner.sends_outstanding() > 0
    }

    fn give_up(&self) -> Phase {
        self.inner.give_up(WcStatus::RetryExcErr);
        self.tell_error(IBV_EVENT_QP_FATAL);
        self.tell_last_wqe();
        Phase::Ended
    }

    fn connecting(self: &Arc<Self>, connecting: Connecting, wait: Duration) -> Phase {
        connecting.notify(self.waker());
        match connecting.poll() {
            Ok(Ok(connection)) => self.connected(connection),
            Ok(Err(still)) => Phase::Connecting { connecting: Box::new(still), wait },
            Err(error) => {
                let Terms { own, peer, .. } = self.terms;
                debug!(target: "urnic", ?own, ?peer, %error, "not connected");
                self.again(wait, monotonic_now())
            }
        }
    }

    fn connected(self: &Arc<Self>, connection: Connection) -> Phase {
        connection.notify(self.waker());
        loop {
            match connection.next_event(Duration::ZERO) {
                // InfiniBand has no close: a send detects that the peer has left.
                Ok(None) => return Phase::Connected(Box::new(connection)),
                Ok(Some(ConnectionEvent::PeerClosed | ConnectionEvent::PeerEnding)) => {}
                Ok(Some(ConnectionEvent::Closed(_))) | Err(_) => {
                    self.tell_last_wqe();
                    return Phase::Ended;
                }
                Ok(Some(event)) => {
                    connection.disconnect();
                    self.tell_error(error_event(&event));
                }
            }
        }
    }

    fn tell_last_wqe(&self) {
        self.context.process.with_qp(self.terms.own.number, |qp| qp.tell_last_wqe());
    }

    fn tell_error(&self, kind: u32) {
        self.context.events.of_qp(self.qp, kind);
    }
}

impl Turn for Link {
    fn turn(self: Arc<Self>) {
        let mut phase = locked(&self.phase);
        let now = monotonic_now();
        *phase = match std::mem::replace(&mut *phase, Phase::Ended) {
            Phase::Trying { at, wait } if now >= at => match self.connect() {
                Some(connecting) => self.connecting(connecting, wait),
                None => Phase::Ended,
            },
            Phase::Connecting { connecting, wait } => self.connecting(*connecting, wait),
            Phase::Connected(connection) => self.connected(*connection),
            Phase::Awaiting => self.awaiting(now),
            other => other,
        };
    }
}

/// Time for which sends wait for the peer; `None` without limit. InfiniBand volume 1, C 9.7.5.1.3:
/// each attempt lasts 4.096 us times two to the power of `timeout`, and a timeout of 0 means no
/// limit.
fn limit(timeout: u8, retry_count: u8) -> Option<Duration> {
    let each = 4096_u64.checked_shl(timeout.into()).map(Duration::from_nanos);
    let all = each.and_then(|each| each.checked_mul(u32::from(retry_count) + 1));
    (timeout != 0).then(|| all.unwrap_or(Duration::MAX).max(PATIENCE))
}

/// Number of the peer's Reads that may be outstanding, as `ibv_modify_qp` sets it. It is at least
/// one, because the peer learns it before it has requested any.
pub(crate) fn depth(max_dest_rd_atomic: u8) -> u16 {
    u16::from(max_dest_rd_atomic).clamp(1, READS_OUTSTANDING_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_tried_as_long_as_infiniband_would_or_ten_seconds() {
        assert_eq!((limit(0, 7), limit(0, 0)), (None, None));
        assert_eq!((limit(14, 7), limit(1, 0)), (Some(PATIENCE), Some(PATIENCE)));
        let each = Duration::from_nanos(4096 << 22);
        assert_eq!((limit(22, 0), limit(22, 6)), (Some(each), Some(7 * each)));
        assert!(limit(31, 7) > limit(31, 0), "as long as a field can say");
    }

    /// A request must have both names. The peer may name this host by another of its addresses.
    #[test]
    fn the_sender_is_the_peer_by_both_names() {
        let at = |address: [u8; 4], number| Name { address: address.into(), number };
        let (own, peer) = (at([192, 0, 2, 1], 0x1_0001), at([192, 0, 2, 2], 0x2_0002));
        let terms = Terms { own, peer, interface_index: 0, ird: 1, peer_psn: 7 };
        let psns = Psns { peer: 7, own: Some(9) };
        for (from, to, expected) in [
            (peer, own, Sender::Peer),
            (peer, at([127, 0, 0, 1], own.number), Sender::Peer),
            (peer, at([192, 0, 2, 3], own.number), Sender::Other),
            (peer, Name { number: own.number + 1, ..own }, Sender::Other),
            (at([192, 0, 2, 3], peer.number), own, Sender::Other),
            (Name { number: peer.number + 1, ..peer }, own, Sender::Other),
        ] {
            let hello = Hello::new(from, to, Psns { peer: 9, own: Some(7) });
            assert_eq!(terms.sender(&hello, psns), expected, "{hello:?}");
        }
    }
}
