//! Interface between a worker and its engine: a port on its device, or sockets of the kernel.

use std::fmt;
use std::task::Waker;

use crate::mail::command::Command;
use crate::mail::wakeup::Wakeup;
use urnic_engine::time::Instant;

/// Moves data for the connections of one endpoint. Belongs to one worker.
///
/// No connection outlives its engine: dropping the engine fails all work, also after a panic, so
/// that no application waits for ever.
pub(crate) trait Engine: fmt::Debug + Send {
    /// Executes a command of a handle.
    fn handle_command(&mut self, now: Instant, command: Command);

    /// Receives, sends and reports events, as far as possible without waiting. Returns the amount
    /// of work done, in any unit. 0 means that nothing happens until
    /// [`next_wakeup`](Self::next_wakeup), input, or new work.
    fn turn(&mut self, now: Instant) -> usize;

    /// Time of the next work without input or posted work.
    fn next_wakeup(&mut self) -> Option<Instant>;

    /// Asks for a call of `waker` at new work. Returns false if there is work already.
    fn arm(&mut self, waker: &Waker) -> bool;

    /// Cancels the request of `waker`.
    fn disarm(&mut self, waker: &Waker);

    /// Sleeps until there is input, `wakeup` is rung, or `deadline` is reached.
    fn wait(&mut self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup);

    /// Ends all connections with a RST to their peers.
    fn shutdown(&mut self, now: Instant);

    /// Closes all connections in order.
    fn close_all(&mut self, now: Instant);

    /// Reports what the peers of closing connections have not received or acknowledged yet.
    fn owed(&self) -> Owed;

    /// Resets connections with undelivered bytes.
    fn abort_owing(&mut self);
}

/// Work left before an engine can end without loss for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owed {
    /// No work is left.
    Nothing,
    /// The peers have everything of this end. Their FINs may still have to be acknowledged.
    Answers,
    /// Bytes, or this end's FIN.
    Octets,
}
