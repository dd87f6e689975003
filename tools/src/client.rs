//! A session at the client.

mod close;
mod failure;
mod get;
mod pieces;
mod put;
mod waiting;

pub(crate) use close::close_all;
pub(crate) use get::get;
pub(crate) use put::{Transferred, put};

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use urnic::{
    Connection, Cq, Error, Qp, QpConfig, SendWr, Wc, WcOpcode, WcStatus, WrId, monotonic_now,
};
use urnic_engine::time::Instant;

use crate::channel::{Buffers, CONTROL_SENT, Channel};
use crate::client::failure::explain;
use crate::client::waiting::Waiting;
use crate::counters::Counters;
use crate::device::{self, Problem};
use crate::host::{Host, Payload};
use crate::interrupt::{Interrupt, Interrupted};
use crate::keys;
use crate::protocol::auth::{Challenge, Opening, proven_reply};
use crate::protocol::{Control, Hello, Session, Welcome};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Depths {
    pub(crate) send: usize,
    /// Payload messages to receive at a time, and their length in bytes.
    pub(crate) recv: usize,
    pub(crate) recv_len: usize,
}

#[derive(Debug)]
pub(crate) struct Client<'h> {
    pub(crate) host: &'h Host,
    pub(crate) qp: Qp,
    pub(crate) welcome: Welcome,
    pub(crate) connection: Connection,
    remote: SocketAddr,
    channel: Channel,
    cq: Cq,
    waiting: Waiting,
    life: SignsOfLife,
    /// Ends commands that do not check for signals themselves.
    interrupt: Interrupt,
}

/// Messages that show a server that its idle client is still there.
#[derive(Clone, Copy, Debug)]
struct SignsOfLife {
    interval: Duration,
    last: Instant,
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    Done(WrId),
    /// The payload occupies its buffer until [`Client::release`].
    Payload(Wc),
    Control(Control),
}

/// Asks a server for a challenge, by a connection that the server rejects.
fn challenge(host: &Host, remote: SocketAddr) -> anyhow::Result<Challenge> {
    let cq = host.rnic.create_cq(2)?;
    let depths = QpConfig { send_depth: 1, recv_depth: 1, ..QpConfig::new(&cq) };
    let qp = host.pd.create_qp(depths).context("making a queue pair")?;
    let options = host.options.connect_options(Opening::ask());
    let connecting = host.endpoint.connect(remote, &qp, &options)?;
    match connecting.wait(host.options.timeout) {
        Ok(_) => bail!("cannot use {remote}: it asks for no key, and proves nothing (--key)"),
        Err(Error::Rejected(rejection)) => Challenge::parse(&rejection.private_data)
            .ok_or_else(|| explain(remote, host, &Error::Rejected(rejection))),
        Err(error) => Err(explain(remote, host, &error)),
    }
}

/// Direction of a session's payload; `None` if it depends on the operations.
const fn payload(session: &Session) -> Option<Payload> {
    Some(match session {
        Session::Memory => return None,
        Session::Echo | Session::PingPong(_) | Session::Both { .. } => Payload::Both,
        Session::Sink | Session::Put { .. } => Payload::ToPeer,
        Session::Get { .. } => Payload::FromPeer,
    })
}

impl<'h> Client<'h> {
    /// Connects to the first of `remotes` that answers, and requests a session. The error is that
    /// of the last attempt, and says what to do.
    pub(crate) fn connect(
        host: &'h Host,
        remotes: &[SocketAddr],
        hello: &Hello,
        depths: Depths,
    ) -> anyhow::Result<Self> {
        if let Some(problem) = device::problem(&host.options.dev).filter(Problem::is_down) {
            bail!("{problem}");
        }
        if host.options.dev.uses_dhcp() && remotes.iter().any(SocketAddr::is_ipv4) {
            let address = host.endpoint.wait_address(host.options.timeout);
            address.with_context(|| format!("waiting for an address on {}", host.options.dev))?;
        }
        let mut failed = anyhow!("no address to connect to");
        for remote in remotes {
            match Self::connect_to(host, *remote, hello, depths) {
                Ok(client) => return Ok(client),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn connect_to(
        host: &'h Host,
        remote: SocketAddr,
        hello: &Hello,
        depths: Depths,
    ) -> anyhow::Result<Self> {
        // Two entries for each request: one may be acknowledged after its answer comes.
        let control = 2 * hello.session.requests_max();
        let send_depth = depths.send + control;
        let recv_depth = depths.recv + hello.session.answers_max();
        let cq = host.rnic.create_cq(send_depth + recv_depth)?;
        let qp = host
            .pd
            .create_qp(QpConfig { send_depth, recv_depth, ..QpConfig::new(&cq) })
            .context("making a queue pair")?;
        let buffers = Buffers { receive: recv_depth, payload_len: depths.recv_len, control };
        let channel = Channel::new(&host.pd, &qp, buffers)?;
        let request = match &host.key {
            Some(key) => {
                let challenge = challenge(host, remote)?;
                Opening::prove(key, &challenge, keys::random()?, hello)
            }
            None => hello.emit(),
        };
        let options = host.options.connect_options(request.clone());
        let connecting = host.endpoint.connect(remote, &qp, &options)?;
        let connection =
            connecting.wait(host.options.timeout).map_err(|error| explain(remote, host, &error))?;
        let reply = &connection.terms().private_data[..];
        let reply = match &host.key {
            Some(key) => proven_reply(key, &request, reply).with_context(|| {
                format!(
                    "{remote} does not prove that it has the key: it is another server, or its \
                     Reply was changed on the way"
                )
            })?,
            None => reply,
        };
        let welcome = Welcome::parse(reply).with_context(|| format!("cannot use {remote}"))?;
        if let Some(payload) = payload(&hello.session) {
            host.note_framing(connection.terms().framing, payload);
        }
        let interval = Duration::from_millis(u64::from(welcome.idle_ms / 4).max(1));
        let life = SignsOfLife { interval, last: monotonic_now(), open: false };
        let file_len = match &hello.session {
            Session::Put { .. } => hello.len,
            Session::Get { .. } => welcome.len,
            _ => 0,
        };
        let peer_max = Duration::from_millis(welcome.idle_ms.into());
        let waiting = Waiting::new(host.options.timeout, file_len, peer_max);
        let interrupt = Interrupt::default();
        let client =
            Self { host, qp, welcome, connection, remote, channel, cq, waiting, life, interrupt };
        Ok(client)
    }

    pub(crate) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// From now on a signal ends the session, with [`Interrupted`].
    pub(crate) fn end_on(&mut self, interrupt: &Interrupt) {
        self.interrupt = interrupt.clone();
    }

    pub(crate) fn read_payload(&self, wc: &Wc) -> anyhow::Result<Vec<u8>> {
        self.channel.payload(wc)
    }

    pub(crate) fn release(&self, wc: &Wc) -> anyhow::Result<()> {
        self.channel.repost(&self.qp, wc).map_err(|error| self.reason(error))
    }

    #[inline]
    pub(crate) fn post(&self, wr: SendWr) -> anyhow::Result<()> {
        self.qp.post_send(wr).map_err(|_| self.lost())
    }

    pub(crate) fn send(&mut self, message: &Control) -> anyhow::Result<()> {
        let sent = self.channel.send(&self.qp, message);
        sent.map_err(|_| self.lost())
    }

    /// Does not wait.
    #[inline]
    pub(crate) fn poll(&mut self) -> anyhow::Result<Option<Happened>> {
        if self.interrupt.has_come() {
            return Err(Interrupted.into());
        }
        while let Some(wc) = self.cq.poll() {
            if wc.status != WcStatus::Success {
                return Err(self.lost());
            }
            match wc.opcode {
                WcOpcode::Recv if wc.solicited => {
                    let taken = self.channel.take_control(&self.qp, &wc);
                    match taken.map_err(|error| self.reason(error))? {
                        Control::Failed(reason) => return Err(self.ended(&reason)),
                        Control::Working => self.waiting.told(monotonic_now()),
                        // Credits answer no question, so they do not end a wait.
                        message @ Control::Credit(_) => {
                            return Ok(Some(Happened::Control(message)));
                        }
                        Control::NotVerified => return Err(Unverified.into()),
                        Control::Counters(_) if self.life.open => self.life.open = false,
                        message => {
                            self.waiting.end();
                            return Ok(Some(Happened::Control(message)));
                        }
                    }
                }
                WcOpcode::Recv | WcOpcode::RecvImmediate => {
                    return Ok(Some(Happened::Payload(wc)));
                }
                _ if wc.wr_id == CONTROL_SENT => self.channel.sent(),
                _ => {
                    self.waiting.end();
                    return Ok(Some(Happened::Done(wc.wr_id)));
                }
            }
        }
        Ok(None)
    }

    /// Fails if no event comes within the timeout, or the session has ended.
    pub(crate) fn wait(&mut self) -> anyhow::Result<Happened> {
        loop {
            if let Some(happened) = self.poll()? {
                return Ok(happened);
            }
            self.idle(self.host.options.timeout)?;
        }
    }

    /// Call when there is no event: lets the endpoint work, for `sleep_max` at most. Fails if no
    /// event has come for longer than the timeout.
    pub(crate) fn idle(&mut self, sleep_max: Duration) -> anyhow::Result<()> {
        // Short sleeps show if this process itself was stopped.
        self.host.endpoint.turn(sleep_max.min(SIGNAL_INTERVAL))?;
        match self.waiting.is_over(monotonic_now()) {
            Some(time) => Err(self.silent(time)),
            None => Ok(()),
        }
    }

    /// Returns true if this process was stopped since the last check. Check before handling events:
    /// the stop may be the reason why the session has ended.
    #[inline]
    pub(crate) fn was_stopped(&mut self, now: Instant) -> bool {
        self.waiting.was_stopped(now)
    }

    /// Call when this end does not wait for the server: lets the endpoint work, for `sleep_max` at
    /// most, and sends a keep-alive when due. Fails if the last one was not answered in time.
    pub(crate) fn pause(&mut self, sleep_max: Duration) -> anyhow::Result<()> {
        let now = monotonic_now();
        self.waiting.end();
        self.excuse_silence(now);
        let since = now - self.life.last;
        if self.life.open && since >= self.host.options.timeout {
            return Err(self.silent(self.host.options.timeout));
        }
        if !self.life.open && since >= self.life.interval {
            self.send(&Control::CountersRequest)?;
            self.life = SignsOfLife { last: now, open: true, ..self.life };
        }
        self.host.endpoint.turn(sleep_max.min(self.life.interval).min(SIGNAL_INTERVAL))?;
        self.excuse_silence(monotonic_now());
        Ok(())
    }

    /// Restarts the deadline of the keep-alive if this process was stopped: messages may wait.
    fn excuse_silence(&mut self, now: Instant) {
        if self.was_stopped(now) && self.life.open {
            self.life.last = now;
        }
    }

    /// Waits for `time`, and keeps the session alive. Fails if the server sends a message.
    pub(crate) fn rest(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = monotonic_now() + time;
        loop {
            while let Some(happened) = self.poll()? {
                match happened {
                    Happened::Control(message) => return Err(self.unexpected(&message)),
                    Happened::Payload(_) => return Err(self.unasked()),
                    Happened::Done(_) => {}
                }
            }
            let now = monotonic_now();
            if now >= end {
                return Ok(());
            }
            self.pause((end - now).min(SIGNAL_INTERVAL))?;
        }
    }

    /// Fails if the server has no buffer for a chunk: no file could be transferred.
    fn check_places(&self) -> anyhow::Result<()> {
        ensure!(self.welcome.credits > 0, "{} has no room for a chunk of a file", self.remote);
        Ok(())
    }

    pub(crate) fn wait_control(&mut self) -> anyhow::Result<Control> {
        loop {
            match self.wait()? {
                Happened::Control(message) => return Ok(message),
                Happened::Payload(_) => return Err(self.unasked()),
                Happened::Done(_) => {}
            }
        }
    }

    /// The answer comes when all data sent before has arrived.
    pub(crate) fn ask_counters(&mut self) -> anyhow::Result<()> {
        self.send(&Control::CountersRequest)
    }

    /// Ignores credits that come meanwhile.
    pub(crate) fn wait_counters(&mut self) -> anyhow::Result<Counters> {
        loop {
            match self.wait_control()? {
                Control::Counters(counters) => return Ok(counters),
                Control::Credit(_) => {}
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    pub(crate) fn processor_time(&mut self) -> anyhow::Result<Duration> {
        self.send(&Control::ProcessorTimeRequest)?;
        loop {
            match self.wait_control()? {
                Control::ProcessorTime { ns } => return Ok(Duration::from_nanos(ns)),
                Control::Credit(_) => {}
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    /// Returns the number of messages of the server.
    pub(crate) fn stop(&mut self) -> anyhow::Result<u64> {
        self.send(&Control::Stop)?;
        match self.wait_control()? {
            Control::Stopped { messages } => Ok(messages),
            other => Err(self.unexpected(&other)),
        }
    }

    pub(crate) fn counters(&self) -> anyhow::Result<Counters> {
        let counters = self.connection.counters().map_err(|_| self.lost())?;
        Ok(Counters::of(&counters, &self.host.options.dev))
    }
}

/// The file at the other end differs from the file that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file that has arrived is not the one that was sent; was it changed meanwhile? The next \
     attempt begins anew"
)]
pub(crate) struct Unverified;

/// Longest delay until a signal is noticed.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
