//! Counters of datagrams.

use serde::Serialize;

/// Datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Direction {
    /// Datagrams received, and their bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Datagrams forwarded, whole or fragmented, and their bytes as received.
    pub(crate) forwarded: u64,
    pub(crate) forwarded_bytes: u64,
    /// Datagrams among these that were fragmented.
    pub(crate) cut: u64,
    /// Forwarded datagrams and fragments that were not delivered: their neighbour did not answer,
    /// or there was no path to its port.
    pub(crate) undelivered: u64,
    /// For the gate itself.
    pub(crate) own: u64,
    /// Valid on a single link only: broadcasts, neighbour discovery and the like, groups without
    /// members.
    pub(crate) stayed: u64,
    /// Invalid header.
    pub(crate) malformed: u64,
    /// Addresses that no such datagram can have.
    pub(crate) martians: u64,
    /// Hop limit used up.
    pub(crate) hops_exceeded: u64,
    /// Longer than the MTU, and fragmentation not allowed.
    pub(crate) too_big: u64,
    /// No route, or the link is down.
    pub(crate) unreachable: u64,
    /// Queue of the other side full.
    pub(crate) lost: u64,
}

/// Messages of the gate itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Icmp {
    /// Messages about datagrams that were not forwarded.
    pub(crate) reports: u64,
    /// Messages not sent because the standards forbid them, or because the gate has no address.
    pub(crate) reports_withheld: u64,
    /// Messages not sent because there were too many in a second.
    pub(crate) rate_limited: u64,
    /// Answers to echo requests.
    pub(crate) echoes: u64,
}

/// DHCP messages to the relay agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Dhcp {
    /// Messages forwarded.
    pub(crate) relayed: u64,
    /// Messages dropped: they are in a loop, answer no request of this agent, or the queue was
    /// full.
    pub(crate) dropped: u64,
}
