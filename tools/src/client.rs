//! One session, at the end that asks.

mod get;
mod pieces;
mod put;

pub(crate) use get::get;
pub(crate) use put::{Transferred, put};

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use urnic::driver::{Connection, ConnectionEvent, EndpointError, monotonic_now};
use urnic::stream::StartupFailure;
use urnic::time::Instant;
use urnic::types::WrId;
use urnic::verbs::{Cq, Qp, QpConfig, SendWr, Wc, WcOpcode, WcStatus};

use crate::channel::{CONTROL_SENT, Channel, OUTBOX_DEPTH};
use crate::counters::Counters;
use crate::host::Host;
use crate::protocol::{CONTROL_DEPTH, Control, Hello, Welcome, refusal_from};

/// What the client side of a session is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depths {
    /// Requests of the session under way at a time.
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
    waiting_since: Option<Instant>,
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

impl<'h> Client<'h> {
    /// Connects to `remote` and asks for a session.
    ///
    /// # Errors
    /// Why there is none; the message says what to do.
    pub(crate) fn connect(
        host: &'h Host,
        remote: SocketAddr,
        hello: &Hello,
        depths: Depths,
    ) -> anyhow::Result<Self> {
        let send_depth = depths.send + OUTBOX_DEPTH;
        let recv_depth = depths.recv + CONTROL_DEPTH;
        let cq = host.rnic.create_cq(send_depth + recv_depth);
        let qp = host
            .pd
            .create_qp(QpConfig {
                send_cq: cq.clone(),
                recv_cq: cq.clone(),
                send_depth,
                recv_depth,
            })
            .context("making a queue pair")?;
        let channel = Channel::new(&host.pd, &qp, recv_depth, depths.recv_len)?;
        let options = host.options.connect_options(hello.emit());
        if host.options.dev.uses_dhcp() && remote.is_ipv4() {
            let address = host.endpoint.wait_address(host.options.timeout);
            address.with_context(|| format!("waiting for an address on {}", host.options.dev))?;
        }
        let connecting = host.endpoint.connect(remote, &qp, &options)?;
        let connection =
            connecting.wait(host.options.timeout).map_err(|error| explain(remote, host, &error))?;
        let welcome = Welcome::parse(&connection.terms().private_data)
            .with_context(|| format!("{remote} cannot be worked with"))?;
        Ok(Self { host, qp, welcome, connection, remote, channel, cq, waiting_since: None })
    }

    /// Reads payload that has arrived.
    pub(crate) fn read_payload(&self, wc: &Wc) -> anyhow::Result<Vec<u8>> {
        self.channel.payload(wc)
    }

    /// Gives the buffer of payload back.
    pub(crate) fn release(&self, wc: &Wc) -> anyhow::Result<()> {
        self.channel.repost(&self.qp, wc)
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
        while let Some(wc) = self.cq.poll() {
            self.waiting_since = None;
            if wc.status != WcStatus::Success {
                return Err(self.lost());
            }
            match wc.opcode {
                WcOpcode::Recv if wc.solicited => {
                    match self.channel.take_control(&self.qp, &wc)? {
                        Control::Failed(reason) => bail!("{} says: {reason}", self.remote),
                        Control::Working => {}
                        Control::NotVerified => return Err(Unverified.into()),
                        message => return Ok(Some(Happened::Control(message))),
                    }
                }
                WcOpcode::Recv => return Ok(Some(Happened::Payload(wc))),
                _ if wc.wr_id == CONTROL_SENT => {}
                _ => return Ok(Some(Happened::Done(wc.wr_id))),
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
        self.host.endpoint.turn(sleep_max)?;
        let now = monotonic_now();
        let since = *self.waiting_since.get_or_insert(now);
        if now - since >= self.host.options.timeout {
            bail!(
                "{} has not answered for {:?}: it has stopped, or the way to it is broken",
                self.remote,
                self.host.options.timeout
            );
        }
        Ok(())
    }

    /// Waits for a control message.
    pub(crate) fn wait_control(&mut self) -> anyhow::Result<Control> {
        loop {
            if let Happened::Control(message) = self.wait()? {
                return Ok(message);
            }
        }
    }

    /// Asks the server for its counters: the answer comes when all that was sent has arrived.
    /// Credits that come meanwhile are of no use any more.
    pub(crate) fn peer_counters(&mut self) -> anyhow::Result<Counters> {
        self.send(&Control::CountersRequest)?;
        loop {
            match self.wait_control()? {
                Control::Counters(counters) => return Ok(counters),
                Control::Credit(_) => {}
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    /// This end's counters.
    pub(crate) fn counters(&self) -> anyhow::Result<Counters> {
        let counters = self.connection.counters().map_err(|_| self.lost())?;
        Ok(Counters::of(&counters, &self.host.options.dev))
    }

    /// Closes in order, and waits for a moment until that is done.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        self.connection.disconnect();
        let deadline = monotonic_now() + CLOSE_TIMEOUT;
        while monotonic_now() < deadline {
            match self.connection.next_event(CLOSE_TIMEOUT)? {
                Some(ConnectionEvent::Closed(_)) | None => break,
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The server said something that does not belong here.
    pub(crate) fn unexpected(&self, message: &Control) -> anyhow::Error {
        anyhow!("{} said {message:?}, which makes no sense here", self.remote)
    }

    /// Why the session has ended.
    pub(crate) fn lost(&self) -> anyhow::Error {
        let remote = self.remote;
        // What failed first says why; there may be a Terminate on its way.
        while let Ok(Some(event)) = self.connection.next_event(REASON_WAIT) {
            match event {
                ConnectionEvent::Failed(error) => {
                    return anyhow!("the session with {remote} failed here: {error}");
                }
                ConnectionEvent::Terminated(terminate) => {
                    return anyhow!("{remote} ended the session with {terminate:?}");
                }
                ConnectionEvent::PeerClosed => {
                    return anyhow!("{remote} closed the connection before all was done");
                }
                ConnectionEvent::Closed(_) => break,
                _ => {}
            }
        }
        anyhow!("the connection to {remote} was lost")
    }
}

/// The file at the other end is not the one that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file that has arrived is not the one that was sent; was it changed meanwhile? The next \
     attempt begins anew"
)]
pub(crate) struct Unverified;

/// Why a connection was not opened, and what to do.
fn explain(remote: SocketAddr, host: &Host, error: &EndpointError) -> anyhow::Error {
    let timeout = host.options.timeout;
    match error {
        EndpointError::Io(std::io::ErrorKind::ConnectionRefused) => anyhow!(
            "{remote} refused the connection: nothing listens there; start 'urnic serve --listen \
             {remote}' on that machine"
        ),
        EndpointError::Io(kind) => {
            anyhow!("cannot connect to {remote}: {}", std::io::Error::from(*kind))
        }
        EndpointError::Timeout | EndpointError::Startup(StartupFailure::Timeout) => {
            let advice = host.checksum_advice().unwrap_or_else(|| {
                "check the address and the way to it, or wait longer with --timeout".into()
            });
            anyhow!("{remote} did not answer within {timeout:?}: {advice}")
        }
        EndpointError::Rejected(rejection) => match refusal_from(&rejection.private_data) {
            Some(reason) => anyhow!("{remote} rejected the session: {reason}"),
            None => anyhow!("{remote} rejected the connection and is no 'urnic serve'"),
        },
        EndpointError::Startup(StartupFailure::Protocol(error)) => anyhow!(
            "{remote} does not speak MPA: {error}; what listens there is no RDMA service, so check \
             the port number"
        ),
        EndpointError::Startup(StartupFailure::ConnectionLost) | EndpointError::Closed => anyhow!(
            "{remote} closed the connection instead of starting RDMA: nothing listens there, or \
             what listens does not speak MPA; check the port number"
        ),
        other => anyhow!("cannot connect to {remote}: {other}"),
    }
}

/// How long to wait for an orderly end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for the reason of a failure.
const REASON_WAIT: Duration = Duration::from_millis(200);
