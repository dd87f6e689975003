//! Bounds of what others can make a link hold or do.

/// Requests to the subnet administrator that are in flight at a time.
pub const SA_REQUESTS_MAX: usize = 64;
/// How often a request is sent before it counts as not answered.
pub const SA_ATTEMPTS_MAX: u32 = 6;
/// How long the first answer may take; each further one twice as long.
pub const SA_RETRY_FIRST_NS: u64 = 250_000_000;
/// The longest wait between two attempts.
pub const SA_RETRY_LAST_NS: u64 = 8_000_000_000;
/// Answers to Reports that wait to be sent; further Reports come again.
pub const REPORTS_WAITING_MAX: usize = 64;
/// How often memberships and subscriptions are said again: an administrator may have lost them.
pub const REFRESH_NS: u64 = 30_000_000_000;

/// Neighbours that are known or asked for at a time.
pub const NEIGHBOURS_MAX: usize = 1024;
/// How long a neighbour's address is used without asking again (RFC 4861 §10, `REACHABLE_TIME`).
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// How long an answer of a neighbour may take (RFC 4861 §10, `RETRANS_TIMER`).
pub const NEIGHBOUR_RETRY_NS: u64 = 1_000_000_000;
/// How often a neighbour is asked (RFC 4861 §10, `MAX_UNICAST_SOLICIT`, `MAX_MULTICAST_SOLICIT`).
pub const NEIGHBOUR_ATTEMPTS_MAX: u32 = 3;
/// How often a port that comes up announces its addresses (RFC 4861 §10,
/// `MAX_NEIGHBOR_ADVERTISEMENT`).
pub const ANNOUNCEMENTS: u32 = 3;
/// From one announcement to the next (RFC 5227 §1.1, `ANNOUNCE_INTERVAL`).
pub const ANNOUNCE_INTERVAL_NS: u64 = 2_000_000_000;

/// Paths that are known or asked for at a time.
pub const PATHS_MAX: usize = 1024;
/// How long a path is used without asking again.
pub const PATH_REFRESH_NS: u64 = 60_000_000_000;
/// How long after it was asked for a path is asked for again when its port has another LID than it says.
pub const PATH_DOUBT_NS: u64 = 1_000_000_000;
/// How long the administrator is not asked again for what it does not know.
pub const ABSENT_NS: u64 = 5_000_000_000;

/// Multicast groups that are joined or asked for at a time, the broadcast group not counted.
pub const GROUPS_MAX: usize = 256;
/// IP groups that a host receives at a time: it may still be sent to others.
pub const IP_GROUPS_MAX: usize = GROUPS_MAX / 2;
// There is room for a group to receive: no more others than this are waited for.
const _: () = assert!(IP_GROUPS_MAX + SA_REQUESTS_MAX < GROUPS_MAX);
/// How long a group that is only sent to stays joined without being used (RFC 4392 §4.2.5).
pub const GROUP_IDLE_NS: u64 = 300_000_000_000;

/// How long the first answer of a DHCP server may take (RFC 2131 §4.1), and at most.
pub const DHCP_RETRY_FIRST_NS: u64 = 4_000_000_000;
/// The longest wait between two questions to DHCP servers.
pub const DHCP_RETRY_LAST_NS: u64 = 64_000_000_000;
/// How often an offered address is asked for before another server is looked for.
pub const DHCP_ATTEMPTS_MAX: u32 = 5;

/// Datagrams that wait for one neighbour, path or group; one more drops the oldest.
pub const WAITING_MAX: usize = 16;
/// Bytes of all datagrams that wait; one more datagram is dropped.
pub const WAITING_BYTES_MAX: usize = 1 << 20;
/// Datagrams to neighbours that do not answer, or without a path, which are kept to be told of.
pub const UNDELIVERABLE_MAX: usize = 64;
/// Allocations for packets that are kept for later ones.
pub const SPARE_MAX: usize = 128;
/// Datagrams to the link's own addresses that wait to be received.
pub const OWN_WAITING_MAX: usize = 256;
/// Management datagrams that are looked at in one go.
pub const MADS_BURST: usize = 64;
/// Partitions that a port's table holds.
pub const P_KEYS_MAX: usize = 128;
