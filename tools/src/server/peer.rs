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
use crate::server::activity::{Activity, quiet_max};
use crate::server::completions::{Completions, Reserved};
use crate::server::files::Transfer;
use crate::server::ledger::Grant;
use crate::server::link::Link;
use crate::server::needs::Needs;
use crate::server::news::News;
use crate::server::places::Source;
use crate::server::role::Role;
use crate::server::{Event, Limits};
use crate::terminated::words;

/// A peer with its session.
#[derive(Debug)]
pub(crate) struct Peer {
    remote: SocketAddr,
    /// What kind of session it has, for the log.
    session: String,
    began: Instant,
    link: Link,
    /// What carries the connection.
    device: Rc<DeviceSpec>,
    qp: Qp,
    /// Where its completions have room.
    reserved: Reserved,
    channel: Channel,
    role: Role,
    activity: Activity,
    /// Control messages that have crossed in both directions.
    control: u64,
    /// When it is seen next whether the peer does anything.
    look_at: Instant,
    /// When it is entered to be due, if it is.
    entered: Option<Instant>,
    /// Until when a peer whose session has failed may take in why.
    parting: Option<Instant>,
    grant: Grant,
}

/// What peers are made of.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    pub(crate) host: &'a Host,
    pub(crate) device: &'a Rc<DeviceSpec>,
    pub(crate) limits: &'a Limits,
    pub(super) completions: &'a mut Completions,
    pub(super) news: &'a News,
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
        means: Means<'_>,
        remote: SocketAddr,
        hello: &Hello,
        needs: Needs,
        grant: Grant,
    ) -> anyhow::Result<(Self, Welcome)> {
        let Means { host, device, limits, completions, news } = means;
        // Two places for each answer: one may be acknowledged later than its successor is asked for.
        let control = 2 * hello.session.answers_max();
        let send_depth = needs.send + control;
        let recv_depth = needs.receive + hello.session.requests_max();
        let reserved = completions.reserve(send_depth + recv_depth)?;
        let (send_cq, recv_cq) = (reserved.cq.clone(), reserved.cq.clone());
        let config = QpConfig { send_depth, recv_depth, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = host.pd.create_qp(config).context("no queue pair")?;
        let buffers = Buffers { receive: recv_depth, payload_len: needs.receive_len, control };
        let channel = Channel::new(&host.pd, &qp, buffers)?;
        let own = news.waker(qp.number());
        let waker = &Waker::from(Arc::clone(&own));
        let (places, place) = (needs.places, grant.place().context("no place")?);
        let transfer = Transfer { host, qp: &qp, places, place, waker };
        let (role, welcome) = Role::new(transfer, limits, hello, needs)?;
        let now = monotonic_now();
        let peer = Self {
            remote,
            session: hello.session.name(),
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

    /// Bytes of memory that it was granted.
    pub(crate) const fn memory(&self) -> u64 {
        self.grant.memory()
    }

    /// When payload last crossed, as far as was looked, and when the session began.
    pub(crate) const fn last_of_use(&self) -> (Instant, Instant) {
        (self.activity.payload_at(), self.began)
    }

    /// Looks whether payload has crossed since the last look.
    pub(crate) fn see_payload(&mut self, now: Instant) {
        let Self { activity, link, role, control, .. } = self;
        activity.see_payload(now, role.is_working(), || payload_of(link, *control));
    }

    /// Returns true if the session is over and the peer only has to take in why.
    pub(crate) const fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// This process was stopped for so long: the peer could not be heard.
    pub(crate) fn excuse(&mut self, time: Duration) {
        self.activity.excuse(time);
    }

    /// What kind of session it has.
    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// Whether it is to be turned each time, because its session looks at memory.
    pub(crate) const fn watches_memory(&self) -> bool {
        self.role.watches_memory()
    }

    /// What to tell of a session that has ended as it should; nothing of one that has failed and
    /// was told of.
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
            session: self.session.clone(),
            seconds: (now - self.began).as_secs_f64(),
            bytes_placed,
            fpdus_received,
            fpdus_sent,
        })
    }

    /// The peer has been accepted: it is looked at by `look_at`.
    pub(crate) fn connecting(mut self, connecting: Connecting, look_at: Instant) -> Self {
        self.link.connecting(connecting);
        self.look_at = look_at;
        self
    }

    /// When it is to be turned though nothing has happened.
    #[inline]
    pub(crate) fn due(&self) -> Instant {
        match (self.parting, self.role.due()) {
            (Some(until), _) => until,
            (None, Some(due)) => due.min(self.look_at),
            (None, None) => self.look_at,
        }
    }

    /// When it is entered to be due.
    pub(crate) const fn entered(&mut self) -> &mut Option<Instant> {
        &mut self.entered
    }

    /// The session has failed: ends the connection, at once unless the peer has been told why and
    /// has to hear it. Whether the peer has to stay for that.
    pub(crate) fn part(&mut self, now: Instant) -> bool {
        let Some(connection) = self.link.connection() else { return false };
        if !self.role.has_last_word() || self.parting.is_some() {
            connection.abort();
            return false;
        }
        // What was posted is finished first. Reads of the peer may still be answered: an error of
        // theirs would overtake the last word.
        connection.disconnect();
        self.parting = Some(now + PARTING_TIME);
        // Nothing may have asked for its end yet.
        self.link.wake();
        true
    }

    /// Ends the session for a reason that is not the peer's, gives its place back and tells the peer why,
    /// unless the connection has to end `at_once`. Returns true if the peer has to stay for that.
    pub(crate) fn dismiss(&mut self, why: &str, at_once: bool, now: Instant) -> bool {
        self.grant.leave_place();
        let Some(connection) = self.link.connection() else { return false };
        let last_word = Control::Failed(why.to_owned());
        // RFC 5044 §7.1.2 (4): nothing can be said before the peer's first FPDU.
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

    /// Whether the peer has heard the last word, or has had the time to.
    fn parted(&self, now: Instant) -> Turn {
        let is_late = self.parting.is_some_and(|until| now >= until);
        if let Some(connection) = self.link.connection().filter(|_| is_late) {
            connection.abort();
        }
        if is_late || self.link.is_over() { Turn::Gone } else { Turn::Stays }
    }

    /// Something of it has completed.
    ///
    /// # Errors
    /// Why the session has failed.
    pub(crate) fn complete(&mut self, wc: &Wc) -> anyhow::Result<Turn> {
        if self.parting.is_some() {
            return Ok(Turn::Stays);
        }
        self.link.open()?;
        if wc.status != WcStatus::Success {
            return self.ended();
        }
        self.activity.hear();
        let done = self.completed(wc).and_then(|()| self.work());
        done.map_or_else(|error| self.failed(error), |()| Ok(Turn::Stays))
    }

    /// There is news of its connection or of its file.
    ///
    /// # Errors
    /// Why the session has failed.
    pub(crate) fn hear(&mut self, now: Instant) -> anyhow::Result<Turn> {
        self.link.heard();
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

    /// Does what no completion asks for.
    #[inline]
    fn work(&mut self) -> anyhow::Result<()> {
        self.role.turn(&self.qp, &mut self.channel)
    }

    /// Looks at the memory of its session.
    ///
    /// # Errors
    /// Why the session has failed.
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

    /// It is due: does what was deferred, and looks whether the peer has done anything for
    /// `idle_max`, and then once more after `interval` at the latest. `active` is called when it has.
    ///
    /// # Errors
    /// Why the session has failed.
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
                    Control::Verify { .. } => self.counters()?.bytes_placed,
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

    /// Something could not be done. Once the connection is over that is no wonder.
    fn failed(&mut self, error: anyhow::Error) -> anyhow::Result<Turn> {
        if self.qp.state() == QpState::Error { self.ended() } else { Err(error) }
    }

    /// A request was flushed: the connection is over; its events say why.
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
            // A client that does not want the rest withdraws the memory that it is read into.
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
    /// No completion of it comes any more: of its room, what waits takes as much as it needs.
    fn drop(&mut self) {
        self.qp.end_completions();
    }
}

/// FPDUs of payload that have crossed on `link`, beside so many of control messages.
fn payload_of(link: &Link, control: u64) -> Option<u64> {
    link.fpdus().map(|fpdus| fpdus.saturating_sub(control))
}

/// How long a peer has to take in why its session has failed.
const PARTING_TIME: Duration = Duration::from_secs(5);
