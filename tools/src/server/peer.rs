//! One peer of the server: its connection, its queues, its session.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use urnic::driver::{Connecting, Connection, ConnectionEvent};
use urnic::time::Instant;
use urnic::verbs::{Cq, Qp, QpConfig, Wc, WcOpcode, WcStatus};

use crate::channel::{CONTROL_SENT, Channel, OUTBOX_DEPTH};
use crate::counters::Counters;
use crate::device::DeviceSpec;
use crate::host::Host;
use crate::protocol::{CONTROL_DEPTH, Control, Hello, Session, Welcome};
use crate::server::Limits;
use crate::server::role::{Role, needs};

/// A peer with its session.
#[derive(Debug)]
pub(crate) struct Peer {
    remote: SocketAddr,
    link: Link,
    /// What carries the connection.
    device: DeviceSpec,
    qp: Qp,
    cq: Cq,
    channel: Channel,
    role: Role,
    /// What the peer had done when it was last looked at, and when that last changed.
    seen: (u64, Instant),
}

/// How far the connection is.
#[derive(Debug)]
enum Link {
    None,
    Connecting(Connecting),
    Open(Connection),
}

/// What becomes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Stays,
    /// It has closed the connection, and all is done.
    Gone,
}

impl Peer {
    /// Prepares the session that `hello` asks for.
    ///
    /// # Errors
    /// Why it is refused, to be told to the peer.
    pub(crate) fn new(
        host: &Host,
        limits: &Limits,
        remote: SocketAddr,
        hello: &Hello,
    ) -> anyhow::Result<(Self, Welcome)> {
        let needs = needs(hello, limits)?;
        let send_depth = needs.send + OUTBOX_DEPTH;
        let recv_depth = needs.recv + CONTROL_DEPTH;
        let cq = host.rnic.create_cq(send_depth + recv_depth);
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let config = QpConfig { send_cq, recv_cq, send_depth, recv_depth };
        let qp = host.pd.create_qp(config).context("no queue pair")?;
        let channel = Channel::new(&host.pd, &qp, recv_depth, needs.recv_len)?;
        let (role, welcome) = Role::new(host, limits, &qp, hello, needs)?;
        let seen = (0, urnic::driver::monotonic_now());
        let device = host.options.dev.clone();
        Ok((Self { remote, link: Link::None, device, qp, cq, channel, role, seen }, welcome))
    }

    pub(crate) const fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(crate) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// The peer has been accepted.
    pub(crate) fn connecting(mut self, connecting: Connecting) -> Self {
        self.link = Link::Connecting(connecting);
        self
    }

    /// Ends the connection at once.
    pub(crate) fn abort(&self) {
        if let Link::Open(connection) = &self.link {
            connection.abort();
        }
    }

    /// Does what there is to do; with `look`, sees whether the peer still does anything.
    ///
    /// # Errors
    /// Why the session has failed.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        look: bool,
        idle_max: Duration,
    ) -> anyhow::Result<Turn> {
        if let Link::Connecting(_) = self.link {
            let Link::Connecting(connecting) = std::mem::replace(&mut self.link, Link::None) else {
                return Ok(Turn::Stays);
            };
            self.link = match connecting.poll()? {
                Ok(connection) => Link::Open(connection),
                Err(not_yet) => Link::Connecting(not_yet),
            };
        }
        while let Some(wc) = self.cq.poll() {
            if wc.status != WcStatus::Success {
                return self.ended();
            }
            self.completed(&wc)?;
        }
        self.role.turn(&self.qp, &mut self.channel)?;
        if let Link::Open(connection) = &self.link
            && let Some(event) = connection.next_event(Duration::ZERO)?
        {
            return self.happened(&event);
        }
        if look {
            self.look(now, idle_max)?;
        }
        Ok(Turn::Stays)
    }

    fn completed(&mut self, wc: &Wc) -> anyhow::Result<()> {
        let Self { qp, channel, role, .. } = self;
        match wc.opcode {
            WcOpcode::Recv if wc.solicited => {
                let message = channel.take_control(qp, wc)?;
                if message == Control::CountersRequest {
                    let counters = self.counters()?;
                    self.channel.send(&self.qp, &Control::Counters(counters))?;
                } else {
                    role.handle_control(qp, channel, message)?;
                }
                Ok(())
            }
            WcOpcode::Recv => role.handle_payload(qp, channel, wc),
            _ if wc.wr_id == CONTROL_SENT => Ok(()),
            _ => role.handle_sent(qp, channel, wc),
        }
    }

    fn counters(&self) -> anyhow::Result<Counters> {
        let Link::Open(connection) = &self.link else { bail!("the connection is not open yet") };
        let counters = connection.counters().map_err(|_| anyhow!("the connection was lost"))?;
        Ok(Counters::of(&counters, &self.device))
    }

    /// A request was flushed: the connection is over; its events say why.
    fn ended(&self) -> anyhow::Result<Turn> {
        let Link::Open(connection) = &self.link else { bail!("the connection was lost") };
        while let Some(event) = connection.next_event(Duration::ZERO)? {
            if let turn @ (Ok(Turn::Gone) | Err(_)) = self.happened(&event) {
                return turn;
            }
        }
        bail!("the connection was lost")
    }

    fn happened(&self, event: &ConnectionEvent) -> anyhow::Result<Turn> {
        match event {
            ConnectionEvent::PeerClosed | ConnectionEvent::Closed(_) => {
                if let Some(rest) = self.role.unfinished() {
                    bail!("the peer went away {rest}");
                }
                Ok(Turn::Gone)
            }
            ConnectionEvent::Failed(error) => bail!("{error}"),
            ConnectionEvent::Terminated(terminate) => bail!("the peer terminated: {terminate:?}"),
            _ => Ok(Turn::Stays),
        }
    }

    /// Gives up a peer that does nothing.
    fn look(&mut self, now: Instant, idle_max: Duration) -> anyhow::Result<()> {
        let done = match &self.link {
            Link::Open(connection) => connection.counters().map_or(self.seen.0, |counters| {
                counters.mpa.fpdus + counters.rdma.bytes_placed + counters.fpdus_framed
            }),
            _ => self.seen.0,
        };
        if done != self.seen.0 || self.role.is_working() {
            self.seen = (done, now);
            return Ok(());
        }
        ensure!(now - self.seen.1 < idle_max, "nothing came for {idle_max:?}: given up");
        Ok(())
    }
}

/// What a session may take from the machine, before any of it is taken.
pub(crate) fn check_depth(hello: &Hello, memory_max: u64) -> anyhow::Result<usize> {
    let depth = match hello.session {
        Session::Echo | Session::Sink => hello.depth,
        _ => 0,
    };
    ensure!(depth <= DEPTH_MAX, "a depth of {depth} is more than {DEPTH_MAX}");
    let recv = usize::try_from(depth)?;
    let slots = u64::from(depth) + CONTROL_DEPTH as u64;
    let total = match hello.session {
        Session::Echo | Session::Sink => hello.len.checked_mul(slots),
        Session::Memory => Some(hello.len),
        Session::PingPong(_) => hello.len.checked_mul(PING_PONG_SLOTS),
        Session::Put { .. } | Session::Get { .. } => Some(0),
    };
    let fits = total.is_some_and(|total| total <= memory_max);
    ensure!(
        fits,
        "{} octets at a depth of {depth} need more than the {memory_max} octets a peer gets: ask \
         for less, or start 'urnic serve' with a larger --size",
        hello.len
    );
    Ok(recv)
}

/// Payload messages under way at a time.
const DEPTH_MAX: u32 = 4096;
/// Times the length of a message: what is written to, and what is written from.
pub(crate) const PING_PONG_SLOTS: u64 = 2;
