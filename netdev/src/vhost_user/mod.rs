//! vhost-user: network devices in memory that two processes share, without the kernel on the way.
//!
//! A Unix socket carries descriptors of memory and of events; frames go through virtqueues in that
//! memory. The *frontend* ([`VirtioUser`]) has the place of a driver: the memory and the rings are
//! its own. The *backend* ([`VhostUser`]) has the place of a device and copies from and to the
//! frontend's memory. Peers are each other, QEMU's guests, and DPDK.
//!
//! ```text
//!   message     the messages of the protocol, as values
//!   inbound     received frames: what of them is copied
//!   outbound    frames that are sent, copied
//!   offload     feature bits, and the header in front of frames
//!   backend     VhostUser, its session with a frontend, its pairs of queues
//!   frontend    VirtioUser, its session with a backend, its memory and pairs of queues; published memory, and
//!               frames that refer to it
//! ```
//!
//! Neither side trusts the other: see `virtqueue`. What a peer writes wrongly is
//! counted ([`RingCounters`]) and, where a queue cannot go on, takes the link down until the peer
//! sets it up anew.

mod backend;
mod frontend;
mod inbound;
mod message;
mod offload;
mod outbound;
mod shared_pair;

use std::ops::RangeInclusive;
use std::path::PathBuf;

pub use backend::VhostUser;
pub use frontend::VirtioUser;

use crate::{OpenError, Refusals};

/// How the two processes meet, and what goes between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserConfig {
    /// The socket.
    pub path: PathBuf,
    /// Whether this end makes the socket and waits for its peer, or connects to a peer that is there.
    pub listens: bool,
    /// Largest IP datagram, in bytes. Both ends have to agree on it by themselves.
    pub mtu: usize,
    /// Whether super-frames and unfinished checksums are offered, and taken.
    pub offloads: bool,
    /// Whether a frontend's memory is refused that could be taken away (`F_SEAL_SHRINK`).
    pub sealed: bool,
    /// A user whose processes may be the other end, besides those of this process's user and of root.
    pub peer: Option<u32>,
    /// Bytes of a frontend's memory that a backend maps. Pages of it that are not there yet are made when they
    /// are used, and may count as the backend's.
    pub memory_max: u64,
}

impl VhostUserConfig {
    /// Bytes of a frontend's memory that are mapped where no limit was chosen: 64 GiB.
    pub const MEMORY_DEFAULT: u64 = 64 << 30;

    /// An MTU of 1500, with offloads; the backend listens.
    #[must_use]
    pub const fn backend(path: PathBuf) -> Self {
        Self {
            path,
            listens: true,
            mtu: 1500,
            offloads: true,
            sealed: false,
            peer: None,
            memory_max: Self::MEMORY_DEFAULT,
        }
    }

    /// An MTU of 1500, with offloads; the frontend connects.
    #[must_use]
    pub const fn frontend(path: PathBuf) -> Self {
        Self {
            path,
            listens: false,
            mtu: 1500,
            offloads: true,
            sealed: false,
            peer: None,
            memory_max: Self::MEMORY_DEFAULT,
        }
    }

    fn check(&self, queues: usize) -> Result<(), OpenError> {
        OpenError::check_range("MTU of a vhost-user device", self.mtu, MTU)?;
        OpenError::check_range("number of vhost-user queues", queues, QUEUES)
    }
}

/// What a peer has brought about in the queues of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Frames received.
    pub frames_rx: u64,
    /// Bytes of them that were copied out of the shared memory: heads, short frames, and those whose
    /// checksum has to be verified.
    pub copied_rx_bytes: u64,
    /// Bytes of them that were handed over where they are, to be copied once, to where they belong.
    pub in_place_rx_bytes: u64,
    /// Frames transmitted.
    pub frames_tx: u64,
    /// Bytes of them that were copied, once, into the shared memory: all, unless memory is shared where they are.
    pub copied_tx_bytes: u64,
    /// Bytes of them that the peer reads where they are.
    pub referred_tx_bytes: u64,
    /// Times the peer was told by an event.
    pub events_sent: u64,
    /// Chains of buffers that were refused.
    pub chains_refused: u64,
    /// Frames that were refused: too long, or shorter than their header.
    pub frames_refused: u64,
    /// Chains of a frontend given back unread, as its queues were not both enabled.
    pub chains_discarded: u64,
    /// Queues that could not go on.
    pub queues_ended: u64,
    /// Pieces of a frontend's memory that were not mapped: more than it may have, no file in memory, or not sealed.
    pub regions_refused: u64,
    /// Connections of the socket that ended.
    pub sessions_ended: u64,
    /// Peers that were refused: processes of other users ([`VhostUserConfig::peer`]).
    pub peers_refused: u64,
}

impl RingCounters {
    fn refusals(&self) -> Refusals {
        Refusals {
            peers: self.peers_refused,
            regions: self.regions_refused,
            frames: self.frames_refused.saturating_add(self.chains_refused),
            sessions_ended: self.sessions_ended,
        }
    }
}

/// MTUs of which the longest frame is one that a super-frame could be.
const MTU: RangeInclusive<usize> = 68..=65_521;
/// Pairs of queues. The protocol has eight bits for the number of a queue.
const QUEUES: RangeInclusive<usize> = 1..=64;
/// How long a message of the peer may wait while frames flow, in nanoseconds: until memory that it tells of is
/// mapped, what is in it is copied. A look at the socket takes a few hundred.
const CONTROL_INTERVAL_NS: u64 = 1_000_000;
/// How often the device wants to be looked at though nothing arrives, in nanoseconds.
const CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Messages handled in one go.
const MESSAGES_MAX: usize = 64;
/// Longest frame, with its header: 64 KiB and the link header, tagged.
const FRAME_LEN_MAX: usize = offload::HEADER_LEN + 65_536 + 22;

#[cfg(test)]
mod tests;
