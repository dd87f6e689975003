//! Bounds of what others can make a gate hold or do. Datagrams wait in the bounded queues of the
//! TUN interface and of the link; the gate itself has none for them.

/// Most datagrams received from one side before the other side's turn.
pub(super) const BURST: usize = 64;
/// ICMP messages in a second, for all sources together (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
pub(super) const ICMP_PER_SECOND: u64 = 1000;
pub(super) const ICMP_BURST: u64 = 100;
/// Answers that wait, for one burst of datagrams.
pub(super) const ANSWERS_MAX: usize = BURST;
pub(super) const EXTENSIONS_MAX: usize = 8;
pub(crate) const GROUPS_MAX: usize = 64;
/// Groups in addition; the sum of both is below the number that a link can receive.
pub(super) const KERNEL_GROUPS_MAX: usize = 48;
const _: () = assert!(GROUPS_MAX + KERNEL_GROUPS_MAX < urnic_ipoib::limits::IP_GROUPS_MAX);
