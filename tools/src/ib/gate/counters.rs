//! What happened to datagrams.

use serde::Serialize;

/// Datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Direction {
    /// Datagrams that came, and their bytes.
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    /// Datagrams that went on, whole or cut, and their bytes as they came.
    pub(crate) forwarded: u64,
    pub(crate) forwarded_bytes: u64,
    /// Of those, how many were cut.
    pub(crate) cut: u64,
    /// Of those, datagrams and pieces that were not delivered: their neighbour did not answer, or there
    /// was no path to its port.
    pub(crate) undelivered: u64,
    /// For the gate itself.
    pub(crate) own: u64,
    /// Of a single link: broadcasts, neighbour discovery and the like, groups that are not asked for.
    pub(crate) stayed: u64,
    /// A header that is not right.
    pub(crate) malformed: u64,
    /// Addresses that no such datagram can have.
    pub(crate) martians: u64,
    /// Hops used up.
    pub(crate) hops_exceeded: u64,
    /// Longer than the MTU, and not to be cut.
    pub(crate) too_big: u64,
    /// No way there, or the link is down.
    pub(crate) unreachable: u64,
    /// No room in the queue of the other side.
    pub(crate) lost: u64,
}

/// Messages that the gate sent itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Icmp {
    /// Messages about datagrams that did not go on.
    pub(crate) reports: u64,
    /// Those that were not sent because there must be none, or for want of an own address.
    pub(crate) reports_withheld: u64,
    /// Messages that were not sent because there were too many in a second.
    pub(crate) rate_limited: u64,
    /// Answers to echo requests.
    pub(crate) echoes: u64,
}

/// Messages of DHCP that came to the relay agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Dhcp {
    /// Messages that went on.
    pub(crate) relayed: u64,
    /// Messages that did not: they go in a circle, answer no question of this agent, or there was no room.
    pub(crate) dropped: u64,
}
