//! What a worker turns: a port on its device, or sockets of the kernel.

use std::fmt;
use std::task::Waker;

use crate::mail::command::Command;
use crate::mail::wakeup::Wakeup;
use urnic_engine::time::Instant;

/// Moves data for the connections of one endpoint. Belongs to one worker.
///
/// No connection outlives its engine: dropped, it fails all work, also after a panic in the middle
/// of something, so that no program waits for it for ever.
pub(crate) trait Engine: fmt::Debug + Send {
    /// Carries out a request of a handle.
    fn handle_command(&mut self, now: Instant, command: Command);

    /// Moves what can be moved without waiting; returns how much, in units of its own. 0 means that
    /// nothing happens until [`next_wakeup`](Self::next_wakeup), input, or new work.
    fn turn(&mut self, now: Instant) -> usize;

    /// When there is something to do without input or new work.
    fn next_wakeup(&mut self) -> Option<Instant>;

    /// Asks for a call of `waker` at new work; `false` when there is work already.
    fn arm(&mut self, waker: &Waker) -> bool;

    /// The call of `waker` is wanted no more.
    fn disarm(&mut self, waker: &Waker);

    /// Sleeps until there is input, `wakeup` is rung, or `deadline` has come.
    fn wait(&mut self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup);

    /// Ends all connections, telling their peers.
    fn shutdown(&mut self, now: Instant);

    /// Closes all connections in order.
    fn close_all(&mut self, now: Instant);

    /// What is missing until the peers of connections that close have been told all.
    fn owed(&self) -> Owed;

    /// Resets connections that owe their peers something.
    fn abort_owing(&mut self);
}

/// What is missing until an engine can go without its peers missing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owed {
    /// Nothing.
    Nothing,
    /// Acknowledgments of what the peers still send: their ends, most likely.
    Answers,
    /// Bytes, or this end's close.
    Octets,
}
