//! Every bound of what peers at a Unix socket may have of this process.

/// Descriptors of a device's peers that wait to be closed. Only a descriptor whose `close` may wait is among
/// them: memory and events are closed at once. While as many wait, the device reads no message and meets no peer.
pub(crate) const CLOSES_MAX: usize = 64;
/// Descriptors that the kernel passes with one message at most (`SCM_MAX_FD`). All of them are received: the
/// kernel closes what a receiver has no room for, in the receiving thread. That is left where this process has as
/// many files open as it may (`RLIMIT_NOFILE`).
pub(crate) const PASSED_MAX: usize = 253;
/// Bytes of peers' memory that one process maps: an eighth of the 128 TiB of addresses that x86-64 has. An
/// allocation that finds no address aborts the process.
pub(crate) const PROCESS_BYTES_MAX: u64 = 16 << 40;
