//! vhost-user: network devices in memory that two processes share, without the kernel in the data
//! path. A Unix socket carries descriptors of memory and of events; frames go through virtqueues.
//! The *frontend* ([`VirtioUser`]) acts as the driver and owns the memory. The *backend*
//! ([`VhostUser`]) acts as the device, and reads and writes it. Other peers are QEMU's guests and
//! DPDK. Neither end trusts the other: see `virtqueue`. The devices count a peer's faults
//! ([`RingCounters`]). A fault that makes a queue unusable takes the link down until the peer sets
//! the queue up again.

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

/// Settings of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserConfig {
    /// Path of the Unix socket.
    pub path: PathBuf,
    /// True if this end creates the socket and waits for a peer, false if it connects to one.
    pub listens: bool,
    /// Largest IP datagram, in bytes, which is not negotiated: configure both ends alike.
    pub mtu: usize,
    /// True if this end offers and accepts super-frames and partial checksums.
    pub offloads: bool,
    /// True if a backend refuses memory that is not sealed with `F_SEAL_SHRINK`: it could be taken
    /// away.
    pub sealed: bool,
    /// User ID whose processes are accepted as peer, besides this process's user and root.
    pub peer: Option<u32>,
    /// Limit of a frontend's mapped memory, in bytes. The kernel may charge its pages to the
    /// backend.
    pub memory_max: u64,
}

impl VhostUserConfig {
    /// Default limit of a frontend's mapped memory: 64 GiB.
    pub const MEMORY_DEFAULT: u64 = 64 << 30;

    /// Returns a backend's settings: MTU 1500, with offloads, listening.
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

    /// Returns a frontend's settings: MTU 1500, with offloads, connecting.
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

/// Counters of a virtqueue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Frames received.
    pub frames_rx: u64,
    /// Received bytes copied: heads, short frames, and frames whose checksum must be verified.
    pub copied_rx_bytes: u64,
    /// Received bytes handed over in place; the stack copies them once, to their destination.
    pub in_place_rx_bytes: u64,
    /// Frames transmitted.
    pub frames_tx: u64,
    /// Transmitted bytes copied, once, into the memory of the queues, unless they are published
    /// memory.
    pub copied_tx_bytes: u64,
    /// Transmitted bytes that the peer reads in place, in published memory.
    pub referred_tx_bytes: u64,
    /// Events sent to the peer.
    pub events_sent: u64,
    /// Invalid chains of buffers, which were refused.
    pub chains_refused: u64,
    /// Frames that were refused: too long, or shorter than their header.
    pub frames_refused: u64,
    /// Chains of a frontend returned unread because its two queues were not both enabled.
    pub chains_discarded: u64,
    /// Queues that became unusable.
    pub queues_ended: u64,
    /// Regions of a frontend not mapped: beyond the limit, not a memory file, or not sealed.
    pub regions_refused: u64,
    /// Sessions with a peer that ended.
    pub sessions_ended: u64,
    /// Peers refused because they run as another user ([`VhostUserConfig::peer`]).
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

/// Accepted MTUs. The longest frame of the largest MTU still fits into a super-frame.
const MTU: RangeInclusive<usize> = 68..=65_521;
/// Accepted numbers of virtqueue pairs. The protocol has eight bits for the number of a queue.
const QUEUES: RangeInclusive<usize> = 1..=64;
/// Longest time that a message of the peer waits while frames flow: the frontend copies frames
/// until its memory is known. A poll of the socket takes a few hundred nanoseconds.
const CONTROL_INTERVAL_NS: u64 = 1_000_000;
/// Interval at which the device must be polled even if nothing arrives, in nanoseconds.
const CHECK_INTERVAL_NS: u64 = 100_000_000;
const MESSAGES_MAX: usize = 64;
/// Longest frame with its header: 64 KiB and the tagged link header.
const FRAME_LEN_MAX: usize = offload::HEADER_LEN + 65_536 + 22;

#[cfg(test)]
mod tests;
