//! Driver side of a queue: offers buffers of its own memory, and takes them back.

use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::virtqueue::ring::{DESCRIPTOR_LEN, Descriptor, INDIRECT, NEXT, WRITE};
use crate::virtqueue::{Direction, Layout, MemoryTable, QueueFault};

/// A buffer is one descriptor with the buffer's number, for bytes or an indirect table.
#[derive(Debug)]
pub(crate) struct DriverQueue {
    layout: Layout,
    event_index: bool,
    next: u16,
    /// Number of entries put into the available ring so far, modulo 2^16.
    available: u16,
    /// Number of these entries that the device may see.
    published: u16,
    outstanding: Box<[u32]>,
}

impl DriverQueue {
    pub(crate) fn new(layout: Layout, event_index: bool) -> Self {
        let outstanding = vec![0; usize::from(layout.size())].into_boxed_slice();
        Self { layout, event_index, next: 0, available: 0, published: 0, outstanding }
    }

    /// The device sees the buffer after [`publish`](Self::publish). Panics if the device has it
    /// already, or it is empty.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        table: &MemoryTable,
        number: u16,
        address: u64,
        len: u32,
        direction: Direction,
    ) {
        let flags = if direction == Direction::ToDriver { WRITE } else { 0 };
        self.offer_as(table, number, Descriptor { address, len, flags, next: 0 });
    }

    /// Offers, as the buffer `number`, runs for the device to read: their table at `address` has
    /// this number of [entries](table_entry). Panics like [`offer`](Self::offer).
    #[inline]
    pub(crate) fn offer_table(
        &mut self,
        table: &MemoryTable,
        number: u16,
        address: u64,
        entries: usize,
    ) {
        let len = u32::try_from(entries * DESCRIPTOR_LEN).expect("no more than a buffer");
        self.offer_as(table, number, Descriptor { address, len, flags: INDIRECT, next: 0 });
    }

    #[inline]
    fn offer_as(&mut self, table: &MemoryTable, number: u16, descriptor: Descriptor) {
        let outstanding = &mut self.outstanding[usize::from(number)];
        assert!(*outstanding == 0 && descriptor.len > 0, "a buffer is offered once");
        *outstanding = descriptor.len;
        let at = DESCRIPTOR_LEN * usize::from(number);
        let run = self.layout.descriptors().part(at, DESCRIPTOR_LEN);
        table.copy_in(run, &descriptor.to_octets());
        self.layout.set_available_entry(table, self.available, number);
        self.available = self.available.wrapping_add(1);
    }

    /// Makes offered buffers visible to the device. Returns true if the device must be notified.
    #[inline]
    pub(crate) fn publish(&mut self, table: &MemoryTable) -> bool {
        let before = self.published;
        if self.available == before {
            return false;
        }
        self.layout.set_available_index(table, self.available);
        self.published = self.available;
        // As in `DeviceQueue::publish`.
        fence(SeqCst);
        self.layout.wants_kick(table, self.event_index, before, self.available)
    }

    /// Returned buffers that were not [taken](Self::take) yet.
    #[inline]
    pub(crate) fn waiting(&self, table: &MemoryTable) -> Result<u16, QueueFault> {
        let waiting = self.layout.used_index(table).wrapping_sub(self.next);
        let given = self.published.wrapping_sub(self.next);
        if waiting > given { Err(QueueFault::Index) } else { Ok(waiting) }
    }

    /// Takes the next returned buffer, if one is [`waiting`](Self::waiting): its number, and the
    /// number of bytes written to it.
    #[inline]
    pub(crate) fn take(&mut self, table: &MemoryTable) -> Result<(u16, u32), QueueFault> {
        let (number, len) = self.layout.used_entry(table, self.next);
        let number = u16::try_from(number).map_err(|_| QueueFault::Unknown)?;
        let outstanding = self.outstanding.get_mut(usize::from(number));
        let outstanding = outstanding.filter(|len| **len > 0).ok_or(QueueFault::Unknown)?;
        if len > *outstanding {
            return Err(QueueFault::Length);
        }
        *outstanding = 0;
        self.next = self.next.wrapping_add(1);
        Ok((number, len))
    }

    pub(crate) fn suppress(&self, table: &MemoryTable) {
        self.layout.ask_for_call(table, self.event_index, None);
    }

    /// Asks the device for an event when it returns the next buffer. Returns true if it has
    /// returned one: the caller must not sleep then, since no event may come.
    pub(crate) fn arm(&self, table: &MemoryTable) -> bool {
        self.layout.ask_for_call(table, self.event_index, Some(self.next));
        fence(SeqCst);
        self.layout.used_index(table) != self.next
    }
}

/// Encodes an entry of an indirect table, followed by the entry `next` if there is one.
#[inline]
pub(crate) fn table_entry(address: u64, len: u32, next: Option<u16>) -> [u8; TABLE_ENTRY_LEN] {
    let flags = if next.is_some() { NEXT } else { 0 };
    Descriptor { address, len, flags, next: next.unwrap_or(0) }.to_octets()
}

pub(crate) const TABLE_ENTRY_LEN: usize = DESCRIPTOR_LEN;
