//! The connection of one queue pair that is connected without rdma_cm.
//!
//! Of two queue pairs that name each other, the one with the smaller name connects, as soon as it is in RTS, or 20 ms
//! after RTR: a target of RDMA may never leave that state. The other waits to be asked. While both ends stay in RTR they
//! open and drop a connection about every 0.55 s. What is posted meanwhile waits too.

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
use crate::context::Context;
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::object::CPtr;
use crate::process::startup;
use crate::turn::{self, OwnWaker, Timer, Turn};

/// Between attempts to connect: at first, and at most.
const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_LONGEST: Duration = Duration::from_millis(500);
/// How long an end in RTR waits for RTS before it connects without its own proof: most programs go there at once, and
/// targets of RDMA never do.
const RTS_FOLLOWS_WITHIN: Duration = Duration::from_millis(20);
/// How long a queue pair that has work in its send queue tries at least, however short the timeout is
/// that its program chose for packets of InfiniBand.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a queue pair that is to be connected to looks whether its sends have waited too long.
const LOOK: Duration = Duration::from_secs(1);

/// What a program says of a connection in `ibv_modify_qp`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) own: Name,
    pub(crate) peer: Name,
    /// The interface that leads to the peer, for addresses of one link.
    pub(crate) interface_index: u32,
    /// Reads of the peer that may be open.
    pub(crate) ird: u16,
    /// The peer's packet sequence number.
    pub(crate) peer_psn: u32,
}

impl Terms {
    /// Judges who asks for the queue pair with these terms.
    fn sender(&self, hello: &Hello, psns: Psns) -> Sender {
        let is_named = hello.from == self.peer && hello.to.number == self.own.number;
        // An end with several addresses may have told another one than it uses.
        let is_here = hello.to.address == self.own.address || is_own(hello.to.address);
        if is_named && is_here { hello.sender(psns) } else { Sender::Other }
    }
}

/// One queue pair's connection.
#[derive(Debug)]
pub(crate) struct Link {
    context: Arc<Context>,
    qp: CPtr<ibv_qp>,
    inner: urnic::Qp,
    terms: Terms,
    /// This end's packet sequence number, from RTS on.
    own_psn: OnceLock<u32>,
    phase: Mutex<Phase>,
    patience: Mutex<Patience>,
    timer: Timer,
    waker: OwnWaker,
}

#[derive(Debug)]
enum Phase {
    /// The peer connects.
    Awaiting,
    /// This end connects, when it is time.
    Trying {
        at: Instant,
        wait: Duration,
    },
    /// It is being set up; by this end, or by the peer.
    Connecting {
        connecting: Box<Connecting>,
        wait: Duration,
    },
    Connected(Box<Connection>),
    Ended,
}

/// How long attempts to connect go on.
#[derive(Clone, Copy, Debug)]
struct Patience {
    begin: Instant,
    limit: Option<Duration>,
}

impl Link {
    /// Begins to connect, or to be connected to.
    pub(crate) fn start(
        context: &Arc<Context>,
        qp: CPtr<ibv_qp>,
        inner: urnic::Qp,
        terms: Terms,
    ) -> Result<Arc<Self>, Errno> {
        // The number has the port in it. Without one it is of rdma_cm, or of some other device.
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

    /// Peers that have asked already may be answered.
    pub(crate) fn ready(&self) {
        self.context.process.numbers.ready(self.terms.own.number);
    }

    /// The queue pair is in RTS: its sends are tried for as long as InfiniBand would, or longer. Its packet sequence
    /// number proves to the peer who it is.
    pub(crate) fn sends(self: &Arc<Self>, own_psn: u32, timeout: u8, retry_count: u8) {
        let _said_before = self.own_psn.set(own_psn);
        // C 9.7.5.1.3 of InfiniBand's volume 1: 4.096 us times two to the power of it; 0 is for ever.
        let each = 4096_u64.checked_shl(timeout.into()).map(Duration::from_nanos);
        let all = each.and_then(|each| each.checked_mul(u32::from(retry_count) + 1));
        let limit = (timeout != 0).then(|| all.unwrap_or(Duration::MAX).max(PATIENCE));
        let now = monotonic_now();
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

    /// Judges who asks for this queue pair.
    pub(super) fn sender(&self, hello: &Hello) -> Sender {
        self.terms.sender(hello, self.psns())
    }

    /// The [peer](Sender::Peer) asks for this queue pair.
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

    /// The queue pair goes to the error state: work is flushed at once. What was sent before is delivered,
    /// and its peer is told nothing that it would have to take for an error: InfiniBand tells it nothing.
    pub(crate) fn abort(&self) {
        // An endpoint that is down uses nothing.
        let _down = self.context.process.network.endpoint.release(&self.inner);
        let phase = std::mem::replace(&mut *locked(&self.phase), Phase::Ended);
        drop(phase);
        self.inner.give_up(WcStatus::WrFlushErr);
    }

    /// The queue pair is destroyed: a connection closes in order.
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

    /// An attempt has failed. As packets of InfiniBand are retransmitted, it is tried again.
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

    /// Whether sends have waited for the peer as long as they may. Without any, it is not missed.
    fn is_tired(&self, now: Instant) -> bool {
        let Patience { begin, limit } = *locked(&self.patience);
        let is_over = limit.is_some_and(|limit| now - begin > limit);
        is_over && self.inner.sends_outstanding() > 0
    }

    fn give_up(&self) -> Phase {
        self.inner.give_up(WcStatus::RetryExcErr);
        self.tell_fatal();
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
                // InfiniBand has no close: a peer that has gone is missed when something is sent to it.
                Ok(None) => return Phase::Connected(Box::new(connection)),
                Ok(Some(ConnectionEvent::PeerClosed | ConnectionEvent::PeerEnding)) => {}
                Ok(Some(ConnectionEvent::Closed(_))) | Err(_) => {
                    self.tell_last_wqe();
                    return Phase::Ended;
                }
                Ok(Some(_)) => {
                    connection.disconnect();
                    self.tell_fatal();
                }
            }
        }
    }

    fn tell_last_wqe(&self) {
        self.context.process.with_qp(self.terms.own.number, |qp| qp.tell_last_wqe());
    }

    fn tell_fatal(&self) {
        self.context.events.of_qp(self.qp, IBV_EVENT_QP_FATAL);
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

/// Reads of the peer that may be open, as `ibv_modify_qp` says it: one at least, since peers are told
/// before they have said what they want.
pub(crate) fn depth(max_dest_rd_atomic: u8) -> u16 {
    u16::from(max_dest_rd_atomic).clamp(1, READS_OUTSTANDING_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request counts by both names, and by an address of this host where the peer knows another one of it.
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
