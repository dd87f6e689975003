//! Connections of two local processes at a Unix socket: the common part of devices in shared
//! memory.
//!
//! ```text
//!   meeting   connection set-up at a path
//!   identity  users whose processes may be the peer
//!   channel   socket for messages with descriptors
//!   header    header of a message
//!   datagram  datagrams with the user of their sender
//!   tell      events between the two processes
//!   closer    closes the peer's descriptors without blocking
//!   mapped    count of the peers' memory that the process maps
//!   limits    all limits
//! ```

pub(crate) mod channel;
pub(crate) mod closer;
pub(crate) mod datagram;
pub(crate) mod header;
pub(crate) mod identity;
mod limits;
pub(crate) mod mapped;
pub(crate) mod meeting;
pub(crate) mod tell;
