//! A link of two processes on one host by memory that each can read of the other, and none can write.
//!
//! Frames are copied once, from where their bytes are in the sender to where the receiver's program
//! wants them, in both directions. What a frame consists of is described in the sender's *outbox*:
//!
//! ```text
//!   limits      every bound
//!   layout      what is where in an outbox
//!   message     what the two ends say on their socket
//!   announced   what the peer knows of this end's published memory
//!   outbox      frames into the ring: copied, or referred to in published memory
//!   regions     the peer's published memory
//!   inbox       frames of the peer's ring, where their octets are
//!   session     one connection of the two
//!   device      Shm: the device, and how the two find each other
//! ```
//!
//! Neither side trusts the other. Each has an outbox of its own, a file in memory that is sealed so that a
//! process which has its descriptor can read it and nothing else, and so is all memory of a
//! [`Publisher`](crate::published::Publisher). What a process has written there it keeps in memory of its own, and never reads back;
//! of what it reads of its peer each word is loaded once. A peer can thus say what is wrong, and change
//! what it has said while it is read, but not harm what is not its own: a frame that cannot be is refused
//! and counted, a ring that cannot go on ends the session.

mod announced;
mod device;
mod inbox;
mod layout;
mod limits;
mod message;
mod outbox;
mod regions;
mod session;

use std::path::PathBuf;

pub use device::Shm;

/// How the two processes meet, and what goes between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// The socket.
    pub path: PathBuf,
    /// Whether this end makes the socket and waits for its peer, or connects to a peer that is there. One
    /// of the two has to listen.
    pub listens: bool,
    /// Largest IP datagram, in bytes, 68 to 65521. Both ends have to have the same.
    pub mtu: usize,
    /// A user whose processes may be the other end, besides those of this process's user and of root.
    pub peer: Option<u32>,
}

impl ShmConfig {
    /// The MTU where none was chosen, in bytes.
    pub const MTU_DEFAULT: usize = 1500;
}

/// What has gone through a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Frames received.
    pub frames_rx: u64,
    /// Their bytes that were handed over where they are in the peer's memory.
    pub rx_bytes_in_place: u64,
    /// Their bytes that were copied before: headers, and short frames.
    pub rx_bytes_copied: u64,
    /// Frames transmitted.
    pub frames_tx: u64,
    /// Their bytes that the peer reads where they are in published memory.
    pub tx_bytes_referred: u64,
    /// Their bytes that were copied to where the peer reads them.
    pub tx_bytes_copied: u64,
    /// Frames with bytes in published memory that the peer had not read when the device was looked at
    /// last: it may still read that memory.
    pub frames_tx_referred_unread: u64,
    /// Times the peer was woken.
    pub events_sent: u64,
    /// Frames of the peer that were refused: of a length that cannot be, or with bytes outside what it has
    /// published.
    pub frames_refused: u64,
    /// Pieces of the peer's memory that were not mapped: not sealed, not as long as was said, not there as
    /// a whole, or too many.
    pub regions_refused: u64,
    /// Connections with a peer that ended.
    pub sessions_ended: u64,
    /// Peers that were refused: processes of other users ([`ShmConfig::peer`]).
    pub peers_refused: u64,
}

#[cfg(test)]
mod tests;
