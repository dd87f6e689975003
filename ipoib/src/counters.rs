//! Counters of packets and management datagrams.

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams sent as packets.
    pub datagrams_sent: u64,
    /// Datagrams handed up.
    pub datagrams_received: u64,
    /// Requests to the subnet administrator, retransmissions included.
    pub requests_sent: u64,
    /// Requests without an answer after all attempts.
    pub requests_unanswered: u64,
    /// Reports of the subnet manager.
    pub reports: u64,
    /// Times the link came up.
    pub link_ups: u64,
    /// Packets of another service, or damaged ones.
    pub malformed_packets: u64,
    /// Packets of a partition that this port is not in, or from one limited member to another.
    pub p_key_mismatches: u64,
    /// Packets with another Q_Key than the broadcast group's.
    pub q_key_mismatches: u64,
    /// Packets for another port, queue pair or group.
    pub foreign_packets: u64,
    /// Copies of packets that this port sent to a group.
    pub own_copies: u64,
    /// Packets too long, of an unknown encapsulation, or with an invalid ARP or discovery message.
    pub bad_datagrams: u64,
    /// Management datagrams of another port, without a request, or with another subject.
    pub mads_refused: u64,
    /// Management datagrams of another class, or damaged ones.
    pub mads_malformed: u64,
    /// Datagrams dropped because the neighbour does not answer.
    pub neighbours_silent: u64,
    /// Datagrams dropped because there is no path to the port.
    pub without_path: u64,
    /// Datagrams dropped because there is no such group (RFC 4391 §10).
    pub without_group: u64,
    /// Groups that a host wanted to receive beyond its limit.
    pub groups_refused: u64,
    /// DHCP messages that are damaged, or answer no request.
    pub dhcp_refused: u64,
    /// Datagrams dropped because too many waited.
    pub waiting_dropped: u64,
}
