//! Connection of a peer: its setup, the open connection, and its end.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use urnic::{Connecting, Connection, ConnectionEvent, Cq, Error};

use crate::server::ready_peers::PeerWaker;

/// The waker is called at each event.
#[derive(Debug)]
pub(super) struct Link {
    stage: Stage,
    /// Event that has ended the connection, while completions raised before it still wait.
    ending: Option<Box<ConnectionEvent>>,
    waker: Arc<PeerWaker>,
}

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

    pub(super) fn connecting(&mut self, connecting: Connecting) {
        self.stage = Stage::Connecting(connecting);
        self.wake();
    }

    pub(super) const fn connection(&self) -> Option<&Connection> {
        if let Stage::Open(connection) = &self.stage { Some(connection) } else { None }
    }

    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Call when the peer is polled: later events wake it again.
    pub(super) fn clear_ready(&self) {
        self.waker.clear_ready();
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.waker))
    }

    /// Stores the connection if it is open by now; otherwise the waker is called when it may be.
    /// Fails if it will not open.
    #[inline]
    pub(super) fn open(&mut self) -> Result<(), Error> {
        if matches!(self.stage, Stage::Connecting(_)) { self.poll() } else { Ok(()) }
    }

    #[cold]
    fn poll(&mut self) -> Result<(), Error> {
        let stage = std::mem::replace(&mut self.stage, Stage::None);
        let Stage::Connecting(connecting) = stage else { return Ok(()) };
        connecting.notify(&self.waker());
        self.stage = match connecting.poll()? {
            Ok(connection) => Stage::Open(connection),
            Err(not_yet) => Stage::Connecting(not_yet),
        };
        Ok(())
    }

    /// Takes the event that has ended the connection, after all completions in `cq` raised before
    /// it have been polled. If there is no such event, the waker is called at the next event.
    pub(super) fn end(&mut self, cq: &Cq) -> Result<Option<ConnectionEvent>, Error> {
        if self.ending.is_some() {
            // The completions that waited then have been polled by now.
            return Ok(self.ending.take().map(|end| *end));
        }
        while let Some(event) = self.next_event()? {
            if !is_end(&event) {
                continue;
            }
            // Looks at the queue after the event: the endpoint raises completions before it. If
            // some wait, the next turn of the server polls them first.
            if cq.is_empty() {
                return Ok(Some(event));
            }
            self.ending = Some(Box::new(event));
            self.wake();
            break;
        }
        Ok(None)
    }

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

    /// Returns true if nothing can be sent. Otherwise the waker is called at the next event.
    pub(super) fn is_over(&self) -> bool {
        loop {
            match self.next_event() {
                Ok(None) => return false,
                Ok(Some(ConnectionEvent::Closed(_))) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
    }

    /// Returns the oldest event; if there is none, the waker is called at the next one.
    fn next_event(&self) -> Result<Option<ConnectionEvent>, Error> {
        let Some(connection) = self.connection() else { return Ok(None) };
        if let Some(event) = connection.next_event(Duration::ZERO)? {
            return Ok(Some(event));
        }
        connection.notify(&self.waker());
        // An event may have come before the registration.
        connection.next_event(Duration::ZERO)
    }

    /// Sum of the peer's activity; `None` unless the connection is open.
    pub(super) fn counted(&self) -> Option<u64> {
        let counters = self.connection()?.counters().ok()?;
        // A segment without new bytes shows that the peer is alive, and counts.
        let segments = counters.tcp.segments_received;
        Some(counters.mpa.fpdus + counters.rdma.bytes_placed + counters.fpdus_framed + segments)
    }
}

impl Link {
    /// `None` as for [`counted`](Self::counted).
    pub(super) fn fpdus(&self) -> Option<u64> {
        let counters = self.connection()?.counters().ok()?;
        Some(counters.mpa.fpdus + counters.fpdus_framed)
    }
}

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
    use crate::server::ready_peers::ReadyPeers;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn connection_end_is_reported_after_earlier_completions() {
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
        let ready_peers = ReadyPeers::new(Waker::noop().clone());
        let mut link = Link::new(ready_peers.waker(qp.number()));
        link.connecting(request.accept(&qp, &Offer::default()).unwrap());
        let peer = connecting.wait(PATIENCE).unwrap();
        while link.connection().is_none() {
            host.endpoint.turn(Duration::from_millis(1)).unwrap();
            link.open().unwrap();
        }
        assert_eq!(link.end(&cq).unwrap(), None);
        let mut keys = Vec::new();
        ready_peers.take(&mut keys);
        link.clear_ready();
        peer.disconnect();
        while !ready_peers.any() {
            host.endpoint.turn(Duration::from_millis(1)).unwrap();
        }
        ready_peers.take(&mut keys);
        link.clear_ready();
        assert_eq!(cq.len(), 1, "the receive was flushed before");
        assert_eq!(link.end(&cq).unwrap(), None, "and goes first");
        assert!(ready_peers.any(), "the next turn looks once more");
        assert!(cq.poll().is_some());
        assert_eq!(link.end(&cq).unwrap(), Some(ConnectionEvent::PeerClosed));
    }
}
