//! All limits of peers at a Unix socket.

/// Peers' descriptors that wait to be closed, per device. Only descriptors whose `close` may block
/// are counted: memory and events are closed at once. At this limit the device reads no message and
/// accepts no peer.
pub(crate) const CLOSES_MAX: usize = 64;
/// Most descriptors that the kernel passes with one message (`SCM_MAX_FD`). All of them are
/// received, since the kernel closes descriptors without room in the receiving thread. That still
/// happens if this process has reached its limit of open files (`RLIMIT_NOFILE`).
pub(crate) const PASSED_MAX: usize = 253;
/// Bytes of peers' memory that one process maps: an eighth of the 128 TiB of address space on
/// x86-64. An allocation without free address space aborts the process.
pub(crate) const PROCESS_BYTES_MAX: u64 = 16 << 40;
