//! Two processes of one host that meet at a Unix socket: what devices in shared memory have in common.
//!
//! ```text
//!   meeting   where the two processes find each other
//!   identity  which users' processes may be the peer
//!   channel   the socket that carries messages with descriptors
//!   header    the front of a message
//!   datagram  datagrams that say who sent them
//!   tell      events between the two
//!   closer    descriptors of the peer, closed where that may wait
//!   mapped    bytes of peers' memory that the process maps
//!   limits    every bound
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
