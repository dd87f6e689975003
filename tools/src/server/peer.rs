//! One peer of the server: its connection, its queues, its session.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use urnic::{
    Connecting, ConnectionEvent, Qp, QpConfig, QpState, Wc, WcOpcode, WcStatus, monotonic_now,
};
use urnic_engine::time::Instant;

use crate::channel::{Buffers, CONTROL_SENT, Channel};
use crate::counters::Counters;
use crate::device::DeviceSpec;
use crate::host::Host;
use crate::measure::processor_time;
use crate::protocol::{Control, Hello, Welcome};
use crate::server::accounts::Grant;
use crate::server::activity::{Activity, quiet_max};
use crate::server::completions::{Completions, Reserved};
use crate::server::files::Transfer;
use crate::server::link::Link;
use crate::server::places::Source;
use crate::server::ready_peers::ReadyPeers;
use crate::server::resources::SessionResources;
use crate::server::role::Role;
use crate::server::{Event, Limits};
use crate::terminated::words;

#[derive(Debug)]
pub(crate) struct Peer {
    remote: SocketAddr,
    /// Kind of its session, and the name of its key, for the log.
    session: String,
    key: Option<String>,
    began: Instant,
    link: Link,
    device: Rc<DeviceSpec>,
    qp: Qp,
    /// Room for its completions in a shared queue.
    reserved: Reserved,
    channel: Channel,
    role: Role,
    activity: Activity,
    /// Control messages in both directions.
    control: u64,
    /// Time of the next check for activity of the peer.
    look_at: Instant,
    /// Time for which the peer is entered in the timers, if it is.
    entered: Option<Instant>,
    /// Deadline for a failed peer to receive the error message.
    parting: Option<Instant>,
    grant: Grant,
}

#[derive(Debug)]
pub(crate) struct PeerContext<'a> {
    pub(crate) host: &'a Host,
    pub(crate) device: &'a Rc<DeviceSpec>,
    pub(crate) limits: &'a Limits,
    pub(super) completions: &'a mut Completions,
    pub(super) ready_peers: &'a ReadyPeers,
}

/// State of a peer after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Stays,
    /// The peer has closed the connection, and all work is finished.
    Gone,
}

impl Peer {
    /// Prepares the session that `hello` asks for. An error is the refusal for the peer.
    pub(crate) fn new(
        peer_context: PeerContext<'_>,
        remote: SocketAddr,
        hello: &Hello,
        resources: SessionResources,
        grant: Grant,
    ) -> anyhow::Result<(Self, Welcome)> {
        let PeerContext { host, device, limits, completions, ready_peers } = peer_context;
        // Two entries for each answer: one may be acknowledged after its successor is requested.
        let control = 2 * hello.session.answers_max();
        let send_depth = resources.send + control;
        let recv_depth = resources.receive + hello.session.requests_max();
        let reserved = completions.reserve(send_depth + recv_depth)?;
        let (send_cq, recv_cq) = (reserved.cq.clone(), reserved.cq.clone());
        let config = QpConfig { send_depth, recv_depth, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = host.pd.create_qp(config).context("no queue pair")?;
        let buffers = Buffers { receive: recv_depth, payload_len: resources.receive_len, control };
        let channel = Channel::new(&host.pd, &qp, buffers)?;
        let own = ready_peers.waker(qp.number());
        let waker = &Waker::from(Arc::clone(&own));
        let (places, place) = (resources.places, grant.place().context("no place")?);
        let transfer = Transfer { host, qp: &qp, places, place, waker };
        let (role, welcome) = Role::new(transfer, limits, hello, resources)?;
        let now = monotonic_now();
        let peer = Self {
            remote,
            session: hello.session.name(),
            key: limits.key.clone(),
            began: now,
            link: Link::new(own),
            device: Rc::clone(device),
            qp,
            reserved,
            channel,
            role,
            activity: Activity::new(now),
            control: 0,
            look_at: now,
            entered: None,
            parting: None,
            grant,
        };
        Ok((peer, welcome))
    }

    pub(crate) const fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(crate) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(crate) fn source(&self) -> Source {
        self.grant.source()
    }

    pub(crate) const fn memory(&self) -> u64 {
        self.grant.memory()
    }

    /// Returns two times: when payload was last seen to cross, and when the session began.
    pub(crate) const fn last_of_use(&self) -> (Instant, Instant) {
        (self.activity.payload_at(), self.began)
    }

    /// Checks if payload has crossed since the last check.
    pub(crate) fn see_payload(&mut self, now: Instant) {
        let Self { activity, link, role, control, .. } = self;
        activity.see_payload(now, role.is_working(), || payload_of(link, *control));
    }

    /// Returns true if the session is over and only the reason has still to reach the peer.
    pub(crate) const fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// Adds the `time` for which this process was stopped to the deadlines.
    pub(crate) fn excuse(&mut self, time: Duration) {
        self.activity.excuse(time);
    }

    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// Name of its key.
    pub(crate) fn key(&self) -> Option<String> {
        self.key.clone()
    }

    /// Returns true if the peer must be polled in each turn, because its session polls memory.
    pub(crate) const fn watches_memory(&self) -> bool {
        self.role.watches_memory()
    }

    /// Builds the log event of a session; `None` for a failed one, which is in the log already.
    pub(crate) fn ended_well(&self, now: Instant) -> Option<Event> {
        if self.parting.is_some() {
            return None;
        }
        let connection = self.link.connection()?;
        let counters = connection.counters();
        let (bytes_placed, fpdus_received, fpdus_sent) = counters.map_or((0, 0, 0), |counters| {
            (counters.rdma.bytes_placed, counters.mpa.fpdus, counters.fpdus_framed)
        });
        Some(Event::Ended {
            peer: self.remote,
            key: self.key(),
            session: self.session.clone(),
            seconds: (now - self.began).as_secs_f64(),
            bytes_placed,
            fpdus_received,
            fpdus_sent,
        })
    }

    /// Starts the peer after it was accepted: its first check is at `look_at`.
    pub(crate) fn connecting(mut self, connecting: Connecting, look_at: Instant) -> Self {
        self.link.connecting(connecting);
        self.look_at = look_at;
        self
    }

    /// Time when the peer must be polled though no event has come.
    #[inline]
    pub(crate) fn due(&self) -> Instant {
        match (self.parting, self.role.due()) {
            (Some(until), _) => until,
            (None, Some(due)) => due.min(self.look_at),
            (None, None) => self.look_at,
        }
    }

    pub(crate) const fn entered(&mut self) -> &mut Option<Instant> {
        &mut self.entered
    }

    /// Ends the connection of a failed session, at once unless the reason must still reach the
    /// peer. Returns true if the peer must stay for that.
    pub(crate) fn part(&mut self, now: Instant) -> bool {
        let Some(connection) = self.link.connection() else { return false };
        if !self.role.has_last_word() || self.parting.is_some() {
            connection.abort();
            return false;
        }
        // Posted work is finished first: a Terminate about a Read would overtake the reason.
        connection.disconnect();
        self.parting = Some(now + PARTING_TIME);
        // Without this, nothing may have registered for the end of the connection.
        self.link.wake();
        true
    }

    /// Ends the session for a reason that is not the peer's fault, releases its place and sends the
    /// reason, unless the connection must end `at_once`. Returns true if the peer must stay.
    pub(crate) fn dismiss(&mut self, why: &str, at_once: bool, now: Instant) -> bool {
        self.grant.leave_place();
        let Some(connection) = self.link.connection() else { return false };
        let last_word = Control::Failed(why.to_owned());
        // RFC 5044 §7.1.2 (4): this end may not send before the peer's first FPDU.
        let is_mute = connection.counters().is_ok_and(|counters| counters.mpa.fpdus == 0);
        if at_once
            || is_mute
            || self.is_parting()
            || self.channel.send(&self.qp, &last_word).is_err()
        {
            connection.abort();
            return false;
        }
        connection.disconnect();
        self.parting = Some(now + PARTING_TIME);
        self.link.wake();
        true
    }

    fn parted(&self, now: Instant) -> Turn {
        let is_late = self.parting.is_some_and(|until| now >= until);
        if let Some(connection) = self.link.connection().filter(|_| is_late) {
            connection.abort();
        }
        if is_late || self.link.is_over() { Turn::Gone } else { Turn::Stays }
    }

    /// Handles a completion. An error is the reason why the session has failed.
    pub(crate) fn complete(&mut self, wc: &Wc) -> anyhow::Result<Turn> {
        if self.parting.is_some() {
            return Ok(Turn::Stays);
        }
        self.link.open()?;
        if wc.status != WcStatus::Success {
            return self.ended();
        }
        self.activity.note_completion();
        let done = self.completed(wc).and_then(|()| self.work());
        done.map_or_else(|error| self.failed(error), |()| Ok(Turn::Stays))
    }

    /// Handles an event of the connection or an answer of the file thread. Fails with the session.
    pub(crate) fn poll_ready(&mut self, now: Instant) -> anyhow::Result<Turn> {
        self.link.clear_ready();
        if self.parting.is_some() {
            return Ok(self.parted(now));
        }
        self.link.open()?;
        if let Err(error) = self.work() {
            return self.failed(error);
        }
        match self.link.end(&self.reserved.cq)? {
            Some(end) => self.happened(&end),
            None => Ok(Turn::Stays),
        }
    }

    /// Does the work for which no completion is awaited.
    #[inline]
    fn work(&mut self) -> anyhow::Result<()> {
        self.role.turn(&self.qp, &mut self.channel)
    }

    /// Polls the memory of its session.
    #[inline]
    pub(crate) fn watch(&mut self) -> anyhow::Result<Turn> {
        if self.parting.is_none() {
            self.link.open()?;
            if let Err(error) = self.work() {
                return self.failed(error);
            }
        }
        Ok(Turn::Stays)
    }

    /// Handles the peer's timer: does deferred work, and checks if the peer was active within
    /// `idle_max`. The next check is after `interval` at most. Calls `active` if it was.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        idle_max: Duration,
        interval: Duration,
        active: impl FnOnce(),
    ) -> anyhow::Result<Turn> {
        if self.parting.is_some() {
            return Ok(self.parted(now));
        }
        if let Err(error) = self.work() {
            return self.failed(error);
        }
        if now < self.look_at {
            return Ok(Turn::Stays);
        }
        let (link, waits) = (&self.link, self.role.is_working());
        let (control, quiet_max) = (self.control, quiet_max(self.role.file_len()));
        self.activity.look_for_payload(now, quiet_max, waits, || payload_of(link, control))?;
        if self.activity.look(now, waits, || link.counted()) {
            active();
            self.look_at = now + interval;
        } else {
            let given_up_at = self.activity.check(now, idle_max)?;
            self.look_at = given_up_at.min(now + interval);
        }
        Ok(Turn::Stays)
    }

    fn completed(&mut self, wc: &Wc) -> anyhow::Result<()> {
        let Self { qp, channel, role, .. } = self;
        match wc.opcode {
            WcOpcode::Recv if wc.solicited => {
                self.control += 1;
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
                    Control::Verify { .. } => self.counters()?.figures.bytes_placed,
                    _ => 0,
                };
                let Self { qp, channel, role, .. } = self;
                role.handle_control(qp, channel, message, placed)?;
                self.activity.ask();
                Ok(())
            }
            WcOpcode::Recv | WcOpcode::RecvImmediate => role.handle_payload(qp, channel, wc),
            _ if wc.wr_id == CONTROL_SENT => {
                self.control += 1;
                channel.sent();
                Ok(())
            }
            _ => role.handle_sent(qp, channel, wc),
        }
    }

    fn counters(&self) -> anyhow::Result<Counters> {
        let connection = self.link.connection().context("the connection is not open yet")?;
        let counters = connection.counters().map_err(|_| anyhow!("the connection was lost"))?;
        Ok(Counters::of(&counters, &self.device))
    }

    /// Ignores an error after the end of the connection: the event of the end decides.
    fn failed(&mut self, error: anyhow::Error) -> anyhow::Result<Turn> {
        if self.qp.state() == QpState::Error { self.ended() } else { Err(error) }
    }

    /// Handles a flushed request: the connection is over, and its events say why.
    fn ended(&mut self) -> anyhow::Result<Turn> {
        let end = self.link.end_of_flushed()?.context("the connection was lost")?;
        self.happened(&end)
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
            // A client that no longer wants the rest withdraws the memory into which it is read.
            ConnectionEvent::Terminated(terminate) if self.role.is_get() => {
                bail!("the client ended the transfer: {}", words(terminate))
            }
            ConnectionEvent::Terminated(terminate) => {
                bail!("the peer ended the session: {}", words(terminate))
            }
            _ => Ok(Turn::Stays),
        }
    }
}

impl Drop for Peer {
    /// The queue pair's share of the queue shrinks to its waiting completions.
    fn drop(&mut self) {
        self.qp.end_completions();
    }
}

/// FPDUs of payload that have crossed on `link`: all but `control` messages.
fn payload_of(link: &Link, control: u64) -> Option<u64> {
    link.fpdus().map(|fpdus| fpdus.saturating_sub(control))
}

/// Time for a peer to receive the reason why its session has failed.
const PARTING_TIME: Duration = Duration::from_secs(5);
