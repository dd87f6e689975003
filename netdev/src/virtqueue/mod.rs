//! Split virtqueues (Virtio 1.2 §2.7): rings in memory that is shared with a peer.
//!
//! 1. The driver writes a buffer's descriptor, puts its number into the available ring, and stores
//!    the available index (`publish`).
//! 2. The device loads that index, takes chains of buffers, reads or fills them, puts their heads
//!    into the used ring, and stores the used index (`publish`).
//! 3. The driver loads that index, and takes the buffers back.
//! 4. A side that is about to sleep asks for an event (`arm`). `publish` on the other side returns
//!    true if its caller must send the event.
//!
//! Racy case: *a side goes to sleep while the other side publishes.* Each side stores its word,
//! then loads the word of the other, with a fence between. At least one of the two sees the other's
//! store: `arm` returns true, and the caller does not sleep, or `publish` returns true.
//!
//! The peer may write any of this memory at any time: an index, address or length is loaded once,
//! and only that copy is checked and used.

mod device;
mod driver;
mod memory;
mod ring;

pub(crate) use device::{Chain, DeviceQueue};
pub(crate) use driver::{DriverQueue, TABLE_ENTRY_LEN, table_entry};
pub(crate) use memory::{MemoryTable, Region, Run, TableError};
pub(crate) use ring::{Layout, passes};

/// Most descriptors in one chain, for any ring length.
pub(crate) const CHAIN_LEN_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The driver writes, the device reads.
    ToDevice,
    /// The device writes, the driver reads.
    ToDriver,
}

/// Fault that makes a queue unusable until it is set up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueFault {
    #[error("an index is ahead by more than the ring's length")]
    Index,
    #[error("a chain begins outside the descriptor table")]
    Head,
    #[error("a buffer that was not offered is returned")]
    Unknown,
    #[error("more bytes are reported as written than a buffer has")]
    Length,
}

/// Fault in a single chain; the ring remains usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainFault {
    #[error("a descriptor is outside its table")]
    Descriptor,
    /// Too many descriptors in a chain, which may be a loop.
    #[error("a chain is longer than allowed")]
    TooLong,
    /// Inside another, beside other descriptors, or not a multiple of a descriptor's length.
    #[error("an invalid indirect table")]
    Table,
    #[error("a buffer is for the other direction")]
    Direction,
    #[error("a buffer is outside the shared memory")]
    Address,
}

#[cfg(test)]
mod tests;
