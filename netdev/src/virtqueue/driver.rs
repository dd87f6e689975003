//! The driver's side of a queue: offers buffers of its own memory, and takes them back.

use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::virtqueue::ring::{DESCRIPTOR_LEN, Descriptor, WRITE};
use crate::virtqueue::{Direction, Layout, MemoryTable, QueueFault};

/// The driver's side of a queue. A buffer is one descriptor, which has the buffer's number.
#[derive(Debug)]
pub(crate) struct DriverQueue {
    layout: Layout,
    event_index: bool,
    /// The used entry to take next.
    next: u16,
    /// The count of entries made available, and how far it is published.
    available: u16,
    published: u16,
    /// For each buffer how long it is while the device has it, otherwise zero.
    outstanding: Box<[u32]>,
}

impl DriverQueue {
    /// A new queue, in memory that is all zero.
    pub(crate) fn new(layout: Layout, event_index: bool) -> Self {
        let outstanding = vec![0; usize::from(layout.size())].into_boxed_slice();
        Self { layout, event_index, next: 0, available: 0, published: 0, outstanding }
    }

    /// Offers the buffer `number`, of `len` octets at `address`; told by
    /// [`publish`](Self::publish).
    ///
    /// # Panics
    /// When the device has it already, or it is empty.
    #[inline]
    pub(crate) fn offer(
        &mut self,
        table: &MemoryTable,
        number: u16,
        address: u64,
        len: u32,
        direction: Direction,
    ) {
        let outstanding = &mut self.outstanding[usize::from(number)];
        assert!(*outstanding == 0 && len > 0, "a buffer is offered once");
        *outstanding = len;
        let flags = if direction == Direction::ToDriver { WRITE } else { 0 };
        let descriptor = Descriptor { address, len, flags, next: 0 };
        let at = DESCRIPTOR_LEN * usize::from(number);
        let run = self.layout.descriptors().part(at, DESCRIPTOR_LEN);
        table.copy_in(run, &descriptor.to_octets());
        self.layout.set_available_entry(table, self.available, number);
        self.available = self.available.wrapping_add(1);
    }

    /// Tells what was offered. Returns whether the device wants to be kicked.
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

    /// Buffers that the device has given back and that were not taken.
    ///
    /// # Errors
    /// [`QueueFault::Index`].
    #[inline]
    pub(crate) fn waiting(&self, table: &MemoryTable) -> Result<u16, QueueFault> {
        let waiting = self.layout.used_index(table).wrapping_sub(self.next);
        let given = self.published.wrapping_sub(self.next);
        if waiting > given { Err(QueueFault::Index) } else { Ok(waiting) }
    }

    /// Takes the next buffer back: its number, and the octets that were written to it. One has to
    /// be [`waiting`](Self::waiting).
    ///
    /// # Errors
    /// [`QueueFault`].
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

    /// Asks the device to tell nothing, as the driver looks by itself.
    pub(crate) fn suppress(&self, table: &MemoryTable) {
        self.layout.ask_for_call(table, self.event_index, None);
    }

    /// Asks the device to tell when it gives the next buffer back. Returns whether it has already,
    /// in which case it may tell nothing.
    pub(crate) fn arm(&self, table: &MemoryTable) -> bool {
        self.layout.ask_for_call(table, self.event_index, Some(self.next));
        fence(SeqCst);
        self.layout.used_index(table) != self.next
    }
}
