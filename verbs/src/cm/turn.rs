//! Turn of an id: handles what has happened to its connection, and reports it to C as events.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::c_int;
use urnic::{Connecting, Connection, ConnectionEvent, Error, Listener, StartupFailure, WcStatus};
use urnic_engine::limits::READS_OUTSTANDING_MAX;
use urnic_engine::mpa::startup::MpaStartupError;

use super::end::discard;
use super::id::{Depths, Id, NOW, Pending, Phase, make};
use super::param::DEPTH;
use crate::abi::{
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_TCP,
};
use crate::async_event::error_event;
use crate::cm::address::source_for;
use crate::device::{Personality, personality};
use crate::errno::Errno;
use crate::event_queue::locked;
use crate::turn::Turn;

impl Turn for Id {
    fn turn(self: Arc<Self>) {
        self.look();
    }
}

impl Id {
    fn look(self: &Arc<Self>) {
        let mut phase = locked(&self.phase);
        *phase = match std::mem::replace(&mut *phase, Phase::Ended) {
            Phase::Listening(listener) => {
                self.take_requests(&listener);
                Phase::Listening(listener)
            }
            Phase::Connecting(connecting) => self.connecting(*connecting),
            Phase::Connected(connection) => self.connected(*connection),
            Phase::Refused => self.refused(),
            other => other,
        };
    }

    fn take_requests(self: &Arc<Self>, listener: &Listener) {
        listener.notify(self.waker());
        while self.untaken.load(Ordering::Acquire) < self.backlog.load(Ordering::Acquire)
            && let Ok(Some(request)) = listener.next_request(NOW)
        {
            let remote = request.remote();
            let (private_data, depths) =
                (request.request().private_data.clone(), request.request().depths);
            // Only this library negotiates immediate data.
            let is_alike = request.request().immediates;
            let phase = Phase::Requested(Box::new(request));
            let child =
                self.inherited().and_then(|(own, user)| make(own, user, RDMA_PS_TCP, phase));
            let Ok(child) = child else {
                // No descriptor or memory: dropping the request closes the connection.
                continue;
            };
            let announced = locked(&self.announced).as_ref().map(|announced| announced.local);
            let local = announced.unwrap_or_else(|| listener.local());
            let found = if local.ip().is_unspecified() { source_for(remote).ok() } else { None };
            let ip = found.map_or_else(|| local.ip(), |found| found.ip());
            let local = std::net::SocketAddr::new(ip, local.port());
            child.show_addresses(local, Some(remote));
            if child.show_device().is_err() {
                discard(&child);
                continue;
            }
            let mut event = Pending::new(&child, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
            event.listener = Some(Arc::clone(self));
            event.private_data = private_data;
            // This end must answer the Reads that the peer will have outstanding.
            let asked = |depth: Option<u16>| match depth {
                // A peer with this library asks for one Read more than its application, for itself.
                Some(depth @ 1..READS_OUTSTANDING_MAX) if is_alike => depth - 1,
                depth => depth.unwrap_or(DEPTH),
            };
            event.depths = [asked(depths.ord), asked(depths.ird)];
            let [responder_resources, initiator_depth] = event.depths;
            *locked(&child.depths) = Depths { responder_resources, initiator_depth };
            event.number_of_peer = child.number_of_peer();
            self.untaken.fetch_add(1, Ordering::AcqRel);
            self.tell(event);
        }
    }

    fn refused(self: &Arc<Self>) -> Phase {
        let is_elsewhere = self.is_elsewhere(false);
        match self.take_failure().filter(|_| !is_elsewhere) {
            Some(error) => match self.fail_later(error) {
                Ok(()) => Phase::Refused,
                Err(error) => {
                    self.failed(error);
                    Phase::Ended
                }
            },
            None => match self.try_again() {
                Ok(connecting) => self.connecting(connecting),
                Err(error) => {
                    self.failed(error);
                    Phase::Ended
                }
            },
        }
    }

    fn connecting(self: &Arc<Self>, connecting: Connecting) -> Phase {
        connecting.notify(self.waker());
        match connecting.poll() {
            Ok(Err(still)) if self.is_elsewhere(true) => {
                // The server at the TCP port of the number is not the peer.
                drop(still);
                self.try_soon();
                Phase::Refused
            }
            Ok(Err(still)) => Phase::Connecting(Box::new(still)),
            Ok(Ok(connection)) => {
                // No further attempt follows: drop the state of attempts.
                *locked(&self.attempt) = None;
                *locked(&self.asking) = None;
                let is_active = !self.accepted.load(Ordering::Acquire);
                let awaits = is_active && self.has_own_qp.load(Ordering::Acquire);
                let kind =
                    if awaits { RDMA_CM_EVENT_CONNECT_RESPONSE } else { RDMA_CM_EVENT_ESTABLISHED };
                let mut event = Pending::new(self, kind, 0);
                if is_active {
                    event.number_of_peer = self.number_of_peer();
                }
                let terms = connection.terms();
                event.private_data.clone_from(&terms.private_data);
                event.depths = [terms.ird, terms.ord];
                *locked(&self.depths) =
                    Depths { responder_resources: terms.ird, initiator_depth: terms.ord };
                if awaits {
                    return self.responded(event, connection);
                }
                self.tell(event);
                self.connected(connection)
            }
            // A server that answers by MPA is the peer.
            Err(error) if !has_no_reply(&error) => {
                self.failed(error);
                Phase::Ended
            }
            Err(_) if self.is_elsewhere(false) => {
                self.try_soon();
                Phase::Refused
            }
            Err(error) if is_refusal(&error) && self.try_later() => Phase::Refused,
            Err(error) => match self.fail_later(error) {
                Ok(()) => Phase::Refused,
                Err(error) => {
                    self.failed(error);
                    Phase::Ended
                }
            },
        }
    }

    /// Reports a Reply for the application's own queue pair: the application moves it to RTS, and
    /// calls `rdma_establish`.
    fn responded(self: &Arc<Self>, event: Pending, connection: Connection) -> Phase {
        self.awaits_establish.store(true, Ordering::Release);
        self.tell(event);
        self.connected(connection)
    }

    fn failed(self: &Arc<Self>, error: Error) {
        if let Some(qp) = &*locked(&self.qp) {
            // As in rdma_cm, posted work is flushed. Servers wait for that too.
            qp.inner().give_up(WcStatus::WrFlushErr);
        }
        if self.accepted.load(Ordering::Acquire) {
            // As with siw, whose accept establishes the connection when it has sent the Reply: a
            // peer that leaves after its request is reported as established, then disconnected.
            // Servers wait for these two events, and exit at any other event.
            self.tell(Pending::new(self, RDMA_CM_EVENT_ESTABLISHED, 0));
            return self.tell_disconnected();
        }
        let (kind, private_data) = match &error {
            Error::Rejected(rejection) => (RDMA_CM_EVENT_REJECTED, rejection.private_data.clone()),
            Error::Startup(_) => (RDMA_CM_EVENT_REJECTED, Vec::new()),
            // As Linux reports for iWARP, where a server that refuses closes the connection.
            Error::Io(
                ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::BrokenPipe
                | ErrorKind::NotConnected,
            ) => (RDMA_CM_EVENT_REJECTED, Vec::new()),
            Error::Io(_) | Error::Timeout => (RDMA_CM_EVENT_UNREACHABLE, Vec::new()),
            _ => (RDMA_CM_EVENT_CONNECT_ERROR, Vec::new()),
        };
        let status: c_int = -Errno::from(error).0;
        let mut event = Pending::new(self, kind, status);
        event.private_data = private_data;
        self.tell(event);
    }

    fn connected(self: &Arc<Self>, connection: Connection) -> Phase {
        if self.of_socket.get().is_some() {
            // The socket takes the connection over, with its events.
            return Phase::Connected(Box::new(connection));
        }
        connection.notify(self.waker());
        loop {
            match connection.next_event(NOW) {
                Ok(None) => {
                    self.follow_peer(&connection);
                    return Phase::Connected(Box::new(connection));
                }
                Ok(Some(ConnectionEvent::Closed(_))) | Err(_) => {
                    self.tell_disconnected();
                    if let Some(qp) = &*locked(&self.qp) {
                        qp.tell_last_wqe();
                    }
                    return Phase::Ended;
                }
                // Messages of the peer may still match receives.
                Ok(Some(ConnectionEvent::PeerEnding)) => self.tell_disconnected(),
                // C knows no half-closed connections, so the local side closes, too. But it remains
                // open while messages wait for receives: the application may still post receives
                // for them before it disconnects.
                Ok(Some(ConnectionEvent::PeerClosed)) if self.has_messages() => {
                    self.tell_disconnected();
                }
                Ok(Some(ConnectionEvent::PeerClosed)) if personality() == Personality::Ib => {
                    self.peer_closes();
                }
                Ok(Some(event)) => {
                    connection.disconnect();
                    if event != ConnectionEvent::PeerClosed {
                        self.tell_error(error_event(&event));
                    }
                    self.tell_disconnected();
                }
            }
        }
    }

    /// Returns true if messages of the peer wait for receives.
    fn has_messages(&self) -> bool {
        locked(&self.qp).as_ref().is_some_and(|qp| qp.inner().messages_wait())
    }

    /// Reports an error on the queue pair as an asynchronous event of its device.
    fn tell_error(&self, kind: u32) {
        if let Some(qp) = &*locked(&self.qp) {
            qp.context.events.of_qp(qp.c, kind);
        }
    }
}

/// Returns true if an attempt failed without an MPA Reply. The server at the TCP port may then be
/// another one than the peer.
const fn has_no_reply(error: &Error) -> bool {
    match error {
        Error::Io(_) | Error::Timeout | Error::Closed => true,
        Error::Startup(StartupFailure::Protocol(error)) => {
            matches!(error, MpaStartupError::Frame(_))
        }
        Error::Startup(_) => true,
        _ => false,
    }
}

/// Returns true if nothing listens at the peer.
const fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Io(ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any Reply is the peer's: no other TCP port is tried then.
    #[test]
    fn any_reply_is_accepted_as_that_of_the_peer() {
        let reply = |error| Error::Startup(StartupFailure::Protocol(error));
        for error in [
            reply(MpaStartupError::Revision(7)),
            reply(MpaStartupError::EnhancedMismatch),
            reply(MpaStartupError::EarlyData),
            Error::Down,
        ] {
            assert!(!has_no_reply(&error), "{error}");
        }
        for error in [
            Error::Io(ErrorKind::ConnectionRefused),
            Error::Io(ErrorKind::ConnectionReset),
            Error::Startup(StartupFailure::Timeout),
            Error::Startup(StartupFailure::ConnectionLost),
        ] {
            assert!(has_no_reply(&error), "{error}");
        }
    }
}
