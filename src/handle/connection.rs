//! Open connections.

use std::net::SocketAddr;

use std::task::Waker;

use crossbeam::channel::bounded;
use tracing::debug;

use crate::clock::monotonic_now;
use crate::error::Error;
use crate::handle::link::WorkerLink;
use crate::mail::channel::HandleEnd;
use crate::mail::command::Command;
use crate::mail::command::outbox::Claim;
use crate::mail::notice::Notice;
use urnic_engine::mpa::startup::Negotiated;
use urnic_engine::port::ConnectionCounters;
use urnic_engine::stream::{StreamError, StreamEvent};
use urnic_engine::time::Duration;
use urnic_engine::wire::terminate::Terminate;

/// Event of an open connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// This end found an error, sends a Terminate to the peer and closes the connection.
    Failed(StreamError),
    /// The peer ended the stream with this Terminate.
    Terminated(Terminate),
    /// The peer has closed its half of the connection: nothing more arrives. Posted work is still
    /// sent; [`disconnect`](Connection::disconnect) closes this half.
    PeerClosed,
    /// The peer has closed its half, after messages that wait for receives
    /// ([`QpRules::IwarpWait`](crate::QpRules::IwarpWait)) and are too many to be read for
    /// now. Receives posted now still get them. Reported only over the kernel's TCP, before
    /// [`PeerClosed`](Self::PeerClosed).
    PeerEnding,
    /// The connection is over for the application; these are its counters. TCP may keep the
    /// addresses for a while (TIME-WAIT).
    Closed(Box<ConnectionCounters>),
}

/// An open connection. Dropping it closes it as [`disconnect`](Self::disconnect) does: work posted
/// so far is finished first, even if the peer closes its half meanwhile.
///
/// # Events
/// In this order, each at most once:
/// 1. [`PeerClosed`](ConnectionEvent::PeerClosed): receives are flushed; this end may still send.
/// 2. [`Failed`](ConnectionEvent::Failed) or [`Terminated`](ConnectionEvent::Terminated): all work
///    was completed, with errors. Without one of these events the end is orderly.
/// 3. [`Closed`](ConnectionEvent::Closed), always, unless the endpoint ends first: all work is
///    completed, and the connection holds neither memory nor its queue pair.
///
/// Once this end closes, or has failed, a peer cannot delay the end for ever: each stage of a
/// connection's life has a timer ([table](urnic_engine::stream::life)). While this end does not
/// close, a peer may be silent for any time.
#[derive(Debug)]
pub struct Connection {
    pub(super) link: WorkerLink,
    pub(super) claim: Claim,
    pub(super) remote: SocketAddr,
    pub(super) terms: Negotiated,
    pub(super) notices: HandleEnd<Notice>,
}

impl Connection {
    /// The peer's address.
    #[must_use]
    pub const fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Terms agreed on at the start, with the peer's Private Data.
    #[must_use]
    pub const fn terms(&self) -> &Negotiated {
        &self.terms
    }

    /// Waits for an event of the connection; `Ok(None)` if none comes in time.
    ///
    /// # Errors
    /// [`Error::Down`].
    pub fn next_event(&self, timeout: Duration) -> Result<Option<ConnectionEvent>, Error> {
        loop {
            let notice = match self.link.receive(&self.notices, Some(timeout)) {
                Ok(notice) => notice,
                Err(Error::Timeout) => return Ok(None),
                Err(error) => return Err(error),
            };
            return Ok(Some(match notice {
                Notice::Event(event) => match *event {
                    StreamEvent::Failed(error) => ConnectionEvent::Failed(error),
                    StreamEvent::Terminated(terminate) => ConnectionEvent::Terminated(terminate),
                    StreamEvent::PeerClosed => ConnectionEvent::PeerClosed,
                    _ => continue,
                },
                Notice::PeerEnding => ConnectionEvent::PeerEnding,
                Notice::Closed(counters) => ConnectionEvent::Closed(counters),
                Notice::Refused(_) => continue,
            }));
        }
    }

    /// Asks for one call of `waker` when [`next_event`](Self::next_event) may have something new.
    /// Call that once more, with a timeout of zero: earlier events cause no call. The endpoint's
    /// worker calls `waker`, which must not wait for completions or an endpoint.
    pub fn notify(&self, waker: &Waker) {
        self.notices.notify(waker);
    }

    /// Counters of the connection so far.
    ///
    /// # Errors
    /// [`Error::Closed`] if it is over: [`ConnectionEvent::Closed`] has the counters.
    pub fn counters(&self) -> Result<Box<ConnectionCounters>, Error> {
        let (reply, reply_rx) = bounded(1);
        self.claim.send(Command::Counters { key: self.claim.key(), reply })?;
        self.link.receive(&reply_rx, None).map_err(|_| Error::Closed)
    }

    /// Starts to close in order: work posted so far is finished first. The peer may continue to
    /// send as long as its FPDUs keep coming (RFC 5041 §6.2.1), and receives may be posted for
    /// them. Without progress for [`CLOSE_SILENCE_NS`](urnic_engine::limits::CLOSE_SILENCE_NS) the
    /// connection is reset.
    pub fn disconnect(&self) {
        debug!(target: "urnic", remote = %self.remote, "closing");
        // An endpoint that is down has closed it.
        let _down = self.claim.send(Command::Disconnect { key: self.claim.key() });
    }

    /// Closes in order and waits for the end: [`disconnect`](Self::disconnect), then events until
    /// [`ConnectionEvent::Closed`]. Both ends should do this before they drop their endpoints: the
    /// drop resets unclosed connections.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the peer does not close in time: the connection continues to close.
    /// [`Error::Closed`] if the end was reported before.
    pub fn close(self, timeout: Duration) -> Result<Box<ConnectionCounters>, Error> {
        self.disconnect();
        let deadline = monotonic_now() + timeout;
        loop {
            let left = deadline - monotonic_now();
            match self.link.receive(&self.notices, Some(left)) {
                Ok(Notice::Closed(counters)) => return Ok(counters),
                Ok(_) => {}
                Err(Error::Down) => return Err(Error::Closed),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the connection at once with a RST.
    pub fn abort(&self) {
        debug!(target: "urnic", remote = %self.remote, "resetting");
        let _down = self.claim.send(Command::Abort { key: self.claim.key() });
    }
}
