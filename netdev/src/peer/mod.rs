//! Two processes of one host that meet at a Unix socket: what devices in shared memory have in common.
//!
//! ```text
//!   meeting   where the two processes find each other
//!   channel   the socket that carries messages with descriptors
//!   header    the front of a message
//!   tell      events between the two
//! ```

pub(crate) mod channel;
pub(crate) mod header;
pub(crate) mod meeting;
pub(crate) mod tell;
