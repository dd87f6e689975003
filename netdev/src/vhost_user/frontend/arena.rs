//! Memory of a frontend that its backend maps: layout of queues and buffers.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::sys::shared_mapping::sealed_memory;
use crate::vhost_user::FRAME_LEN_MAX;
use crate::vhost_user::message::MemoryRegion;
use crate::virtqueue::{MemoryTable, TABLE_ENTRY_LEN};

/// Entries of a queue. Each entry has a buffer for any frame.
pub(super) const QUEUE_SIZE: u16 = 128;
/// Most runs of a frame. Virtio 1.2 §2.7.5.3.1: "A driver MUST NOT create a descriptor chain longer
/// than the Queue Size of the device". A backend may count the descriptor of the run table, too.
pub(super) const RUNS_MAX: usize = QUEUE_SIZE as usize - 1;
/// Offset of the copied bytes in a buffer that begins with a table of runs. The table and short
/// copied bytes are in the same page.
pub(super) const WRITTEN_AT: usize = (RUNS_MAX * TABLE_ENTRY_LEN).next_multiple_of(64);
/// Distance of two buffers: whole pages.
pub(super) const SLOT_LEN: usize = (WRITTEN_AT + FRAME_LEN_MAX).next_multiple_of(4096);
/// Length of a queue's three parts. The descriptor table comes first.
const RING_LEN: usize = 12_288;
const AVAILABLE_AT: usize = 4096;
const USED_AT: usize = 8192;
/// Length of one queue with its buffers.
const QUEUE_LEN: usize = RING_LEN + QUEUE_SIZE as usize * SLOT_LEN;
const PAIR_LEN: usize = 2 * QUEUE_LEN;
/// Guest and user address of the memory's first byte. It is constant, so that it reveals no address
/// of this process.
const BASE: u64 = 0x1_0000_0000;
const NAME: &CStr = c"urnic virtio-user";

const _: () = assert!(QUEUE_SIZE as usize * 16 <= AVAILABLE_AT);

/// Memory of all virtqueue pairs, shared with one backend.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) table: Arc<MemoryTable>,
    pub(super) file: OwnedFd,
    pub(super) region: MemoryRegion,
}

impl Arena {
    /// Creates the memory. Each session has memory of its own, so that an earlier backend's mapping
    /// gives it no access to a later session.
    pub(super) fn new(pairs: usize) -> io::Result<Self> {
        let len = pairs * PAIR_LEN;
        let file = sealed_memory(NAME, len)?;
        let mut table = MemoryTable::default();
        table.add([BASE, BASE, len as u64, 0], file.as_fd()).map_err(io::Error::other)?;
        let region = MemoryRegion { guest: BASE, len: len as u64, user: BASE, offset: 0 };
        Ok(Self { table: Arc::new(table), file, region })
    }

    /// Returns the addresses of a queue's parts: descriptors, available ring, used ring.
    pub(super) const fn parts(index: usize) -> [u64; 3] {
        let at = BASE + (index * QUEUE_LEN) as u64;
        [at, at + AVAILABLE_AT as u64, at + USED_AT as u64]
    }
}

/// Returns the guest address of a buffer of queue `index`.
pub(super) const fn slot(index: usize, number: u16) -> u64 {
    BASE + (index * QUEUE_LEN + RING_LEN + number as usize * SLOT_LEN) as u64
}
