//! Interface between a worker and its engine: a port on its device, or sockets of the kernel.

use std::fmt;
use std::task::Waker;

use crate::mail::command::Command;
use crate::mail::wakeup::Wakeup;
use urnic_engine::time::Instant;

/// Moves data for the connections of one endpoint. Dropping the engine fails all work, also after a
/// panic, so that no application waits for ever.
pub(crate) trait Engine: fmt::Debug + Send {
    fn handle_command(&mut self, now: Instant, command: Command);

    /// Receives, sends and reports events without waiting. Returns the amount of work done; 0 means
    /// that nothing happens until [`next_wakeup`](Self::next_wakeup), input, or new work.
    fn turn(&mut self, now: Instant) -> usize;

    fn next_wakeup(&mut self) -> Option<Instant>;

    /// Returns false if there is work already.
    fn arm(&mut self, waker: &Waker) -> bool;

    fn disarm(&mut self, waker: &Waker);

    /// Sleeps until there is input, `wakeup` is rung, or `deadline` is reached.
    fn wait(&mut self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup);

    /// Ends all connections with a RST to their peers.
    fn shutdown(&mut self, now: Instant);

    fn close_all(&mut self, now: Instant);

    fn owed(&self) -> Owed;

    fn abort_owing(&mut self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owed {
    Nothing,
    /// The peers have everything of this end. Their FINs may still have to be acknowledged.
    Answers,
    /// Bytes, or this end's FIN.
    Octets,
}
