//! Messages from a worker to the handle of a connection.

use crate::error::Error;
use urnic_engine::port::ConnectionCounters;
use urnic_engine::stream::StreamEvent;

#[derive(Debug)]
pub(crate) enum Notice {
    /// An event of the connection's stream. Boxed, since few are queued at a time.
    Event(Box<StreamEvent>),
    /// The connection could not be opened, or the last request for it could not be executed.
    Refused(Box<Error>),
    PeerEnding,
    Closed(Box<ConnectionCounters>),
}
