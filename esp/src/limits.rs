//! Limits of memory that others can cause to be used.

/// Most associations in each direction.
pub const ASSOCIATIONS_MAX: usize = 4096;
/// Most policies in each direction: each packet is compared with them in order.
pub const POLICIES_MAX: usize = 256;
/// Most reserved SPIs that have no association yet.
pub const RESERVED_SPIS_MAX: usize = 1024;

/// Least size of an anti-replay window, in packets: bursts of a fast link, and packets that several
/// queues hand over, arrive out of order.
pub const WINDOW_MIN: usize = 1024;
/// Largest size of an anti-replay window, in packets: 8 KiB of memory.
pub const WINDOW_MAX: usize = 1 << 16;

/// Most pairs of hosts whose packets wait for an association.
pub const LARVAL_MAX: usize = 256;
/// Most packets that wait for one association; beyond it the oldest is dropped.
pub const WAITING_MAX: usize = 64;
/// Most bytes of all waiting packets; beyond it a new packet is dropped.
pub const WAITING_BYTES_MAX: usize = 1 << 20;
/// Time after which packets no longer wait for an association, in nanoseconds. The next packet then
/// asks for one again.
pub const ACQUIRE_NS: u64 = 30_000_000_000;

/// Most events that wait for [`Esp::poll_event`](crate::processor::Esp::poll_event); beyond it the
/// oldest is dropped.
pub const EVENTS_MAX: usize = 4096;

/// Silence after which a NAT-keepalive is sent, in nanoseconds (RFC 3948 §4).
pub const KEEPALIVE_NS: u64 = 20_000_000_000;
