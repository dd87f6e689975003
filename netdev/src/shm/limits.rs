//! Every bound of what two ends exchange.

use std::ops::RangeInclusive;

use crate::published::{PUBLISHED_BYTES_MAX, PUBLISHED_REGIONS_MAX};

/// MTUs of which the longest frame is one that a super-frame could be.
pub(super) const MTU: RangeInclusive<usize> = 68..=65_521;
/// Longest frame: 64 KiB and the link header, tagged.
pub(super) const FRAME_LEN_MAX: usize = 65_536 + 22;
/// Runs in a frame. A super-frame of FPDUs with markers has fewer than 400.
pub(super) const RUNS_MAX: usize = 1024;
/// Descriptors in a ring: 64 super-frames of 132 runs, and as much again for short frames between them.
pub(super) const RING_LEN: u32 = 16_384;
/// Bytes of an outbox for what is copied: 64 super-frames, and some that the end of it cuts off.
pub(super) const INLINE_LEN: usize = 66 * FRAME_SPACE_MAX;
/// Bytes that the longest frame takes there: whole lines of the cache, and of the pair that is fetched
/// together.
pub(super) const FRAME_SPACE_MAX: usize = FRAME_LEN_MAX.next_multiple_of(FRAME_ALIGNMENT);
pub(super) const FRAME_ALIGNMENT: usize = 128;

/// Bytes of a fragment from which on it is referred to: a shorter one takes less time to copy than its
/// reader takes to fetch a descriptor and the lines of one more place.
pub(super) const REFERRED_LEN_MIN: usize = 256;
/// Bytes of a frame that its receiver copies as a whole: all of it is looked at by protocols anyway.
pub(super) const WHOLE_LEN_MAX: usize = 256;

/// Regions of a peer that are mapped: all that it can publish.
pub(super) const REGIONS_MAX: usize = PUBLISHED_REGIONS_MAX;
/// Bytes of a peer that are mapped. They cost addresses; their memory is the peer's.
pub(super) const BYTES_MAX: usize = PUBLISHED_BYTES_MAX;
/// Messages handled in one go.
pub(super) const MESSAGES_MAX: usize = 64;
/// Bytes of regions after which a go ends: each page of them is looked up when they are mapped.
pub(super) const MAPPED_IN_ONE_GO: usize = 1 << 30;

/// How long a message of the peer may wait while frames flow, in nanoseconds.
pub(super) const CONTROL_INTERVAL_NS: u64 = 10_000_000;
/// How often the device wants to be looked at though nothing arrives, in nanoseconds.
pub(super) const CHECK_INTERVAL_NS: u64 = 100_000_000;
