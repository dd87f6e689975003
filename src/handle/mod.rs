//! Handles of applications: they send commands to workers; an endpoint starts and ends these.

pub(crate) mod comp_channel;
pub(crate) mod connecting;
pub(crate) mod connection;
pub(crate) mod endpoint;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod watch;
