//! The three parts of a split queue in shared memory, and the descriptor format.

use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::virtqueue::MemoryTable;
use crate::virtqueue::memory::Run;

/// All numbers in the parts are little-endian (Virtio 1.2 §1.4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    size: u16,
    descriptors: Run,
    available: Run,
    used: Run,
}

/// Reasons why a queue's addresses are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LayoutError {
    /// Virtio 1.2 §2.7: "Queue Size value is always a power of 2. The maximum Queue Size value is
    /// 32768."
    #[error("a queue of invalid size")]
    Size,
    #[error("a queue outside the shared memory")]
    Address,
    /// A part is not aligned as required by Virtio 1.2 §2.7.
    #[error("a queue that is not aligned")]
    Alignment,
}

impl Layout {
    /// Locates a queue whose parts are at these user addresses.
    pub(crate) fn new(
        table: &MemoryTable,
        size: u16,
        [descriptors, available, used]: [u64; 3],
    ) -> Result<Self, LayoutError> {
        if !size.is_power_of_two() {
            return Err(LayoutError::Size);
        }
        let entries = usize::from(size);
        let part = |address, len| table.user_run(address, len).ok_or(LayoutError::Address);
        // Virtio 1.2 §2.7.6, §2.7.8: flags and index come first, the event index last.
        let layout = Self {
            size,
            descriptors: part(descriptors, DESCRIPTOR_LEN * entries)?,
            available: part(available, 6 + 2 * entries)?,
            used: part(used, 6 + 8 * entries)?,
        };
        let is_aligned = layout.descriptors.at.is_multiple_of(16)
            && layout.available.at.is_multiple_of(2)
            && layout.used.at.is_multiple_of(4);
        if is_aligned { Ok(layout) } else { Err(LayoutError::Alignment) }
    }

    pub(crate) const fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    pub(crate) const fn descriptors(&self) -> Run {
        self.descriptors
    }

    #[inline]
    fn half_word(table: &MemoryTable, part: Run, at: usize) -> &AtomicU16 {
        table.mapping(part).half_word(part.at + at)
    }

    const fn slot(&self, index: u16) -> usize {
        (index & (self.size - 1)) as usize
    }

    /// Loads the available index. The entries before it, and their descriptors, may be read.
    #[inline]
    pub(crate) fn available_index(&self, table: &MemoryTable) -> u16 {
        u16::from_le(Self::half_word(table, self.available, 2).load(Acquire))
    }

    /// Stores the available index, after the entries before it.
    #[inline]
    pub(crate) fn set_available_index(&self, table: &MemoryTable, index: u16) {
        Self::half_word(table, self.available, 2).store(index.to_le(), Release);
    }

    #[inline]
    pub(crate) fn available_entry(&self, table: &MemoryTable, index: u16) -> u16 {
        let at = 4 + 2 * self.slot(index);
        u16::from_le(Self::half_word(table, self.available, at).load(Relaxed))
    }

    #[inline]
    pub(crate) fn set_available_entry(&self, table: &MemoryTable, index: u16, head: u16) {
        let at = 4 + 2 * self.slot(index);
        Self::half_word(table, self.available, at).store(head.to_le(), Relaxed);
    }

    /// Loads the used index. The entries before it, and their buffers, may be read.
    #[inline]
    pub(crate) fn used_index(&self, table: &MemoryTable) -> u16 {
        u16::from_le(Self::half_word(table, self.used, 2).load(Acquire))
    }

    /// Stores the used index, after the entries before it.
    #[inline]
    pub(crate) fn set_used_index(&self, table: &MemoryTable, index: u16) {
        Self::half_word(table, self.used, 2).store(index.to_le(), Release);
    }

    #[inline]
    pub(crate) fn used_entry(&self, table: &MemoryTable, index: u16) -> (u32, u32) {
        let mut entry = [0; 8];
        table.copy_out(self.used.part(4 + 8 * self.slot(index), 8), &mut entry);
        let [a, b, c, d, e, f, g, h] = entry;
        (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
    }

    #[inline]
    pub(crate) fn set_used_entry(&self, table: &MemoryTable, index: u16, head: u16, len: u32) {
        let [a, b] = head.to_le_bytes();
        let [e, f, g, h] = len.to_le_bytes();
        let run = self.used.part(4 + 8 * self.slot(index), 8);
        table.copy_in(run, &[a, b, 0, 0, e, f, g, h]);
    }

    /// Returns true if the driver asked for an event for used entries from `before` to `now`.
    #[inline]
    pub(crate) fn wants_call(
        &self,
        table: &MemoryTable,
        event_index: bool,
        before: u16,
        now: u16,
    ) -> bool {
        Self::wants_event(table, self.available, event_index, before, now)
    }

    /// Returns true if the device asked for an event for available entries from `before` to `now`.
    #[inline]
    pub(crate) fn wants_kick(
        &self,
        table: &MemoryTable,
        event_index: bool,
        before: u16,
        now: u16,
    ) -> bool {
        Self::wants_event(table, self.used, event_index, before, now)
    }

    /// By the event index, the last word of the part, or by the flags, its first word.
    #[inline]
    fn wants_event(
        table: &MemoryTable,
        part: Run,
        event_index: bool,
        before: u16,
        now: u16,
    ) -> bool {
        let word = |at| u16::from_le(Self::half_word(table, part, at).load(Relaxed));
        if event_index {
            let since_event = now.wrapping_sub(word(part.len - 2));
            passes(since_event.into(), now.wrapping_sub(before).into())
        } else {
            word(0) & NO_EVENT == 0
        }
    }

    /// Asks the device for an event when it has put the used entry `at`, or for no event.
    pub(crate) fn ask_for_call(&self, table: &MemoryTable, event_index: bool, at: Option<u16>) {
        Self::ask_for_event(table, self.available, event_index, at);
    }

    /// Asks the driver for an event when it has put the available entry `at`, or for no event.
    pub(crate) fn ask_for_kick(&self, table: &MemoryTable, event_index: bool, at: Option<u16>) {
        Self::ask_for_event(table, self.used, event_index, at);
    }

    fn ask_for_event(table: &MemoryTable, part: Run, event_index: bool, at: Option<u16>) {
        let (at, value) = match (event_index, at) {
            (true, Some(event)) => (part.len - 2, event),
            // The event index that was stored last is behind the peer's index: no event is sent.
            (true, None) => return,
            (false, at) => (0, if at.is_some() { 0 } else { NO_EVENT }),
        };
        Self::half_word(table, part, at).store(value.to_le(), Relaxed);
    }
}

/// Returns true if an index that moved by `moved` passed an event (Virtio 1.2 §2.7.10.1),
/// `since_event` before its new value. An event fires once, since it is in the past from then on.
#[inline]
pub(crate) const fn passes(since_event: u32, moved: u32) -> bool {
    since_event.wrapping_sub(1) < moved
}

/// Descriptor (Virtio 1.2 §2.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

impl Descriptor {
    #[inline]
    pub(crate) fn from_octets(octets: [u8; DESCRIPTOR_LEN]) -> Self {
        let number = u128::from_le_bytes(octets);
        #[expect(clippy::cast_possible_truncation, reason = "takes the number apart")]
        Self {
            address: number as u64,
            len: (number >> 64) as u32,
            flags: (number >> 96) as u16,
            next: (number >> 112) as u16,
        }
    }

    #[inline]
    pub(crate) fn to_octets(self) -> [u8; DESCRIPTOR_LEN] {
        let number = u128::from(self.address)
            | u128::from(self.len) << 64
            | u128::from(self.flags) << 96
            | u128::from(self.next) << 112;
        number.to_le_bytes()
    }
}

pub(crate) const DESCRIPTOR_LEN: usize = 16;
/// Flag: another descriptor follows.
pub(crate) const NEXT: u16 = 1;
/// Flag: the device writes the buffer.
pub(crate) const WRITE: u16 = 2;
/// Flag: the buffer is a descriptor table.
pub(crate) const INDIRECT: u16 = 4;

/// Flag: the side that wrote it wants no event.
const NO_EVENT: u16 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks Virtio 1.2 §2.7.10.1 by counting: the entries from `before` to `now`, exclusive, are
    /// new.
    #[test]
    fn an_event_index_is_passed_by_the_entry_of_its_number() {
        let near_the_wrap = || (0xfff0..=u16::MAX).chain(0..16);
        for before in near_the_wrap() {
            for count in 0..40_u16 {
                let now = before.wrapping_add(count);
                for event in near_the_wrap() {
                    let is_new = (0..count).any(|entry| before.wrapping_add(entry) == event);
                    let [since_event, moved] = [event, before].map(|at| now.wrapping_sub(at));
                    let is_passed = passes(since_event.into(), moved.into());
                    assert_eq!(is_passed, is_new, "{event} {before} {now}");
                }
            }
        }
    }
}
