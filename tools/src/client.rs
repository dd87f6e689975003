//! One session, at the end that asks.

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
use urnic::{Connection, Cq, Qp, QpConfig, SendWr, Wc, WcOpcode, WcStatus, WrId, monotonic_now};
use urnic_engine::time::Instant;

use crate::channel::{Buffers, CONTROL_SENT, Channel};
use crate::client::failure::explain;
use crate::client::waiting::Waiting;
use crate::counters::Counters;
use crate::device::{self, Problem};
use crate::host::{Host, Payload};
use crate::interrupt::{Interrupt, Interrupted};
use crate::protocol::{Control, Hello, Session, Welcome};

/// What the client side of a session is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depths {
    /// Requests of the session in flight at a time.
    pub(crate) send: usize,
    /// Payload messages to receive at a time, and their length.
    pub(crate) recv: usize,
    pub(crate) recv_len: usize,
}

/// A session with `urnic serve`.
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
    /// What ends the session early, where its command does not look itself.
    interrupt: Interrupt,
}

/// What tells a server that its client, which asks for nothing, is still there.
#[derive(Clone, Copy, Debug)]
struct SignsOfLife {
    /// How often one is sent.
    interval: Duration,
    last: Instant,
    /// Whether the last one has not been answered.
    open: bool,
}

/// Something that has happened in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    /// The request with this name is done.
    Done(WrId),
    /// Payload has arrived, and keeps its buffer until [`Client::release`].
    Payload(Wc),
    /// The server says something.
    Control(Control),
}

/// Direction of a session's payload; `None` where it depends on the operations.
const fn payload(session: &Session) -> Option<Payload> {
    Some(match session {
        Session::Memory => return None,
        Session::Echo | Session::PingPong(_) | Session::Both { .. } => Payload::Both,
        Session::Sink | Session::Put { .. } => Payload::ToPeer,
        Session::Get { .. } => Payload::FromPeer,
    })
}

impl<'h> Client<'h> {
    /// Connects to the first of `remotes` that answers, and asks for a session.
    ///
    /// # Errors
    /// Why there is none, of the last; the message says what to do.
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
        // Two places for each request: one may be acknowledged later than its answer comes.
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
        let options = host.options.connect_options(hello.emit());
        let connecting = host.endpoint.connect(remote, &qp, &options)?;
        let connection =
            connecting.wait(host.options.timeout).map_err(|error| explain(remote, host, &error))?;
        let welcome = Welcome::parse(&connection.terms().private_data)
            .with_context(|| format!("{remote} cannot be worked with"))?;
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

    /// The server.
    pub(crate) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// From now on a signal ends the session, with [`Interrupted`].
    pub(crate) fn end_on(&mut self, interrupt: &Interrupt) {
        self.interrupt = interrupt.clone();
    }

    /// Reads payload that has arrived.
    pub(crate) fn read_payload(&self, wc: &Wc) -> anyhow::Result<Vec<u8>> {
        self.channel.payload(wc)
    }

    /// Gives the buffer of payload back.
    pub(crate) fn release(&self, wc: &Wc) -> anyhow::Result<()> {
        self.channel.repost(&self.qp, wc).map_err(|error| self.reason(error))
    }

    /// Posts a request.
    #[inline]
    pub(crate) fn post(&self, wr: SendWr) -> anyhow::Result<()> {
        self.qp.post_send(wr).map_err(|_| self.lost())
    }

    /// Sends a control message.
    pub(crate) fn send(&mut self, message: &Control) -> anyhow::Result<()> {
        let sent = self.channel.send(&self.qp, message);
        sent.map_err(|_| self.lost())
    }

    /// Takes what has happened, without waiting.
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
                        // Credits are not what this end waits for: they answer no question.
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

    /// Waits until something happens.
    ///
    /// # Errors
    /// When nothing does within the timeout, or the session has ended.
    pub(crate) fn wait(&mut self) -> anyhow::Result<Happened> {
        loop {
            if let Some(happened) = self.poll()? {
                return Ok(happened);
            }
            self.idle(self.host.options.timeout)?;
        }
    }

    /// Nothing has happened: lets the endpoint work, for `sleep_max` at most, and looks after the
    /// time.
    ///
    /// # Errors
    /// When nothing has happened for longer than the timeout.
    pub(crate) fn idle(&mut self, sleep_max: Duration) -> anyhow::Result<()> {
        // Short sleeps show when this program itself was stopped.
        self.host.endpoint.turn(sleep_max.min(SIGNAL_INTERVAL))?;
        match self.waiting.is_over(monotonic_now()) {
            Some(time) => Err(self.silent(time)),
            None => Ok(()),
        }
    }

    /// Returns true if this process was stopped since the last look. Look before taking what has happened:
    /// it may be the end of the session for that.
    #[inline]
    pub(crate) fn was_stopped(&mut self, now: Instant) -> bool {
        self.waiting.was_stopped(now)
    }

    /// It is not the server that this end waits for: lets the endpoint work, for `sleep_max` at
    /// most, and gives a sign of life when one is due.
    ///
    /// # Errors
    /// When the last one was not answered within the timeout, or the session has ended.
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

    /// What the server sent while this process was stopped is still to be read.
    fn excuse_silence(&mut self, now: Instant) {
        if self.was_stopped(now) && self.life.open {
            self.life.last = now;
        }
    }

    /// Does nothing for a while, and stays in the session.
    ///
    /// # Errors
    /// As [`pause`](Self::pause), and when the server says something.
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

    /// Whether a file can cross: without a place for a chunk it never would.
    fn check_places(&self) -> anyhow::Result<()> {
        ensure!(self.welcome.credits > 0, "{} has no place for a chunk of a file", self.remote);
        Ok(())
    }

    /// Waits for a control message.
    pub(crate) fn wait_control(&mut self) -> anyhow::Result<Control> {
        loop {
            match self.wait()? {
                Happened::Control(message) => return Ok(message),
                Happened::Payload(_) => return Err(self.unasked()),
                Happened::Done(_) => {}
            }
        }
    }

    /// Asks the server for its counters: the answer comes when all that was sent has arrived.
    pub(crate) fn ask_counters(&mut self) -> anyhow::Result<()> {
        self.send(&Control::CountersRequest)
    }

    /// Waits for the counters asked for. Credits that come meanwhile are of no use any more.
    pub(crate) fn wait_counters(&mut self) -> anyhow::Result<Counters> {
        loop {
            match self.wait_control()? {
                Control::Counters(counters) => return Ok(counters),
                Control::Credit(_) => {}
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    /// The processor time that the server has used so far.
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

    /// Ends the server's part of a session of both; how many messages that had.
    pub(crate) fn stop(&mut self) -> anyhow::Result<u64> {
        self.send(&Control::Stop)?;
        match self.wait_control()? {
            Control::Stopped { messages } => Ok(messages),
            other => Err(self.unexpected(&other)),
        }
    }

    /// This end's counters.
    pub(crate) fn counters(&self) -> anyhow::Result<Counters> {
        let counters = self.connection.counters().map_err(|_| self.lost())?;
        Ok(Counters::of(&counters, &self.host.options.dev))
    }
}

/// The file at the other end is not the one that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file that has arrived is not the one that was sent; was it changed meanwhile? The next \
     attempt begins anew"
)]
pub(crate) struct Unverified;

/// How soon a signal is noticed at the latest.
pub(crate) const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
