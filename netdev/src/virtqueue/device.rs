//! Device side of a queue: takes chains of buffers, and returns them.

use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::virtqueue::memory::Run;
use crate::virtqueue::ring::{DESCRIPTOR_LEN, Descriptor, INDIRECT, NEXT, WRITE};
use crate::virtqueue::{CHAIN_LEN_MAX, ChainFault, Direction, Layout, MemoryTable, QueueFault};

#[derive(Debug)]
pub(crate) struct DeviceQueue {
    layout: Layout,
    event_index: bool,
    next: u16,
    available: u16,
    /// Number of entries put into the used ring so far, modulo 2^16.
    used: u16,
    /// Number of these entries that the driver may see.
    published: u16,
}

/// Chain of buffers that the driver offers. Each chain must be returned, valid or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) head: u16,
    /// Length in bytes, or the fault that makes the chain unusable.
    pub(crate) len: Result<usize, ChainFault>,
}

impl DeviceQueue {
    pub(crate) fn new(table: &MemoryTable, layout: Layout, event_index: bool, next: u16) -> Self {
        let used = layout.used_index(table);
        Self { layout, event_index, next, available: next, used, published: used }
    }

    pub(crate) const fn next(&self) -> u16 {
        self.next
    }

    /// Available chains that were not [taken](Self::take) yet.
    #[inline]
    pub(crate) fn waiting(&mut self, table: &MemoryTable) -> Result<u16, QueueFault> {
        let available = self.layout.available_index(table);
        let waiting = available.wrapping_sub(self.next);
        if waiting > self.layout.size() {
            return Err(QueueFault::Index);
        }
        self.available = available;
        Ok(waiting)
    }

    /// Takes the next chain and appends its buffers to `runs`, meaningless after a chain fault
    /// ([`Chain::len`]). A [`QueueFault`] makes the queue unusable.
    #[inline]
    pub(crate) fn take(
        &mut self,
        table: &MemoryTable,
        direction: Direction,
        runs: &mut Vec<Run>,
    ) -> Result<Option<Chain>, QueueFault> {
        if self.next == self.available && self.waiting(table)? == 0 {
            return Ok(None);
        }
        let head = self.layout.available_entry(table, self.next);
        if head >= self.layout.size() {
            return Err(QueueFault::Head);
        }
        self.next = self.next.wrapping_add(1);
        Ok(Some(Chain { head, len: self.walk(table, head, direction, runs) }))
    }

    pub(crate) const fn put_back(&mut self, count: u16) {
        self.next = self.next.wrapping_sub(count);
    }

    /// Walks a chain, and loads each descriptor once.
    fn walk(
        &self,
        table: &MemoryTable,
        head: u16,
        direction: Direction,
        runs: &mut Vec<Run>,
    ) -> Result<usize, ChainFault> {
        let mut budget = usize::from(self.layout.size()).min(CHAIN_LEN_MAX);
        let (mut index, mut len) = (head, 0_usize);
        loop {
            budget = budget.checked_sub(1).ok_or(ChainFault::TooLong)?;
            if index >= self.layout.size() {
                return Err(ChainFault::Descriptor);
            }
            let at = DESCRIPTOR_LEN * usize::from(index);
            let mut octets = [0; DESCRIPTOR_LEN];
            table.copy_out(self.layout.descriptors().part(at, DESCRIPTOR_LEN), &mut octets);
            let descriptor = Descriptor::from_octets(octets);
            if descriptor.flags & INDIRECT != 0 {
                // Virtio 1.2 §2.7.5.3.1: "A driver MUST NOT set both VIRTQ_DESC_F_INDIRECT and
                // VIRTQ_DESC_F_NEXT in flags."
                if descriptor.flags & NEXT != 0 {
                    return Err(ChainFault::Table);
                }
                return Ok(len + walk_indirect(table, descriptor, direction, budget, runs)?);
            }
            len += buffer(table, descriptor, direction, runs)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(len);
            }
            index = descriptor.next;
        }
    }

    /// Returns a chain, with the bytes written to it; the driver sees it after
    /// [`publish`](Self::publish).
    #[inline]
    pub(crate) fn give_back(&mut self, table: &MemoryTable, head: u16, len: u32) {
        self.layout.set_used_entry(table, self.used, head, len);
        self.used = self.used.wrapping_add(1);
    }

    /// Makes returned chains visible to the driver. Returns true if the driver must be notified.
    #[inline]
    pub(crate) fn publish(&mut self, table: &MemoryTable) -> bool {
        let before = self.published;
        if self.used == before {
            return false;
        }
        self.layout.set_used_index(table, self.used);
        self.published = self.used;
        // Store the index, then load the driver's event word. The driver stores its event word,
        // then loads the index. With a fence on each side at least one of the two sees the other's
        // store.
        fence(SeqCst);
        self.layout.wants_call(table, self.event_index, before, self.used)
    }

    pub(crate) fn suppress(&self, table: &MemoryTable) {
        self.layout.ask_for_kick(table, self.event_index, None);
    }

    /// Asks the driver for an event when more than `seen` chains are available. Returns true if the
    /// number of available chains is not `seen`: the caller must not sleep then, since no event may
    /// come.
    pub(crate) fn arm(&self, table: &MemoryTable, seen: u16) -> bool {
        let at = self.next.wrapping_add(seen);
        self.layout.ask_for_kick(table, self.event_index, Some(at));
        fence(SeqCst);
        self.layout.available_index(table) != at
    }
}

/// The table may be at any address (Virtio 1.2 §2.7.5.3 requires no alignment), in one region.
fn walk_indirect(
    table: &MemoryTable,
    outer: Descriptor,
    direction: Direction,
    mut budget: usize,
    runs: &mut Vec<Run>,
) -> Result<usize, ChainFault> {
    let entries = usize::try_from(outer.len).map_err(|_| ChainFault::Table)? / DESCRIPTOR_LEN;
    // Virtio 1.2 §2.7.5.3.2: the write flag of the descriptor that refers to the table is ignored.
    if entries == 0 || !outer.len.is_multiple_of(16) {
        return Err(ChainFault::Table);
    }
    let first = runs.len();
    let lies_at = {
        table.guest_runs(outer.address, entries * DESCRIPTOR_LEN, Direction::ToDevice, runs)?;
        let count = runs.len() - first;
        let whole = runs[first];
        runs.truncate(first);
        // All known drivers have the table in one region.
        (count == 1).then_some(whole).ok_or(ChainFault::Table)?
    };
    let mut list = Entries { table, lies_at, octets: [0; _], from: 0, count: 0 };
    let (mut index, mut len) = (0, 0_usize);
    loop {
        budget = budget.checked_sub(1).ok_or(ChainFault::TooLong)?;
        if index >= entries {
            return Err(ChainFault::Descriptor);
        }
        let descriptor = list.load(index);
        if descriptor.flags & INDIRECT != 0 {
            return Err(ChainFault::Table);
        }
        len += buffer(table, descriptor, direction, runs)?;
        if descriptor.flags & NEXT == 0 {
            return Ok(len);
        }
        index = usize::from(descriptor.next);
    }
}

/// Loads several entries at once, since chains mostly use consecutive ones.
struct Entries<'a> {
    table: &'a MemoryTable,
    lies_at: Run,
    octets: [u8; LOADED * DESCRIPTOR_LEN],
    from: usize,
    count: usize,
}

const LOADED: usize = 32;

impl Entries<'_> {
    #[inline]
    fn load(&mut self, index: usize) -> Descriptor {
        if index.wrapping_sub(self.from) >= self.count {
            let at = index * DESCRIPTOR_LEN;
            let len = (self.lies_at.len - at).min(self.octets.len());
            self.table.copy_out(self.lies_at.part(at, len), &mut self.octets[..len]);
            (self.from, self.count) = (index, len / DESCRIPTOR_LEN);
        }
        let at = (index - self.from) * DESCRIPTOR_LEN;
        let octets = self.octets[at..].first_chunk().expect("one of those loaded");
        Descriptor::from_octets(*octets)
    }
}

#[inline]
fn buffer(
    table: &MemoryTable,
    descriptor: Descriptor,
    direction: Direction,
    runs: &mut Vec<Run>,
) -> Result<usize, ChainFault> {
    if (descriptor.flags & WRITE != 0) != (direction == Direction::ToDriver) {
        return Err(ChainFault::Direction);
    }
    let len = usize::try_from(descriptor.len).map_err(|_| ChainFault::Address)?;
    table.guest_runs(descriptor.address, len, direction, runs)?;
    Ok(len)
}
