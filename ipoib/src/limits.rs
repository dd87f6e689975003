//! Limits of a link's memory and work that others can cause.

/// Most outstanding requests to the subnet administrator.
pub const SA_REQUESTS_MAX: usize = 64;
/// Transmissions of a request before it counts as unanswered.
pub const SA_ATTEMPTS_MAX: u32 = 6;
/// First timeout of a request, in nanoseconds; it doubles with each attempt.
pub const SA_RETRY_FIRST_NS: u64 = 250_000_000;
/// Longest timeout of a request, in nanoseconds.
pub const SA_RETRY_LAST_NS: u64 = 8_000_000_000;
/// Most answers to Reports that wait. Senders repeat further Reports.
pub const REPORTS_WAITING_MAX: usize = 64;
/// Interval of refreshing memberships and subscriptions, in nanoseconds.
pub const REFRESH_NS: u64 = 30_000_000_000;

/// Most neighbours that are known or being resolved.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Use of a neighbour's address without confirmation (RFC 4861 §10, `REACHABLE_TIME`).
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// Timeout of a solicitation (RFC 4861 §10, `RETRANS_TIMER`).
pub const NEIGHBOUR_RETRY_NS: u64 = 1_000_000_000;
/// Most solicitations (RFC 4861 §10, `MAX_UNICAST_SOLICIT`, `MAX_MULTICAST_SOLICIT`).
pub const NEIGHBOUR_ATTEMPTS_MAX: u32 = 3;
/// Announcements of a port that comes up (RFC 4861 §10, `MAX_NEIGHBOR_ADVERTISEMENT`).
pub const ANNOUNCEMENTS: u32 = 3;
/// Interval of announcements (RFC 5227 §1.1, `ANNOUNCE_INTERVAL`).
pub const ANNOUNCE_INTERVAL_NS: u64 = 2_000_000_000;

/// Most paths that are known or being resolved.
pub const PATHS_MAX: usize = 1024;
/// Time for which a path is used without a new query.
pub const PATH_REFRESH_NS: u64 = 60_000_000_000;
/// Shortest interval between two queries of a path whose port sends from another LID.
pub const PATH_DOUBT_NS: u64 = 1_000_000_000;
/// Time for which a negative answer of the administrator is used.
pub const ABSENT_NS: u64 = 5_000_000_000;

/// Most multicast groups that are joined or being joined, without the broadcast group.
pub const GROUPS_MAX: usize = 256;
/// Most IP groups that a host receives; the rest of the table is for groups that it only sends to.
pub const IP_GROUPS_MAX: usize = GROUPS_MAX / 2;
// Enough entries are left for groups to receive: at most this many others are being joined.
const _: () = assert!(IP_GROUPS_MAX + SA_REQUESTS_MAX < GROUPS_MAX);
/// Time after which an unused send-only group is left (RFC 4392 §4.2.5).
pub const GROUP_IDLE_NS: u64 = 300_000_000_000;

/// First timeout of a message to DHCP servers (RFC 2131 §4.1).
pub const DHCP_RETRY_FIRST_NS: u64 = 4_000_000_000;
/// Longest timeout of a message to DHCP servers.
pub const DHCP_RETRY_LAST_NS: u64 = 64_000_000_000;
/// Most requests for an offered address. Then the client looks for another server.
pub const DHCP_ATTEMPTS_MAX: u32 = 5;

/// Most datagrams that wait for one neighbour, path or group; beyond it the oldest is dropped.
pub const WAITING_MAX: usize = 16;
/// Most bytes of all waiting datagrams; beyond it a new datagram is dropped.
pub const WAITING_BYTES_MAX: usize = 1 << 20;
/// Most undeliverable datagrams kept for error reporting.
pub const UNDELIVERABLE_MAX: usize = 64;
/// Most packet buffers kept for reuse.
pub const SPARE_MAX: usize = 128;
/// Most datagrams to the link's own addresses that wait to be received.
pub const OWN_WAITING_MAX: usize = 256;
/// Most management datagrams handled in one poll.
pub const MADS_BURST: usize = 64;
/// Most partition keys in a port's table.
pub const P_KEYS_MAX: usize = 128;
