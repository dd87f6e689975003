//! Link between two processes on one host through shared memory that only its owner can write. Each
//! end owns an *outbox*: a ring of descriptors, copied bytes of frames, its read position of the
//! peer's ring, and its requests for wake-ups. A frame's bytes are in the outbox or in published
//! memory, and the receiver reads them in place.
//!
//! 1. The ends connect by a Unix socket. Each sends Hello with its outbox, and maps the peer's
//!    outbox read-only. An end's link is up from then on.
//! 2. An end sends Publish for each region of its published memory. The peer maps the region, or
//!    answers with Refuse: its bytes are then copied.
//! 3. To transmit, the sender writes descriptors into its ring (`Outbox::put`). `flush` stores the
//!    position behind them (*produced*).
//! 4. The receiver loads that position, reads each descriptor once, hands the frames over, and
//!    stores its read position (*consumed*) in its own outbox.
//! 5. The sender loads the read position, and reuses the space of the frames before it.
//! 6. An end that is about to sleep stores the position at which it wants a wake-up. The peer sends
//!    Wake when it stores a position behind that.
//!
//! Racy cases:
//!
//! - *An end goes to sleep while the peer stores a position.* Each end stores its word, then loads
//!   the word of the other, with a fence between. At least one sees the other's store: the end does
//!   not sleep, or the peer sends Wake.
//! - *A frame is read before the message that announces its region.* Publish is in the socket
//!   before the frame is published. A receiver that does not know a region handles waiting messages
//!   before it refuses the frame.
//! - *A region is withdrawn while frames in the ring refer to it.* The sender sends Withdraw when
//!   the peer has read those frames. (Withdraw has a position: the peer unmaps the region when it
//!   has read the ring up to there.)
//! - *A frame refers to a region whose Refuse is not handled yet.* The receiver refuses the frame.
//!   TCP retransmits it, copied.
//! - *The peer closes the socket, and another process still writes its outbox.* The receiver loads
//!   the produced position once more, hands over the frames before it, and ends the session.
//!
//! No loom model: loom has no memory of other processes. The race for sleep is that of the engine's
//! `alarm`, which has one. `published::model` runs random histories with crashes.
//!
//! Neither end trusts the other. Outboxes and all memory of a
//! [`Publisher`](crate::published::Publisher) are sealed memory files: other processes can only
//! read them. An end keeps its own state in private memory, and loads each word of the peer's
//! memory once. A malicious peer can write wrong values, and change them while they are read, but
//! it cannot damage memory of this process. An end refuses and counts an invalid frame, and ends
//! the session if the ring is inconsistent.

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

/// Settings of one end of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Path of the Unix socket on which the two ends connect.
    pub path: PathBuf,
    /// True if this end creates the socket and waits for a peer: one of the two ends must.
    pub listens: bool,
    /// Largest IP datagram, in bytes, 68 to 65521. Both ends must have the same.
    pub mtu: usize,
    /// User ID whose processes are accepted as peer, besides this process's user and root.
    pub peer: Option<u32>,
}

impl ShmConfig {
    /// Default MTU, in bytes.
    pub const MTU_DEFAULT: usize = 1500;
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Frames received.
    pub frames_rx: u64,
    /// Received bytes handed over in place, in the peer's memory.
    pub rx_bytes_in_place: u64,
    /// Received bytes copied first: headers and short frames.
    pub rx_bytes_copied: u64,
    /// Frames transmitted.
    pub frames_tx: u64,
    /// Transmitted bytes that the peer reads in place, in published memory.
    pub tx_bytes_referred: u64,
    /// Transmitted bytes copied into the outbox.
    pub tx_bytes_copied: u64,
    /// Frames with bytes in published memory that the peer may still read.
    pub frames_tx_referred_unread: u64,
    /// Wake-ups sent to the peer.
    pub events_sent: u64,
    /// Refused frames of the peer: invalid length, or bytes outside of its published memory.
    pub frames_refused: u64,
    /// Regions of the peer that were not mapped: not sealed, another length than announced, missing
    /// pages, or too many.
    pub regions_refused: u64,
    /// Sessions with a peer that ended.
    pub sessions_ended: u64,
    /// Peers refused because they run as another user ([`ShmConfig::peer`]).
    pub peers_refused: u64,
}

#[cfg(test)]
mod tests;
