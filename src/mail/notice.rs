//! What a worker tells the handle of a connection.

use crate::error::Error;
use urnic_engine::port::ConnectionCounters;
use urnic_engine::stream::StreamEvent;

/// What a worker tells of a connection.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Something happened to its stream. Boxed, as few are told at a time.
    Event(Box<StreamEvent>),
    /// It could not be opened, or the last request for it could not be carried out.
    Refused(Box<Error>),
    /// The peer has closed its half, behind messages that wait for receives.
    PeerEnding,
    /// It is over.
    Closed(Box<ConnectionCounters>),
}
