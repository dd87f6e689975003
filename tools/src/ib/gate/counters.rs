//! Counters of datagrams.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Direction {
    /// Datagrams received, and their bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Datagrams forwarded, whole or fragmented, and their bytes as received.
    pub(crate) forwarded: u64,
    pub(crate) forwarded_bytes: u64,
    /// Forwarded datagrams that were fragmented.
    pub(crate) cut: u64,
    /// Forwarded, but the neighbour did not answer, or there was no path to its port.
    pub(crate) undelivered: u64,
    /// For the gate itself.
    pub(crate) own: u64,
    /// Valid on a single link only: broadcasts, neighbour discovery, groups without members.
    pub(crate) stayed: u64,
    pub(crate) malformed: u64,
    /// Addresses that no such datagram can have.
    pub(crate) martians: u64,
    pub(crate) hops_exceeded: u64,
    /// Longer than the MTU, and fragmentation not allowed.
    pub(crate) too_big: u64,
    /// No route, or the link is down.
    pub(crate) unreachable: u64,
    /// Queue of the other side full.
    pub(crate) lost: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Icmp {
    /// About datagrams that were not forwarded.
    pub(crate) reports: u64,
    /// The standards forbid them, or the gate has no address.
    pub(crate) reports_withheld: u64,
    pub(crate) rate_limited: u64,
    pub(crate) echoes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Dhcp {
    pub(crate) relayed: u64,
    /// Messages in a loop, answers to no request of this agent, or beyond a full queue.
    pub(crate) dropped: u64,
}
