//! Messages between handles in application threads and the worker of their endpoint.

pub(crate) mod channel;
pub(crate) mod command;
pub(crate) mod events;
pub(crate) mod figures;
pub(crate) mod notice;
pub(crate) mod wakeup;
