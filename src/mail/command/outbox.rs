//! Sending to a worker: commands, the key of the next connection, and the obligation to close one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::channel::Sender;

use crate::error::Error;
use crate::mail::command::{Command, ConnectionKey};
use crate::mail::wakeup::Wakeup;

/// An outbox does not keep the worker alive, so the worker itself may have one.
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

    pub(crate) fn next_key(&self) -> ConnectionKey {
        ConnectionKey(self.key_next.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn claim(&self, key: ConnectionKey) -> Claim {
        Claim { outbox: self.clone(), key, released: false }
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).map_err(|_| Error::Down)?;
        self.wakeup.ring();
        Ok(())
    }

    pub(crate) fn is_of_same_worker(&self, other: &Self) -> bool {
        self.commands.same_channel(&other.commands)
    }
}

/// Dropping it closes the connection.
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

    /// The worker closes the connection itself.
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

#[cfg(test)]
mod tests {
    use crossbeam::channel::unbounded;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_dropped_claim_closes_its_connection_unless_it_was_released() {
        let (sender, commands) = unbounded();
        let outbox = Outbox::new(sender, Wakeup::new().unwrap());
        for is_released in [true, false] {
            let mut claim = outbox.claim(outbox.next_key());
            if is_released {
                claim.release();
            }
            let key = claim.key();
            drop(claim);
            let closed = commands.try_recv().ok();
            let is_its = |command: &Command| matches!(command, Command::Disconnect { key: closed } if *closed == key);
            assert_eq!(closed.as_ref().is_some_and(is_its), !is_released);
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let wakeup = &**outbox.wakeup();
            let woken = poll(&mut [PollFd::new(wakeup, PollFlags::IN)], Some(&at_once));
            assert_eq!(woken, Ok(usize::from(!is_released)), "a command wakes the worker");
        }
        drop(commands);
        let command = Command::Disconnect { key: outbox.next_key() };
        assert_eq!(outbox.send(command), Err(Error::Down));
    }
}
