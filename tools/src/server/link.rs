//! A peer's connection: being set up, then open, and what has ended it.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use urnic::{Connecting, Connection, ConnectionEvent, Cq, Error};

use crate::server::news::PeerWaker;

/// The connection of a peer. Its waker is called when there is something new.
#[derive(Debug)]
pub(super) struct Link {
    stage: Stage,
    /// What has ended it, while completions that were raised before still wait.
    ending: Option<Box<ConnectionEvent>>,
    waker: Arc<PeerWaker>,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    None,
    Connecting(Connecting),
    Open(Connection),
}

impl Link {
    pub(super) const fn new(waker: Arc<PeerWaker>) -> Self {
        Self { stage: Stage::None, ending: None, waker }
    }

    /// The peer has been accepted.
    pub(super) fn connecting(&mut self, connecting: Connecting) {
        self.stage = Stage::Connecting(connecting);
        self.wake();
    }

    /// The connection, once it is open.
    pub(super) const fn connection(&self) -> Option<&Connection> {
        if let Stage::Open(connection) = &self.stage { Some(connection) } else { None }
    }

    /// Sees to it that the peer is visited in the next turn.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// The peer is visited: what happens from now on is news again.
    pub(super) fn heard(&self) {
        self.waker.heard();
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.waker))
    }

    /// Takes the connection over once it is open; until then, has the waker called when it may be.
    ///
    /// # Errors
    /// Why it will not open.
    #[inline]
    pub(super) fn open(&mut self) -> Result<(), Error> {
        if matches!(self.stage, Stage::Connecting(_)) { self.poll() } else { Ok(()) }
    }

    #[cold]
    fn poll(&mut self) -> Result<(), Error> {
        let stage = std::mem::replace(&mut self.stage, Stage::None);
        let Stage::Connecting(connecting) = stage else { return Ok(()) };
        // First this: what comes afterwards is called for.
        connecting.notify(&self.waker());
        self.stage = match connecting.poll()? {
            Ok(connection) => Stage::Open(connection),
            Err(not_yet) => Stage::Connecting(not_yet),
        };
        Ok(())
    }

    /// Takes what has ended the connection, once nothing waits in `cq` that was raised before; without
    /// an end, has the waker called at the next event.
    ///
    /// # Errors
    /// When the endpoint is down.
    pub(super) fn end(&mut self, cq: &Cq) -> Result<Option<ConnectionEvent>, Error> {
        if self.ending.is_some() {
            // By now what waited then has been taken.
            return Ok(self.ending.take().map(|end| *end));
        }
        while let Some(event) = self.next_event()? {
            if !is_end(&event) {
                continue;
            }
            // In this order: the completions before an event are raised before it is told. They came
            // in the same turn of the endpoint, which visits of this turn of the server may have
            // made; so the next turn takes them.
            if cq.is_empty() {
                return Ok(Some(event));
            }
            self.ending = Some(Box::new(event));
            self.wake();
            break;
        }
        Ok(None)
    }

    /// Takes the end of which a flushed request speaks.
    ///
    /// # Errors
    /// When the endpoint is down.
    pub(super) fn end_of_flushed(&mut self) -> Result<Option<ConnectionEvent>, Error> {
        if self.ending.is_some() {
            return Ok(self.ending.take().map(|end| *end));
        }
        while let Some(event) = self.next_event()? {
            if is_end(&event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Whether the connection is over, and nothing more can be sent; without that, has the waker called
    /// at the next event.
    pub(super) fn is_over(&self) -> bool {
        loop {
            match self.next_event() {
                Ok(None) => return false,
                Ok(Some(ConnectionEvent::Closed(_))) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
    }

    /// Takes the oldest event; without one, has the waker called at the next.
    fn next_event(&self) -> Result<Option<ConnectionEvent>, Error> {
        let Some(connection) = self.connection() else { return Ok(None) };
        if let Some(event) = connection.next_event(Duration::ZERO)? {
            return Ok(Some(event));
        }
        connection.notify(&self.waker());
        // It may have come before.
        connection.next_event(Duration::ZERO)
    }

    /// What the peer has done so far; `None` before the connection is open and after its end.
    pub(super) fn counted(&self) -> Option<u64> {
        let counters = self.connection()?.counters().ok()?;
        // A segment that brings nothing new shows that the peer is there, and losses.
        let heard = counters.tcp.segments_received;
        Some(counters.mpa.fpdus + counters.rdma.bytes_placed + counters.fpdus_framed + heard)
    }
}

impl Link {
    /// FPDUs that have crossed in both directions; `None` as with [`counted`](Self::counted).
    pub(super) fn fpdus(&self) -> Option<u64> {
        let counters = self.connection()?.counters().ok()?;
        Some(counters.mpa.fpdus + counters.fpdus_framed)
    }
}

/// Whether a session is over with such an event.
const fn is_end(event: &ConnectionEvent) -> bool {
    matches!(
        event,
        ConnectionEvent::PeerClosed
            | ConnectionEvent::Closed(_)
            | ConnectionEvent::Failed(_)
            | ConnectionEvent::Terminated(_)
    )
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use urnic::{Access, ConnectOptions, ListenParams, Offer, QpConfig, RecvWr, WrId};

    use super::*;
    use crate::host::{Host, StackOptions};
    use crate::server::news::News;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn an_end_is_told_after_the_completions_that_were_raised_before() {
        let host = Host::open(&StackOptions::kernel(PATIENCE), Duration::ZERO).unwrap();
        let cq = host.rnic.create_cq(8).unwrap();
        let [qp, other] = [&cq, &host.rnic.create_cq(8).unwrap()].map(|cq| {
            let depths = QpConfig { send_depth: 4, recv_depth: 4, ..QpConfig::new(cq) };
            host.pd.create_qp(depths).unwrap()
        });
        let memory = host.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(RecvWr::new(WrId(1), [memory.sge(0..64)])).unwrap();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = host.endpoint.listen(local, ListenParams::default()).unwrap();
        let options = ConnectOptions::default();
        let connecting = host.endpoint.connect(listener.local(), &other, &options).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().unwrap();
        let news = News::new(Waker::noop().clone());
        let mut link = Link::new(news.waker(qp.number()));
        link.connecting(request.accept(&qp, &Offer::default()).unwrap());
        let peer = connecting.wait(PATIENCE).unwrap();
        while link.connection().is_none() {
            host.endpoint.turn(Duration::from_millis(1)).unwrap();
            link.open().unwrap();
        }
        assert_eq!(link.end(&cq).unwrap(), None);
        let mut keys = Vec::new();
        news.take(&mut keys);
        link.heard();
        peer.disconnect();
        while !news.any() {
            host.endpoint.turn(Duration::from_millis(1)).unwrap();
        }
        news.take(&mut keys);
        link.heard();
        assert_eq!(cq.len(), 1, "the receive was flushed before");
        assert_eq!(link.end(&cq).unwrap(), None, "and goes first");
        assert!(news.any(), "the next turn looks once more");
        assert!(cq.poll().is_some());
        assert_eq!(link.end(&cq).unwrap(), Some(ConnectionEvent::PeerClosed));
    }
}
