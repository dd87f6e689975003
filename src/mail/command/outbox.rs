//! Sending to a worker: commands, the key of the next connection, and the obligation to close one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::Sender;

use crate::error::Error;
use crate::mail::command::{Command, ConnectionKey};
use crate::mail::wakeup::Wakeup;

/// Sender of commands to one worker. An outbox does not keep the worker alive, so the worker itself
/// may have one, too.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    commands: Sender<Command>,
    wakeup: Arc<Wakeup>,
    key_next: Arc<AtomicU64>,
}

impl Outbox {
    pub(crate) fn new(commands: Sender<Command>, wakeup: Arc<Wakeup>) -> Self {
        Self { commands, wakeup, key_next: Arc::default() }
    }

    pub(crate) const fn wakeup(&self) -> &Arc<Wakeup> {
        &self.wakeup
    }

    /// The key of a new connection.
    pub(crate) fn next_key(&self) -> ConnectionKey {
        ConnectionKey(self.key_next.fetch_add(1, Ordering::Relaxed))
    }

    /// The obligation to close a connection.
    pub(crate) fn claim(&self, key: ConnectionKey) -> Claim {
        Claim { outbox: self.clone(), key, released: false }
    }

    /// Sends a command to the worker.
    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).map_err(|_| Error::Down)?;
        self.wakeup.ring();
        Ok(())
    }

    /// Returns true if both send to the same worker.
    pub(crate) fn is_of_same_worker(&self, other: &Self) -> bool {
        self.commands.same_channel(&other.commands)
    }
}

/// The key of a connection with the obligation to close it: dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Claim {
    outbox: Outbox,
    key: ConnectionKey,
    released: bool,
}

impl Claim {
    pub(crate) const fn key(&self) -> ConnectionKey {
        self.key
    }

    pub(crate) const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        self.outbox.send(command)
    }

    /// Gives up the obligation, because the worker closes the connection itself.
    pub(crate) fn release(&mut self) {
        self.released = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.released {
            // A worker that has ended has closed it.
            let _gone = self.outbox.send(Command::Disconnect { key: self.key });
        }
    }
}
