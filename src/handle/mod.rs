//! What programs hold: endpoints, listeners, connections, and waiting for completions. Handles send
//! mail to workers; an endpoint starts and ends them.

pub(crate) mod comp_channel;
pub(crate) mod connecting;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod watch;
