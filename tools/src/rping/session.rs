//! Common parts of both sides: 16-byte Sends, and errors that name the side that ended the session.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use urnic::{
    Access, Connection, ConnectionEvent, Cq, Endpoint, Mr, Pd, Qp, QpConfig, RecvWr, Rnic, SendWr,
    Wc, WcStatus, WrId,
};

use super::Descriptor;

#[derive(Debug)]
pub(crate) struct Session<'a> {
    endpoint: &'a Endpoint,
    timeout: Duration,
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    inbox: Mr,
    /// Buffers of Sends that are not acknowledged: TCP may have to read them again.
    outbox: Mr,
    sends: u64,
    sends_completed: u64,
    connection: Option<Connection>,
    /// The event of the connection's end has come.
    over: Cell<bool>,
}

/// Closed in order before the awaited event.
#[derive(Debug, thiserror::Error)]
#[error("the peer has closed the connection")]
pub(crate) struct PeerClosed;

impl<'a> Session<'a> {
    /// Posts the first receive; does not connect.
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        rnic: &Rnic,
        pd: &Pd,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let (send_cq, recv_cq) = (rnic.create_cq(CQ_DEPTH)?, rnic.create_cq(CQ_DEPTH)?);
        let qp = pd.create_qp(QpConfig {
            send_depth: CQ_DEPTH,
            recv_depth: RECEIVES,
            ..QpConfig::with_cqs(send_cq.clone(), recv_cq.clone())
        })?;
        let inbox = pd.reg_mr(Descriptor::LEN * RECEIVES, Access::LOCAL_WRITE)?;
        let outbox = pd.reg_mr(Descriptor::LEN * OUTBOX_PLACES, Access::empty())?;
        let session = Self {
            endpoint,
            timeout,
            qp,
            send_cq,
            recv_cq,
            inbox,
            outbox,
            sends: 0,
            sends_completed: 0,
            connection: None,
            over: Cell::new(false),
        };
        for place in 0..RECEIVES {
            session.post_receive(place)?;
        }
        Ok(session)
    }

    pub(crate) const fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn connected(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }

    fn post_receive(&self, place: usize) -> anyhow::Result<()> {
        let start = place * Descriptor::LEN;
        let sge = self.inbox.sge(start..start + Descriptor::LEN);
        self.qp.post_recv(RecvWr::new(WrId(place as u64), [sge]))?;
        Ok(())
    }

    pub(crate) fn send(&mut self, descriptor: Descriptor) -> anyhow::Result<()> {
        while self.sends - self.sends_completed >= OUTBOX_PLACES as u64 {
            self.complete_one()?;
        }
        let place = usize::try_from(self.sends % OUTBOX_PLACES as u64).expect("few places");
        let start = place * Descriptor::LEN;
        self.outbox.copy_in(start, &descriptor.to_bytes());
        let sge = self.outbox.sge(start..start + Descriptor::LEN);
        let posted = self.qp.post_send(SendWr::send(WrId(SEND_ID), [sge]));
        posted.map_err(|error| self.explain(anyhow!(error)))?;
        self.sends += 1;
        Ok(())
    }

    pub(crate) fn perform(&mut self, wr: SendWr) -> anyhow::Result<()> {
        let id = wr.id;
        self.qp.post_send(wr).map_err(|error| self.explain(anyhow!(error)))?;
        while self.complete_one()? != id {}
        Ok(())
    }

    fn complete_one(&mut self) -> anyhow::Result<WrId> {
        let wc = self.wait(&self.send_cq)?;
        if wc.wr_id == WrId(SEND_ID) {
            self.sends_completed += 1;
        }
        Ok(wc.wr_id)
    }

    pub(crate) fn receive(&self) -> anyhow::Result<Descriptor> {
        let wc = self.wait(&self.recv_cq)?;
        if wc.byte_len as usize != Descriptor::LEN {
            bail!("the peer sent {} bytes, {} were expected", wc.byte_len, Descriptor::LEN);
        }
        let place = usize::try_from(wc.wr_id.0).expect("the number of a place");
        let mut octets = [0; Descriptor::LEN];
        self.inbox.copy_out(place * Descriptor::LEN, &mut octets);
        self.post_receive(place).map_err(|error| self.explain(error))?;
        Ok(Descriptor::from_bytes(octets))
    }

    fn wait(&self, cq: &Cq) -> anyhow::Result<Wc> {
        let wc = self.endpoint.wait(cq, self.timeout)?;
        let Some(wc) = wc else {
            bail!("the peer has not answered for {:?}", self.timeout);
        };
        match wc.status {
            WcStatus::Success => Ok(wc),
            status => Err(self.explain(anyhow!("{:?} ended with {status:?}", wc.opcode))),
        }
    }

    /// The reason why the connection ended, if known, comes before its consequence.
    fn explain(&self, consequence: anyhow::Error) -> anyhow::Error {
        let Some(connection) = &self.connection else { return consequence };
        let mut closed_in_order = false;
        loop {
            match connection.next_event(REASON_WITHIN) {
                Ok(Some(ConnectionEvent::Terminated(terminate))) => {
                    let code = terminate.code;
                    return consequence.context(format!("the peer terminated the stream: {code}"));
                }
                Ok(Some(ConnectionEvent::Failed(error))) if !closed_in_order => {
                    return consequence.context(error);
                }
                Ok(Some(ConnectionEvent::PeerClosed)) => {
                    closed_in_order = true;
                    connection.disconnect();
                }
                Ok(Some(ConnectionEvent::Closed(_))) => {
                    self.over.set(true);
                    break;
                }
                Ok(None) | Err(_) => break,
                Ok(Some(_)) => {}
            }
        }
        if closed_in_order { consequence.context(PeerClosed) } else { consequence }
    }

    /// Waits until the peer has closed, but not for TIME-WAIT.
    pub(crate) fn close(self) -> anyhow::Result<()> {
        let connection = self.connection.as_ref().context("it was never connected")?;
        if self.over.get() {
            return Ok(());
        }
        connection.disconnect();
        let mut patience = self.timeout;
        while let Some(event) = connection.next_event(patience)? {
            match event {
                ConnectionEvent::Closed(_) => break,
                ConnectionEvent::PeerClosed => patience = LAST_ACKNOWLEDGMENT,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Receives posted at a time: the client may be a message ahead.
const RECEIVES: usize = 2;
const OUTBOX_PLACES: usize = 4;
const CQ_DEPTH: usize = 16;
const SEND_ID: u64 = 1;
/// Time for the acknowledgment of the peer's FIN to leave.
const LAST_ACKNOWLEDGMENT: Duration = Duration::from_millis(100);
/// The event explains a failed completion.
const REASON_WITHIN: Duration = Duration::from_millis(500);
