//! Handles of connections: asked for, asking, open.

use std::net::SocketAddr;

use crossbeam::channel::{Receiver, TryRecvError, bounded};

use crate::driver::command::{Command, ConnectionKey, OwnedOffer};
use crate::driver::endpoint::EndpointError;
use crate::driver::link::Link;
use crate::mpa::startup::{Negotiated, Offer, PeerRequest};
use crate::port::ConnectionCounters;
use crate::stream::{StreamError, StreamEvent};
use crate::time::Duration;
use crate::verbs::Qp;
use crate::wire::terminate::Terminate;

/// What a worker tells of a connection.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Something happened to its stream.
    Event(StreamEvent),
    /// It could not be opened, or the last request for it could not be carried out.
    Refused(EndpointError),
    /// It is over.
    Closed(Box<ConnectionCounters>),
}

/// Something that happened to an open connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// This end found an error; the peer is told and the connection closes.
    Failed(StreamError),
    /// The peer ended the stream with this Terminate.
    Terminated(Terminate),
    /// The peer has closed its half of the connection: nothing more arrives. What was posted is
    /// still sent; [`disconnect`](Connection::disconnect) closes this half.
    PeerClosed,
    /// The connection is over; this is what it counted.
    Closed(Box<ConnectionCounters>),
}

/// The key of a connection with the duty to end it: a handle that is dropped closes.
#[derive(Debug)]
struct Claim {
    link: Link,
    key: ConnectionKey,
    released: bool,
}

impl Claim {
    fn send(&self, command: Command) -> Result<(), EndpointError> {
        self.link.send(command)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.released {
            // An endpoint that is down has closed it.
            let _down = self.link.send(Command::Disconnect { key: self.key });
        }
    }
}

/// A connection that is being set up. Dropping it gives it up.
#[derive(Debug)]
pub struct Connecting {
    claim: Claim,
    remote: SocketAddr,
    notices: Receiver<Notice>,
    /// Why it ends, when that is known before the end.
    reason: EndpointError,
}

impl Connecting {
    pub(crate) fn new(
        link: Link,
        key: ConnectionKey,
        remote: SocketAddr,
        notices: Receiver<Notice>,
    ) -> Self {
        let claim = Claim { link, key, released: false };
        Self { claim, remote, notices, reason: EndpointError::Closed }
    }

    /// Waits until RDMA has started.
    ///
    /// # Errors
    /// Why it did not; [`EndpointError::Timeout`] when it has not in time.
    pub fn wait(mut self, timeout: Duration) -> Result<Connection, EndpointError> {
        loop {
            let notice = self.claim.link.receive(&self.notices, Some(timeout))?;
            if let Some(terms) = self.handle_notice(notice)? {
                return Ok(self.established(terms));
            }
        }
    }

    /// Whether RDMA has started by now: the connection, or this again.
    ///
    /// # Errors
    /// Why it will not start.
    pub fn poll(mut self) -> Result<Result<Connection, Self>, EndpointError> {
        loop {
            match self.notices.try_recv() {
                Ok(notice) => {
                    if let Some(terms) = self.handle_notice(notice)? {
                        return Ok(Ok(self.established(terms)));
                    }
                }
                Err(TryRecvError::Empty) => return Ok(Err(self)),
                Err(TryRecvError::Disconnected) => return Err(EndpointError::Down),
            }
        }
    }

    /// The terms, once RDMA has started.
    fn handle_notice(&mut self, notice: Notice) -> Result<Option<Negotiated>, EndpointError> {
        match notice {
            Notice::Event(StreamEvent::Established(terms)) => return Ok(Some(terms)),
            Notice::Event(StreamEvent::Rejected(rejection)) => {
                return Err(EndpointError::Rejected(rejection));
            }
            // What follows a reason is its consequence.
            Notice::Event(StreamEvent::StartupFailed(failure)) => {
                return Err(match self.reason.clone() {
                    EndpointError::Closed => EndpointError::Startup(failure),
                    earlier => earlier,
                });
            }
            Notice::Refused(error @ EndpointError::Io(_)) => self.reason = error,
            Notice::Refused(error) => return Err(error),
            Notice::Closed(_) => return Err(self.reason.clone()),
            Notice::Event(_) => {}
        }
        Ok(None)
    }

    fn established(self, terms: Negotiated) -> Connection {
        let Self { claim, remote, notices, .. } = self;
        Connection { claim, remote, terms, notices }
    }
}

/// A peer that asks to start RDMA. Dropping it closes the connection.
#[derive(Debug)]
pub struct ConnectRequest {
    connecting: Connecting,
    request: PeerRequest,
}

impl ConnectRequest {
    pub(crate) const fn new(connecting: Connecting, request: PeerRequest) -> Self {
        Self { connecting, request }
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

    /// Accepts with `qp`; [`Connecting::wait`] waits for the start of RDMA.
    ///
    /// # Errors
    /// [`EndpointError::Down`]. All else is told by [`Connecting::wait`].
    pub fn accept(self, qp: &Qp, offer: &Offer<'_>) -> Result<Connecting, EndpointError> {
        let Self { connecting, .. } = self;
        let (key, qp, offer) = (connecting.claim.key, qp.clone(), OwnedOffer::new(offer));
        connecting.claim.send(Command::Accept { key, qp, offer })?;
        Ok(connecting)
    }

    /// Refuses, with Private Data for the peer's application, and closes.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), EndpointError> {
        let claim = &mut self.connecting.claim;
        let offer = OwnedOffer::new(&Offer { private_data, ..Offer::default() });
        claim.send(Command::Reject { key: claim.key, offer })?;
        claim.released = true;
        Ok(())
    }
}

/// An open connection. Dropping it closes it in order: work posted so far is finished first.
#[derive(Debug)]
pub struct Connection {
    claim: Claim,
    remote: SocketAddr,
    terms: Negotiated,
    notices: Receiver<Notice>,
}

impl Connection {
    /// The peer's address.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// What was agreed at the start, with the peer's Private Data.
    #[must_use]
    pub const fn terms(&self) -> &Negotiated {
        &self.terms
    }

    /// Waits for something to happen to the connection; `Ok(None)` when nothing does in time.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn next_event(&self, timeout: Duration) -> Result<Option<ConnectionEvent>, EndpointError> {
        loop {
            let notice = match self.claim.link.receive(&self.notices, Some(timeout)) {
                Ok(notice) => notice,
                Err(EndpointError::Timeout) => return Ok(None),
                Err(error) => return Err(error),
            };
            return Ok(Some(match notice {
                Notice::Event(StreamEvent::Failed(error)) => ConnectionEvent::Failed(error),
                Notice::Event(StreamEvent::Terminated(terminate)) => {
                    ConnectionEvent::Terminated(terminate)
                }
                Notice::Event(StreamEvent::PeerClosed) => ConnectionEvent::PeerClosed,
                Notice::Closed(counters) => ConnectionEvent::Closed(counters),
                Notice::Event(_) | Notice::Refused(_) => continue,
            }));
        }
    }

    /// What the connection has counted so far.
    ///
    /// # Errors
    /// [`EndpointError::Closed`] when it is over: [`ConnectionEvent::Closed`] has the counts.
    pub fn counters(&self) -> Result<Box<ConnectionCounters>, EndpointError> {
        let (reply, reply_rx) = bounded(1);
        self.claim.send(Command::Counters { key: self.claim.key, reply })?;
        self.claim.link.receive(&reply_rx, None).map_err(|_| EndpointError::Closed)
    }

    /// Starts to close in order: work posted so far is finished first. [`ConnectionEvent::Closed`]
    /// tells when it is done.
    pub fn disconnect(&self) {
        // An endpoint that is down has closed it.
        let _down = self.claim.send(Command::Disconnect { key: self.claim.key });
    }

    /// Ends the connection at once with a RST.
    pub fn abort(&self) {
        let _down = self.claim.send(Command::Abort { key: self.claim.key });
    }
}

/// Waits for peers at one address. Dropping it lets no more in; connections stay.
#[derive(Debug)]
pub struct Listener {
    /// One for each worker of the endpoint.
    links: Vec<Link>,
    local: SocketAddr,
    requests: Receiver<ConnectRequest>,
}

impl Listener {
    pub(crate) const fn new(
        links: Vec<Link>,
        local: SocketAddr,
        requests: Receiver<ConnectRequest>,
    ) -> Self {
        Self { links, local, requests }
    }

    /// The address listened at.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Waits for the next peer's request; `Ok(None)` when none comes in time.
    ///
    /// # Errors
    /// [`EndpointError::Down`].
    pub fn next_request(&self, timeout: Duration) -> Result<Option<ConnectRequest>, EndpointError> {
        let link = self.links.first().ok_or(EndpointError::Down)?;
        match link.receive(&self.requests, Some(timeout)) {
            Ok(request) => Ok(Some(request)),
            Err(EndpointError::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for link in &self.links {
            let _down = link.send(Command::Unlisten { local: self.local });
        }
    }
}
