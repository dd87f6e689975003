//! One peer of the server: its connection, its queues, its session.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use urnic::{
    Connecting, Connection, ConnectionEvent, Cq, Qp, QpConfig, QpState, Wc, WcOpcode, WcStatus,
};
use urnic_engine::time::Instant;

use crate::channel::{Buffers, CONTROL_SENT, Channel};
use crate::counters::Counters;
use crate::device::DeviceSpec;
use crate::host::Host;
use crate::measure::processor_time;
use crate::protocol::{Control, Hello, Welcome};
use crate::server::clerk::Leaving;
use crate::server::files::Transfer;
use crate::server::needs::Needs;
use crate::server::places::Share;
use crate::server::role::Role;
use crate::server::{Event, Limits};

/// A peer with its session.
#[derive(Debug)]
pub(crate) struct Peer {
    remote: SocketAddr,
    /// What kind of session it has, for the log.
    session: String,
    began: Instant,
    share: Share,
    link: Link,
    /// What carries the connection.
    device: DeviceSpec,
    qp: Qp,
    cq: Cq,
    channel: Channel,
    role: Role,
    /// What the peer had done when it was last looked at, and when that last changed.
    seen: (u64, Instant),
    /// Until when a peer whose session has failed may take in why.
    parting: Option<Instant>,
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
    /// Prepares the session that `hello` asks for, with what it `needs` and was granted.
    ///
    /// # Errors
    /// Why it is refused, to be told to the peer.
    pub(crate) fn new(
        host: &Host,
        limits: &Limits,
        leaving: &Leaving,
        remote: SocketAddr,
        hello: &Hello,
        needs: Needs,
        share: Share,
    ) -> anyhow::Result<(Self, Welcome)> {
        // Two places for each answer: one may be acknowledged later than its successor is asked for.
        let control = 2 * hello.session.answers_max();
        let send_depth = needs.send + control;
        let recv_depth = needs.receive + hello.session.requests_max();
        let cq = host.rnic.create_cq(send_depth + recv_depth).context("no completion queue")?;
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let config = QpConfig { send_depth, recv_depth, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = host.pd.create_qp(config).context("no queue pair")?;
        let buffers = Buffers { receive: recv_depth, payload_len: needs.receive_len, control };
        let channel = Channel::new(&host.pd, &qp, buffers)?;
        let (source, places) = (share.source, needs.places);
        let transfer = Transfer { host, qp: &qp, places, source, leaving };
        let (role, welcome) = Role::new(transfer, limits, hello, needs)?;
        let seen = (0, urnic::monotonic_now());
        let device = host.options.dev.clone();
        let link = Link::None;
        let parting = None;
        let (session, began) = (hello.session.name(), seen.1);
        let peer = Self {
            remote,
            session,
            began,
            share,
            link,
            device,
            qp,
            cq,
            channel,
            role,
            seen,
            parting,
        };
        Ok((peer, welcome))
    }

    /// When it was last seen to do something.
    pub(crate) const fn active_at(&self) -> Instant {
        self.seen.1
    }

    /// What it takes.
    pub(crate) const fn share(&self) -> Share {
        self.share
    }

    pub(crate) const fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(crate) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// What kind of session it has.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// What to tell of a session that has ended as it should; nothing of one that has failed and
    /// was told of.
    pub(crate) fn ended_well(&self, now: Instant) -> Option<Event> {
        if self.parting.is_some() {
            return None;
        }
        let Link::Open(connection) = &self.link else { return None };
        let counters = connection.counters();
        let (bytes_placed, fpdus_received, fpdus_sent) = counters.map_or((0, 0, 0), |counters| {
            (counters.rdma.bytes_placed, counters.mpa.fpdus, counters.fpdus_framed)
        });
        Some(Event::Ended {
            peer: self.remote,
            session: self.session.clone(),
            seconds: (now - self.began).as_secs_f64(),
            bytes_placed,
            fpdus_received,
            fpdus_sent,
        })
    }

    /// The peer has been accepted.
    pub(crate) fn connecting(mut self, connecting: Connecting) -> Self {
        self.link = Link::Connecting(connecting);
        self
    }

    /// The session has failed: ends the connection, at once unless the peer has been told why and
    /// has to hear it. Whether the peer has to stay for that.
    pub(crate) fn part(&mut self, now: Instant) -> bool {
        let Link::Open(connection) = &self.link else { return false };
        if !self.role.has_last_word() || self.parting.is_some() {
            connection.abort();
            return false;
        }
        // What was posted is finished first. Reads of the peer may still be answered: an error of
        // theirs would overtake the last word.
        connection.disconnect();
        self.parting = Some(now + PARTING_TIME);
        true
    }

    /// Whether the peer has heard the last word, or has had the time to.
    fn has_parted(&self, now: Instant) -> bool {
        while self.cq.poll().is_some() {}
        let Link::Open(connection) = &self.link else { return true };
        if self.parting.is_some_and(|until| now >= until) {
            connection.abort();
            return true;
        }
        loop {
            match connection.next_event(Duration::ZERO) {
                Ok(None) => return false,
                Ok(Some(ConnectionEvent::Closed(_))) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
    }

    /// Does what there is to do; with `look`, sees whether the peer has done anything for so long.
    ///
    /// # Errors
    /// Why the session has failed.
    pub(crate) fn turn(&mut self, now: Instant, look: Option<Duration>) -> anyhow::Result<Turn> {
        if self.parting.is_some() {
            return Ok(if self.has_parted(now) { Turn::Gone } else { Turn::Stays });
        }
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
            if let Err(error) = self.completed(&wc) {
                return self.failed(error);
            }
        }
        if let Err(error) = self.role.turn(&self.qp, &mut self.channel) {
            return self.failed(error);
        }
        if let Link::Open(connection) = &self.link
            && let Some(event) = connection.next_event(Duration::ZERO)?
        {
            return self.happened(&event);
        }
        if let Some(idle_max) = look {
            self.look(now, idle_max)?;
        }
        Ok(Turn::Stays)
    }

    fn completed(&mut self, wc: &Wc) -> anyhow::Result<()> {
        let Self { qp, channel, role, .. } = self;
        match wc.opcode {
            WcOpcode::Recv if wc.solicited => {
                let message = channel.take_control(qp, wc)?;
                let answer = match message {
                    Control::CountersRequest => Some(Control::Counters(self.counters()?)),
                    Control::ProcessorTimeRequest => {
                        let ns = u64::try_from(processor_time().as_nanos()).unwrap_or(u64::MAX);
                        Some(Control::ProcessorTime { ns })
                    }
                    _ => None,
                };
                if let Some(answer) = answer {
                    return Ok(self.channel.send(&self.qp, &answer)?);
                }
                let placed = match &message {
                    Control::Verify { .. } => self.counters()?.bytes_placed,
                    _ => 0,
                };
                let Self { qp, channel, role, .. } = self;
                role.handle_control(qp, channel, message, placed)
            }
            WcOpcode::Recv | WcOpcode::RecvImmediate => role.handle_payload(qp, channel, wc),
            _ if wc.wr_id == CONTROL_SENT => {
                channel.sent();
                Ok(())
            }
            _ => role.handle_sent(qp, channel, wc),
        }
    }

    fn counters(&self) -> anyhow::Result<Counters> {
        let Link::Open(connection) = &self.link else { bail!("the connection is not open yet") };
        let counters = connection.counters().map_err(|_| anyhow!("the connection was lost"))?;
        Ok(Counters::of(&counters, &self.device))
    }

    /// Something could not be done. Once the connection is over that is no wonder.
    fn failed(&self, error: anyhow::Error) -> anyhow::Result<Turn> {
        if self.qp.state() == QpState::Error { self.ended() } else { Err(error) }
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
                // A segment that brings nothing new shows that the peer is there, and losses.
                let heard = counters.tcp.segments_received;
                counters.mpa.fpdus + counters.rdma.bytes_placed + counters.fpdus_framed + heard
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

/// How long a peer has to take in why its session has failed.
const PARTING_TIME: Duration = Duration::from_secs(5);
