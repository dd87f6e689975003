//! Connections that are being set up: opened by this end, or by a peer that waits for an answer.

use std::io;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use crossbeam::channel::{TryRecvError, bounded};
use tracing::debug;

use crate::error::Error;
use crate::handle::connection::Connection;
use crate::handle::link::WorkerLink;
use crate::mail::channel::{HandleEnd, Receive};
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
    notices: HandleEnd<Notice>,
    reason: Error,
}

impl Connecting {
    pub(crate) fn new(
        link: WorkerLink,
        claim: Claim,
        remote: SocketAddr,
        notices: HandleEnd<Notice>,
    ) -> Self {
        Self { link, claim, remote, notices, reason: Error::Closed }
    }

    /// Waits until RDMA has started.
    ///
    /// # Errors
    /// The reason of a failure. After the timeout: [`Error::Timeout`] if nothing came back from the
    /// peer, [`StartupFailure::Timeout`] if TCP is established.
    pub fn wait(mut self, timeout: Duration) -> Result<Connection, Error> {
        loop {
            let received = self.link.receive(&self.notices, Some(timeout));
            let notice = received.map_err(|error| self.timed_out(error))?;
            if let Some(terms) = self.handle_notice(notice)? {
                return Ok(self.established(terms));
            }
        }
    }

    /// Replaces [`Error::Timeout`] if TCP is established: bytes are sent only after that.
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

    /// Returns the connection if RDMA has started, otherwise `self`.
    ///
    /// # Errors
    /// The reason why RDMA will not start.
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

    /// Asks for one call of `waker` when [`poll`](Self::poll) may return something new. Poll once
    /// more afterwards: earlier events cause no call. The endpoint's worker calls `waker`, which
    /// must not wait for completions or an endpoint.
    pub fn notify(&self, waker: &Waker) {
        self.notices.notify(waker);
    }

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
            // An event after a reason is its consequence.
            StreamEvent::StartupFailed(failure) => Err(match self.reason.clone() {
                // As the kernel's TCP says it.
                Error::Closed if failure == StartupFailure::Refused => {
                    Error::Io(io::ErrorKind::ConnectionRefused)
                }
                Error::Closed if failure == StartupFailure::Unreachable => {
                    Error::Io(io::ErrorKind::HostUnreachable)
                }
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

const COUNTERS_WAIT: Duration = Duration::from_secs(1);

/// A peer that asks to start RDMA. Dropping it closes the connection.
#[derive(Debug)]
pub struct ConnectRequest {
    connecting: Connecting,
    request: PeerRequest,
}

impl ConnectRequest {
    pub(super) fn new(link: WorkerLink, incoming: Incoming) -> Self {
        let Incoming { claim, remote, request, notices } = incoming;
        Self { connecting: Connecting::new(link, claim, remote, notices), request }
    }

    /// Address of the peer.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        self.connecting.remote
    }

    /// Request of the peer.
    #[must_use]
    pub const fn request(&self) -> &PeerRequest {
        &self.request
    }

    /// Accepts with `qp`. The [`Offer`] has the data for the peer's application, and limits the
    /// Reads and Atomics outstanding at a time: none with `Offer::default()`.
    ///
    /// [`Connecting::wait`] waits for this end's Reply (RFC 5044 §7.1.2 (5)). Work may be posted
    /// from then on; this end sends it after the initiator's first FPDU (§7.1.2 (4)), so after the
    /// ready-to-receive message if there is one (RFC 6581 §9.2). An initiator that does not send an
    /// expected one within
    /// [`MPA_FIRST_FPDU_TIMEOUT_NS`](urnic_engine::limits::MPA_FIRST_FPDU_TIMEOUT_NS) is given up;
    /// any other initiator is probed by keep-alives.
    ///
    /// # Errors
    /// [`Error::Down`]. [`Connecting::wait`] reports all other errors.
    pub fn accept(self, qp: &Qp, offer: &Offer<'_>) -> Result<Connecting, Error> {
        let Self { connecting, .. } = self;
        let (key, qp, offer) = (connecting.claim.key(), qp.clone(), OwnedOffer::new(offer));
        debug!(target: "urnic", remote = %connecting.remote, "accepting");
        connecting.claim.send(Command::Accept { key, qp, offer })?;
        Ok(connecting)
    }

    /// Refuses, with Private Data for the peer's application, and closes.
    ///
    /// RFC 5044 §7.1.2 (2), (6): MPA leaves TCP open after a rejection. An endpoint offers no
    /// streaming mode, so it closes in order. A peer that does not close too is reset after
    /// [`LINGER_NS`](urnic_engine::limits::LINGER_NS).
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
