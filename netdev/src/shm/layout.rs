//! Layout of an outbox, which one end writes and its peer can only read: words (write and read
//! position, positions that wake the owner), descriptors of frames, copied bytes. A position counts
//! descriptors since the session began, modulo 2^32. An end loads each value of the peer once.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::SharedSlice;
use crate::published::runs;
use crate::shm::limits::{INLINE_LEN, RING_LEN};
use crate::sys::published;
use crate::sys::read_mapping::ReadMapping;
use crate::sys::shared_mapping::SharedMapping;
use crate::virtqueue::passes;
use crate::vnet;

/// Position behind the last descriptor that the peer may read.
const PRODUCED_AT: usize = 0;
/// The owner does not read the peer's descriptors before this position, or their bytes, again.
const CONSUMED_AT: usize = 128;
/// Position that the peer's produced position must exceed to wake the owner.
const FRAMES_EVENT_AT: usize = 256;
/// Position that the peer's consumed position must exceed to wake the owner.
const ROOM_EVENT_AT: usize = 384;
const RING_AT: usize = 4096;
const INLINE_AT: usize = RING_AT + RING_LEN as usize * DESCRIPTOR_LEN;
pub(super) const OUTBOX_LEN: usize = INLINE_AT + INLINE_LEN;

const DESCRIPTOR_LEN: usize = 16;
const _: () = assert!(RING_LEN.is_power_of_two() && OUTBOX_LEN.is_multiple_of(128));

/// Region number of bytes in the outbox itself.
pub(super) const INLINE: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) runs: u16,
    /// Checksum and segmentation offload, as a virtio-net header.
    pub(super) offload: [u8; vnet::HEADER_LEN],
}

impl Header {
    #[inline]
    pub(super) fn to_octets(self) -> [u8; DESCRIPTOR_LEN] {
        let mut octets = [0; DESCRIPTOR_LEN];
        octets[..4].copy_from_slice(&self.len.to_ne_bytes());
        octets[4..6].copy_from_slice(&self.runs.to_ne_bytes());
        octets[6..].copy_from_slice(&self.offload);
        octets
    }

    #[inline]
    pub(super) fn from_octets(octets: [u8; DESCRIPTOR_LEN]) -> Self {
        let [a, b, c, d, e, f, offload @ ..] = octets;
        Self { len: u32::from_ne_bytes([a, b, c, d]), runs: u16::from_ne_bytes([e, f]), offload }
    }
}

/// The region is [`INLINE`], or the number of a published region.
pub(super) type Run = runs::Run<u32>;

impl Run {
    #[inline]
    pub(super) fn to_octets(self) -> [u8; DESCRIPTOR_LEN] {
        let mut octets = [0; DESCRIPTOR_LEN];
        octets[..4].copy_from_slice(&self.region.to_ne_bytes());
        octets[4..8].copy_from_slice(&self.len.to_ne_bytes());
        octets[8..].copy_from_slice(&self.offset.to_ne_bytes());
        octets
    }

    #[inline]
    pub(super) fn from_octets(octets: [u8; DESCRIPTOR_LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, offset @ ..] = octets;
        Self {
            region: u32::from_ne_bytes([a, b, c, d]),
            len: u32::from_ne_bytes([e, f, g, h]),
            offset: u64::from_ne_bytes(offset),
        }
    }
}

const fn descriptor_at(position: u32) -> usize {
    RING_AT + (position & (RING_LEN - 1)) as usize * DESCRIPTOR_LEN
}

/// Only written, never read.
#[derive(Debug)]
pub(super) struct OwnMemory(SharedMapping);

impl OwnMemory {
    /// Each session has memory of its own: an earlier peer's mapping gives no access to it.
    pub(super) fn new() -> io::Result<(OwnedFd, Self)> {
        let (file, mapping) = published::memory(NAME, OUTBOX_LEN)?;
        let memory = Self(mapping);
        // The first position is 0, which is behind both: no wake-up is requested.
        memory.ask_for_frames(u32::MAX);
        memory.ask_for_room(u32::MAX);
        Ok((file, memory))
    }

    /// Lets the peer read the descriptors before a position.
    #[inline]
    pub(super) fn set_produced(&self, position: u32) {
        self.0.word(PRODUCED_AT).store(position, Release);
    }

    /// This end has read the peer's descriptors before a position, and their bytes.
    #[inline]
    pub(super) fn set_consumed(&self, position: u32) {
        self.0.word(CONSUMED_AT).store(position, Release);
    }

    pub(super) fn ask_for_frames(&self, position: u32) {
        self.0.word(FRAMES_EVENT_AT).store(position, Relaxed);
    }

    pub(super) fn ask_for_room(&self, position: u32) {
        self.0.word(ROOM_EVENT_AT).store(position, Relaxed);
    }

    #[inline]
    pub(super) fn put_descriptor(&self, position: u32, octets: [u8; DESCRIPTOR_LEN]) {
        self.0.copy_in(descriptor_at(position), &octets);
    }

    #[inline]
    pub(super) fn put_inline(&self, at: usize, fragment: SharedSlice<'_>) {
        self.0.copy_from(INLINE_AT + at, fragment);
    }
}

/// Only read.
#[derive(Debug)]
pub(super) struct PeerMemory(ReadMapping);

impl PeerMemory {
    pub(super) const fn new(mapping: ReadMapping) -> Self {
        Self(mapping)
    }

    /// Returns the position up to which this end may read the peer's descriptors and their bytes.
    #[inline]
    pub(super) fn produced(&self) -> u32 {
        self.0.word(PRODUCED_AT)
    }

    #[inline]
    pub(super) fn consumed(&self) -> u32 {
        self.0.word(CONSUMED_AT)
    }

    /// Returns true if the peer asked for a wake-up at a position produced from `before` to `now`.
    #[inline]
    pub(super) fn wants_frames(&self, before: u32, now: u32) -> bool {
        passes(now.wrapping_sub(self.0.word(FRAMES_EVENT_AT)), now.wrapping_sub(before))
    }

    /// Returns true if the peer asked for a wake-up at a position consumed from `before` to `now`.
    #[inline]
    pub(super) fn wants_room(&self, before: u32, now: u32) -> bool {
        passes(now.wrapping_sub(self.0.word(ROOM_EVENT_AT)), now.wrapping_sub(before))
    }

    #[inline]
    pub(super) fn descriptor(&self, position: u32) -> [u8; DESCRIPTOR_LEN] {
        let mut octets = [0; DESCRIPTOR_LEN];
        self.0.copy_out(descriptor_at(position), &mut octets);
        octets
    }

    #[inline]
    pub(super) fn inline(&self, at: usize, len: usize) -> Option<SharedSlice<'_>> {
        let is_inside = at <= INLINE_LEN && len <= INLINE_LEN - at;
        if is_inside { self.0.slice(INLINE_AT + at, len) } else { None }
    }
}

const NAME: &CStr = c"urnic shm";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_survive_encoding() {
        let header =
            Header { len: 0x0102_0304, runs: 0x0506, offload: [7, 8, 9, 1, 2, 3, 4, 5, 6, 7] };
        assert_eq!(Header::from_octets(header.to_octets()), header);
        let run = Run { region: 0x0102_0304, len: 0x0506_0708, offset: 0x1122_3344_5566_7788 };
        assert_eq!(Run::from_octets(run.to_octets()), run);
    }
}
