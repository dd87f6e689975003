//! Messages from a worker to the handle of a connection.

use crate::error::Error;
use urnic_engine::port::ConnectionCounters;
use urnic_engine::stream::StreamEvent;

/// Message about a connection.
#[derive(Debug)]
pub(crate) enum Notice {
    /// An event of its stream. Boxed, since few are queued at a time.
    Event(Box<StreamEvent>),
    /// It could not be opened, or the last request for it could not be executed.
    Refused(Box<Error>),
    /// The peer has closed its half, behind messages that wait for receives.
    PeerEnding,
    /// It is over.
    Closed(Box<ConnectionCounters>),
}
