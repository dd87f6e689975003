//! Memory for inline data: the post call copies the application's bytes here, and the application
//! may reuse its own memory at once.
#![expect(unsafe_code, reason = "the program's memory is named by address and length")]

use std::io;

use urnic::{Access, Mr, Pd, Region, Sge};

use crate::abi::ibv_data_buf;
use crate::attributes::INLINE_MAX;
use crate::errno::Errno;

/// One slot more than outstanding requests, so the last user of the next slot has completed.
#[derive(Debug, Default)]
pub(super) struct InlineRing {
    memory: Option<Mr>,
    next: usize,
    /// Slots from `next` on that belong to requests not posted yet.
    taken: usize,
    places: usize,
}

const PLACE_LEN: usize = INLINE_MAX as usize;

impl InlineRing {
    pub(super) const fn new(send_depth: usize) -> Self {
        Self { memory: None, next: 0, taken: 0, places: send_depth + 1 }
    }

    /// Copies the application's bytes to the next slot. [`taken`](Self::taken) reserves it for a
    /// request, [`keep`](Self::keep) follows when all are posted, [`untake`](Self::untake) releases
    /// the slots of a discarded batch.
    pub(super) fn copy(&mut self, pd: &Pd, buffers: &[ibv_data_buf]) -> Result<Sge, Errno> {
        let len = buffers.iter().map(|buffer| buffer.length).fold(0, usize::saturating_add);
        if len > PLACE_LEN {
            return Err(Errno::INVALID);
        }
        if self.memory.is_none() {
            self.memory = Some(self.allocate(pd).map_err(|_| Errno::NO_MEMORY)?);
        }
        let Some(memory) = &self.memory else { return Err(Errno::NO_MEMORY) };
        let start = (self.next + self.taken) % self.places * PLACE_LEN;
        let mut at = start;
        for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
            let mut octets = [0; PLACE_LEN];
            let octets = &mut octets[..buffer.length];
            // SAFETY: the application's memory, which stays mapped until the call returns. Peers
            // may write it if it is registered too, so it is copied as shared memory.
            unsafe { Region::read_raw(buffer.addr.cast::<u8>(), octets) };
            memory.copy_in(at, octets);
            at += buffer.length;
        }
        Ok(memory.sge(start..at))
    }

    fn allocate(&self, pd: &Pd) -> io::Result<Mr> {
        pd.reg_mr(self.places * PLACE_LEN, Access::empty())
    }

    pub(super) const fn taken(&mut self) {
        self.taken += 1;
    }

    pub(super) const fn keep(&mut self) {
        self.next = (self.next + self.taken) % self.places;
        self.taken = 0;
    }

    pub(super) const fn untake(&mut self) {
        self.taken = 0;
    }
}
