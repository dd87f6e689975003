//! Bounds of what others can make a gate hold or do. Datagrams wait in the kernel's queue of the TUN
//! interface and in those of the link, each of which has a bound; the gate has no queue for them.

/// Datagrams that are taken from one side before it is the other's turn.
pub(super) const BURST: usize = 64;
/// Messages of ICMP in a second, of all sources together (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
pub(super) const ICMP_PER_SECOND: u64 = 1000;
/// Messages of ICMP that may follow each other at once.
pub(super) const ICMP_BURST: u64 = 100;
/// Answers that wait to be sent: those that one burst of datagrams asks for.
pub(super) const ANSWERS_MAX: usize = BURST;
/// Extension headers that are looked behind.
pub(super) const EXTENSIONS_MAX: usize = 8;
/// Groups that can be asked for.
pub(crate) const GROUPS_MAX: usize = 64;
/// Groups that the kernel's programs receive at a time, besides. Both together are fewer than those that
/// a link receives.
pub(super) const KERNEL_GROUPS_MAX: usize = 48;
const _: () = assert!(GROUPS_MAX + KERNEL_GROUPS_MAX < urnic_ipoib::limits::IP_GROUPS_MAX);
