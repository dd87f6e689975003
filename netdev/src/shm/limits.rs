//! All limits of the link.

use std::ops::RangeInclusive;

use crate::published::{PUBLISHED_BYTES_MAX, PUBLISHED_REGIONS_MAX};

/// Accepted MTUs. The longest frame of the largest MTU still fits into a super-frame.
pub(super) const MTU: RangeInclusive<usize> = 68..=65_521;
/// Longest frame: 64 KiB and the tagged link header.
pub(super) const FRAME_LEN_MAX: usize = 65_536 + 22;
/// Runs in a frame. A super-frame of FPDUs with markers has fewer than 400.
pub(super) const RUNS_MAX: usize = 1024;
/// Half of the ring for 64 super-frames of nearly 128 runs, half for short frames.
pub(super) const RING_LEN: u32 = 16_384;
/// Bytes of 64 super-frames, and two more for the bytes left unused at the end.
pub(super) const INLINE_LEN: usize = 66 * FRAME_SPACE_MAX;
/// Space is allocated in pairs of cache lines, which the processor prefetches together.
pub(super) const FRAME_SPACE_MAX: usize = FRAME_LEN_MAX.next_multiple_of(FRAME_ALIGNMENT);
pub(super) const FRAME_ALIGNMENT: usize = 128;

/// Longest frame that its receiver copies as a whole.
pub(super) const WHOLE_LEN_MAX: usize = 256;

/// Most mapped regions of a peer: as many as a peer can publish.
pub(super) const REGIONS_MAX: usize = PUBLISHED_REGIONS_MAX;
/// Most mapped bytes of a peer. They cost address space; the memory is charged to the peer.
pub(super) const BYTES_MAX: usize = PUBLISHED_BYTES_MAX;
pub(super) const MESSAGES_MAX: usize = 64;
/// Mapped bytes after which a poll handles no further message: each page takes time.
pub(super) const MAPPED_IN_ONE_GO: usize = 1 << 30;

/// Longest time that a message of the peer waits while frames flow, in nanoseconds.
pub(super) const CONTROL_INTERVAL_NS: u64 = 10_000_000;
/// Interval at which the device must be polled even if nothing arrives, in nanoseconds.
pub(super) const CHECK_INTERVAL_NS: u64 = 100_000_000;
