//! Connections that are being set up: opened by this end, or by a peer that waits for an answer.

use std::net::SocketAddr;
use std::time::Duration;

use std::task::Waker;

use crossbeam::channel::{TryRecvError, bounded};
use tracing::debug;

use crate::error::Error;
use crate::handle::connection::Connection;
use crate::handle::link::WorkerLink;
use crate::mail::channel::{Receive, Told};
use crate::mail::command::outbox::Claim;
use crate::mail::command::{Command, Incoming, OwnedOffer};
use crate::mail::notice::Notice;
use urnic_engine::mpa::startup::{Negotiated, Offer, PeerRequest};
use urnic_engine::stream::{StartupFailure, StreamEvent};
use urnic_engine::verbs::Qp;

/// A connection that is being set up. Dropping it gives it up.
#[derive(Debug)]
pub struct Connecting {
    link: WorkerLink,
    claim: Claim,
    remote: SocketAddr,
    notices: Told<Notice>,
    /// Why it ends, when that is known before the end.
    reason: Error,
}

impl Connecting {
    pub(crate) fn new(
        link: WorkerLink,
        claim: Claim,
        remote: SocketAddr,
        notices: Told<Notice>,
    ) -> Self {
        Self { link, claim, remote, notices, reason: Error::Closed }
    }

    /// Waits until RDMA has started.
    ///
    /// # Errors
    /// Why it did not. When it has not in time: [`Error::Timeout`] if nothing came back from the peer,
    /// [`StartupFailure::Timeout`] if TCP stands and the peer does not answer over it.
    pub fn wait(mut self, timeout: Duration) -> Result<Connection, Error> {
        loop {
            let received = self.link.receive(&self.notices, Some(timeout));
            let notice = received.map_err(|error| self.timed_out(error))?;
            if let Some(terms) = self.handle_notice(notice)? {
                return Ok(self.established(terms));
            }
        }
    }

    /// Adds to [`Error::Timeout`] that TCP stands, if it does: bytes of the stream are sent from then on.
    fn timed_out(&self, error: Error) -> Error {
        if error != Error::Timeout {
            return error;
        }
        let (reply, reply_rx) = bounded(1);
        let asked = self.claim.send(Command::Counters { key: self.claim.key(), reply });
        let counters = asked.and_then(|()| self.link.receive(&reply_rx, Some(COUNTERS_WAIT)));
        match counters {
            Ok(counters) if counters.bytes_sent > 0 => Error::Startup(StartupFailure::Timeout),
            _ => error,
        }
    }

    /// Whether RDMA has started by now: the connection, or this again.
    ///
    /// # Errors
    /// Why it will not start.
    pub fn poll(mut self) -> Result<Result<Connection, Self>, Error> {
        loop {
            match self.notices.try_receive() {
                Ok(notice) => {
                    if let Some(terms) = self.handle_notice(notice)? {
                        return Ok(Ok(self.established(terms)));
                    }
                }
                Err(TryRecvError::Empty) => return Ok(Err(self)),
                Err(TryRecvError::Disconnected) => return Err(Error::Down),
            }
        }
    }

    /// Asks for one call of `waker` when [`poll`](Self::poll) may tell something new. Poll once more
    /// afterwards: what has happened before gives no call. The call is made by the endpoint's worker:
    /// it may not wait for completions or for an endpoint.
    pub fn notify(&self, waker: &Waker) {
        self.notices.notify(waker);
    }

    /// The terms, once RDMA has started.
    fn handle_notice(&mut self, notice: Notice) -> Result<Option<Negotiated>, Error> {
        match notice {
            Notice::Event(event) => self.handle_event(*event),
            Notice::Refused(error) => match *error {
                error @ Error::Io(_) => {
                    self.reason = error;
                    Ok(None)
                }
                error => Err(error),
            },
            Notice::Closed(_) => Err(self.reason.clone()),
            Notice::PeerEnding => Ok(None),
        }
    }

    fn handle_event(&self, event: StreamEvent) -> Result<Option<Negotiated>, Error> {
        match event {
            StreamEvent::Established(terms) => Ok(Some(terms)),
            StreamEvent::Rejected(rejection) => Err(Error::Rejected(rejection)),
            // What follows a reason is its consequence.
            StreamEvent::StartupFailed(failure) => Err(match self.reason.clone() {
                Error::Closed => Error::Startup(failure),
                earlier => earlier,
            }),
            _ => Ok(None),
        }
    }

    fn established(self, terms: Negotiated) -> Connection {
        let Self { link, claim, remote, notices, .. } = self;
        Connection { link, claim, remote, terms, notices }
    }
}

/// How long a worker may take to say what a connection has counted.
const COUNTERS_WAIT: Duration = Duration::from_secs(1);

/// A peer that asks to start RDMA. Dropping it closes the connection.
#[derive(Debug)]
pub struct ConnectRequest {
    connecting: Connecting,
    request: PeerRequest,
}

impl ConnectRequest {
    /// The handle of a connection that one of the listener's queues has told of.
    pub(super) fn new(link: WorkerLink, incoming: Incoming) -> Self {
        let Incoming { claim, remote, request, notices } = incoming;
        Self { connecting: Connecting::new(link, claim, remote, notices), request }
    }

    /// Where the peer connects from.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        self.connecting.remote
    }

    /// What the peer asks for.
    #[must_use]
    pub const fn request(&self) -> &PeerRequest {
        &self.request
    }

    /// Accepts with `qp`. An [`Offer`] says what the peer's application is told, and how many Reads and
    /// Atomics may be open at a time: none with `Offer::default()`.
    ///
    /// [`Connecting::wait`] waits for the start of RDMA, which for this end is its
    /// Reply (RFC 5044 §7.1.2 (5)). Work may be posted from then on; it is sent after the initiator's
    /// first FPDU (§7.1.2 (4)), so after the ready-to-receive message if there is one (RFC 6581
    /// §9.2). An initiator that owes that message and does not send it within
    /// [`MPA_FIRST_FPDU_TIMEOUT_NS`](urnic_engine::limits::MPA_FIRST_FPDU_TIMEOUT_NS) is given up; another is
    /// probed whether it is still there.
    ///
    /// # Errors
    /// [`Error::Down`]. All else is told by [`Connecting::wait`].
    pub fn accept(self, qp: &Qp, offer: &Offer<'_>) -> Result<Connecting, Error> {
        let Self { connecting, .. } = self;
        let (key, qp, offer) = (connecting.claim.key(), qp.clone(), OwnedOffer::new(offer));
        debug!(target: "urnic", remote = %connecting.remote, "accepting");
        connecting.claim.send(Command::Accept { key, qp, offer })?;
        Ok(connecting)
    }

    /// Refuses, with Private Data for the peer's application, and closes.
    ///
    /// RFC 5044 §7.1.2 (2), (6): MPA leaves TCP open after a rejection, and what becomes of it is the
    /// application's. An endpoint offers no streaming mode, so it closes at once, in order; a peer that
    /// does not close too is reset after [`LINGER_NS`](urnic_engine::limits::LINGER_NS).
    /// [`Port::reject`](urnic_engine::port::Port::reject) leaves TCP open.
    ///
    /// # Errors
    /// [`Error::Down`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        let claim = &mut self.connecting.claim;
        let offer = OwnedOffer::new(&Offer { private_data, ..Offer::default() });
        debug!(target: "urnic", remote = %self.connecting.remote, "rejecting");
        claim.send(Command::Reject { key: claim.key(), offer })?;
        claim.release();
        Ok(())
    }
}
