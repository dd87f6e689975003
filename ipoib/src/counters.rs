//! What happened to packets and management datagrams.

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that were sent as packets.
    pub datagrams_sent: u64,
    /// Datagrams that were handed up.
    pub datagrams_received: u64,
    /// Requests to the subnet administrator, repetitions included.
    pub requests_sent: u64,
    /// Requests that were not answered however often they were sent.
    pub requests_unanswered: u64,
    /// Reports of the subnet manager.
    pub reports: u64,
    /// Times the link came up.
    pub link_ups: u64,
    /// Packets that are none of this service, or damaged.
    pub malformed_packets: u64,
    /// Packets of a partition that this port is not in, or from one limited member to another.
    pub p_key_mismatches: u64,
    /// Packets with another Q_Key than the broadcast group's.
    pub q_key_mismatches: u64,
    /// Packets for another port, queue pair or group.
    pub foreign_packets: u64,
    /// Copies of what this port sent to a group.
    pub own_copies: u64,
    /// Packets longer than the link's MTU, with an encapsulation that is unknown, or with an
    /// ARP packet or neighbour discovery that is not right.
    pub bad_datagrams: u64,
    /// Management datagrams of another port than the administrator's, that answer no request, or
    /// that answer another one than was asked.
    pub mads_refused: u64,
    /// Management datagrams of another class, or damaged.
    pub mads_malformed: u64,
    /// Datagrams that were dropped: the neighbour does not answer.
    pub neighbours_silent: u64,
    /// Datagrams that were dropped: there is no path to the port.
    pub without_path: u64,
    /// Datagrams that were dropped: there is no such group (RFC 4391 §10).
    pub without_group: u64,
    /// Groups that a host wanted to receive when it received as many as it may.
    pub groups_refused: u64,
    /// Messages of DHCP that are damaged, or answer nothing that was asked.
    pub dhcp_refused: u64,
    /// Datagrams that were dropped: too many wait.
    pub waiting_dropped: u64,
}
