//! A peer of stock rping that starts correctly, then lies: over the kernel's TCP, with the library.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use urnic::{ConnectOptions, Connection, ConnectionEvent, Endpoint, EndpointConfig};
use urnic_engine::mem::Access;
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::ListenParams;
use urnic_engine::types::{Stag, TaggedOffset, WrId};
use urnic_engine::verbs::{
    Cq, Mr, Pd, Qp, QpConfig, RecvWr, RemoteBuffer, Rnic, RnicConfig, SendWr,
};
use urnic_engine::wire::terminate::TerminateCode;

/// Bytes of the Sends of rping: `be64 address, be32 STag, be32 size`.
const DESCRIPTOR: usize = 16;
/// Bytes of a buffer.
pub(crate) const SIZE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// An end of a connection, or of a future one.
#[derive(Debug)]
pub(crate) struct Liar {
    endpoint: Endpoint,
    pd: Pd,
    stranger: Pd,
    cq: Cq,
    qp: Qp,
    inbox: Mr,
    outbox: Mr,
    connection: Option<Connection>,
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// This end refused the peer's request with this Terminate.
    Refused(TerminateCode),
    /// The peer sent this Terminate.
    Terminated(TerminateCode),
}

impl Liar {
    /// Returns an end that is not connected, with receives posted.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let rnic = Rnic::new(RnicConfig { seed: urnic::random_seed()? });
        let endpoint = Endpoint::kernel(&rnic, &EndpointConfig::default())?;
        let (pd, stranger, cq) = (rnic.alloc_pd(), rnic.alloc_pd(), rnic.create_cq(64)?);
        let (send_cq, recv_cq) = (rnic.create_cq(64)?, cq.clone());
        let qp = pd.create_qp(QpConfig {
            send_depth: 8,
            recv_depth: 8,
            ..QpConfig::with_cqs(send_cq, recv_cq)
        })?;
        let inbox = pd.reg_mr(DESCRIPTOR, Access::LOCAL_WRITE)?;
        let outbox = pd.reg_mr(SIZE, Access::LOCAL_WRITE)?;
        for _ in 0..4 {
            qp.post_recv(RecvWr::new(WrId(0), [inbox.sge(0..DESCRIPTOR)]))?;
        }
        Ok(Self { endpoint, pd, stranger, cq, qp, inbox, outbox, connection: None })
    }

    /// Connects to a server.
    pub(crate) fn connect(&mut self, server: SocketAddr) -> anyhow::Result<()> {
        let startup = StartupConfig { silence_probe: true, ..StartupConfig::default() };
        let options = ConnectOptions { startup, ird: 1, ord: 1, ..ConnectOptions::default() };
        let connecting = self.endpoint.connect(server, &self.qp, &options)?;
        self.connection = Some(connecting.wait(PATIENCE)?);
        Ok(())
    }

    /// Waits for one client; calls `listening` when it may connect.
    pub(crate) fn accept(
        &mut self,
        local: SocketAddr,
        listening: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let listener = self.endpoint.listen(local, ListenParams::default())?;
        listening()?;
        let request = listener.next_request(PATIENCE)?.context("no client came")?;
        let offer = Offer { private_data: b"", ird: 1, ord: 1 };
        self.connection = Some(request.accept(&self.qp, &offer)?.wait(PATIENCE)?);
        Ok(())
    }

    /// Registers a buffer with these rights, in the domain of the connection or in another one.
    pub(crate) fn buffer(&self, access: Access, own_domain: bool) -> anyhow::Result<Mr> {
        let pd = if own_domain { &self.pd } else { &self.stranger };
        Ok(pd.reg_mr(SIZE, access)?)
    }

    /// Tells the peer about a buffer.
    pub(crate) fn advertise(&self, buffer: RemoteBuffer, size: usize) -> anyhow::Result<()> {
        let size = u32::try_from(size)?;
        let (to, stag) = (buffer.to.0.to_be_bytes(), buffer.stag.0.to_be_bytes());
        let octets = [&to[..], &stag, &size.to_be_bytes()].concat();
        self.outbox.copy_in(0, &octets);
        self.post(SendWr::send(WrId(1), [self.outbox.sge(0..DESCRIPTOR)]))
    }

    /// Receives the peer's advertisement of one of its buffers.
    pub(crate) fn advertised(&self) -> anyhow::Result<RemoteBuffer> {
        self.endpoint.wait(&self.cq, PATIENCE)?.context("the peer says nothing")?;
        let mut octets = [0; DESCRIPTOR];
        self.inbox.copy_out(0, &mut octets);
        let [to @ .., s0, s1, s2, s3, _, _, _, _] = octets;
        let (to, stag) = (u64::from_be_bytes(to), u32::from_be_bytes([s0, s1, s2, s3]));
        Ok(RemoteBuffer { to: TaggedOffset(to), stag: Stag(stag) })
    }

    /// Reads `len` bytes of the peer's memory.
    pub(crate) fn read(&self, from: RemoteBuffer, len: usize) -> anyhow::Result<()> {
        self.post(SendWr::read(WrId(2), from, self.outbox.sge(0..len)))
    }

    /// Writes `len` bytes to the peer.
    pub(crate) fn write(&self, to: RemoteBuffer, len: usize) -> anyhow::Result<()> {
        self.post(SendWr::write(WrId(3), to, [self.outbox.sge(0..len)]))
    }

    /// Sends `len` bytes.
    pub(crate) fn send(&self, len: usize) -> anyhow::Result<()> {
        self.post(SendWr::send(WrId(4), [self.outbox.sge(0..len)]))
    }

    fn post(&self, wr: SendWr) -> anyhow::Result<()> {
        Ok(self.qp.post_send(wr)?)
    }

    /// Waits for the end of the connection.
    pub(crate) fn fate(self) -> anyhow::Result<Fate> {
        let connection = self.connection.context("it was never connected")?;
        loop {
            match connection.next_event(PATIENCE)?.context("the connection does not end")? {
                ConnectionEvent::Failed(error) => match error.terminate_code() {
                    Some(code) => return Ok(Fate::Refused(code)),
                    None => bail!("{error}"),
                },
                ConnectionEvent::Terminated(terminate) => {
                    return Ok(Fate::Terminated(terminate.code));
                }
                ConnectionEvent::Closed(_) => bail!("closed without a Terminate"),
                _ => {}
            }
        }
    }
}
