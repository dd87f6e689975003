//! Split virtqueues (Virtio 1.2 §2.7): rings in memory that is shared with a peer.
//!
//! ```text
//!   memory   which addresses there are, and where they lie here
//!   ring     the three parts of a queue, and its descriptors
//!   device   the side that takes buffers, fills or reads them, and gives them back
//!   driver   the side that owns the memory and offers buffers
//! ```
//!
//! Nothing here waits, notifies or allocates for a buffer. The peer may write any of this memory at
//! any time: an index, address or length is loaded once, judged from that copy, and used from it.

mod device;
mod driver;
mod memory;
mod ring;

pub(crate) use device::{Chain, DeviceQueue};
pub(crate) use driver::{DriverQueue, TABLE_ENTRY_LEN, table_entry};
pub(crate) use memory::{MemoryTable, Region, Run, TableError};
pub(crate) use ring::Layout;

/// Most descriptors in one chain, however long the ring is.
pub(crate) const CHAIN_LEN_MAX: usize = 1024;

/// Which way bytes go through a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The driver wrote them, the device reads.
    ToDevice,
    /// The device writes.
    ToDriver,
}

/// What makes a queue unusable until it is set up anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueFault {
    /// More entries are said to be in a ring than it has.
    #[error("an index is ahead by more than the ring has")]
    Index,
    /// The head of a chain is not in the table.
    #[error("a chain begins outside the descriptor table")]
    Head,
    /// A buffer comes back that is not outstanding.
    #[error("a buffer that was not offered comes back")]
    Unknown,
    /// More was written to a buffer than it has.
    #[error("more is said to be written than a buffer has")]
    Length,
}

/// What is wrong with a single chain; the ring goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainFault {
    /// A descriptor outside its table.
    #[error("a descriptor is outside its table")]
    Descriptor,
    /// More descriptors than a chain may have: it may be a circle.
    #[error("a chain is longer than allowed")]
    TooLong,
    /// A table in a table, beside other descriptors, or of no whole number of them.
    #[error("a table of descriptors is not as it has to be")]
    Table,
    /// Readable where the device writes, or the reverse.
    #[error("a buffer is for the other direction")]
    Direction,
    /// Not in the memory that is shared.
    #[error("a buffer is outside the shared memory")]
    Address,
}

#[cfg(test)]
mod tests;
