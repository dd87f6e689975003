//! Listeners for connections of peers.

use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use crossbeam::channel::bounded;

use crate::error::Error;
use crate::handle::connecting::ConnectRequest;
use crate::handle::link::WorkerLink;
use crate::mail::channel::HandleEnd;
use crate::mail::command::{Command, Incoming};

/// Waits for peers at one address. Dropping it stops new connections; existing ones stay.
#[derive(Debug)]
pub struct Listener {
    links: Vec<WorkerLink>,
    local: SocketAddr,
    requests: HandleEnd<Incoming>,
}

impl Listener {
    pub(crate) const fn new(
        links: Vec<WorkerLink>,
        local: SocketAddr,
        requests: HandleEnd<Incoming>,
    ) -> Self {
        Self { links, local, requests }
    }

    /// The address listened at.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Asks for one call of `waker` when [`next_request`](Self::next_request) may have something
    /// new. Call that once more, with a timeout of zero: earlier requests cause no call. The
    /// endpoint's worker calls `waker`, which must not wait for completions or an endpoint.
    pub fn notify(&self, waker: &Waker) {
        self.requests.notify(waker);
    }

    /// Waits for the next peer's request; `Ok(None)` if none comes in time.
    ///
    /// # Errors
    /// [`Error::Down`].
    pub fn next_request(&self, timeout: Duration) -> Result<Option<ConnectRequest>, Error> {
        let link = self.links.first().ok_or(Error::Down)?;
        match link.receive(&self.requests, Some(timeout)) {
            Ok(incoming) => {
                let outbox = incoming.claim.outbox();
                let of_worker = |link: &&WorkerLink| link.outbox.is_of_same_worker(outbox);
                let link = self.links.iter().find(of_worker).ok_or(Error::Down)?.clone();
                Ok(Some(ConnectRequest::new(link, incoming)))
            }
            Err(Error::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Listener {
    /// Stops new connections, and waits until the address is free for other listeners.
    pub fn close(mut self) {
        for link in std::mem::take(&mut self.links) {
            let (reply, done) = bounded::<()>(0);
            let command = Command::Unlisten { local: self.local, reply: Some(reply) };
            if link.outbox.send(command).is_ok() {
                // The worker drops its end of the channel when it is done, or when it ends.
                let _done = link.receive(&done, None);
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for link in &self.links {
            let _down = link.outbox.send(Command::Unlisten { local: self.local, reply: None });
        }
    }
}
