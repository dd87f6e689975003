//! Counters of a port, and its reasons to drop frames.

use std::ops::AddAssign;

/// Counters of a port besides those of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames dropped before any connection received them.
    pub drops: PortDrops,
    /// Bytes of frames that were copied together, because they could not be passed up in place.
    pub rx_bytes_gathered: u64,
    /// IP datagrams reassembled from fragments.
    pub reassembled: u64,
    /// ICMP errors about a segment in flight that had an effect.
    pub icmp_heeded: u64,
    /// SYNs answered with a cookie because the backlog was full (RFC 4987).
    pub cookies_sent: u64,
    /// Connections opened by a returned cookie.
    pub cookies_redeemed: u64,
    /// Times that a stalled connection gave up bytes far beyond a gap for another one.
    pub pieces_reclaimed: u64,
    /// Connections reset because others needed their slot in a backlog (RFC 5042 §6.4.2).
    pub backlog_evicted: u64,
    /// Connections in TIME-WAIT that ended early: for
    /// [`PortConfig::time_wait_max`](crate::port::PortConfig::time_wait_max), or for their TCP
    /// port.
    pub time_wait_recycled: u64,
    /// Frames for connections of other queues of the interface.
    pub handed_over: u64,
}

/// Frames that a port dropped before any connection received them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortDrops {
    /// Not a well-formed frame of a known kind, or TCP to or from an address that is not unicast.
    pub malformed: u64,
    /// IPv4 header checksum wrong.
    pub ip_checksum: u64,
    /// TCP checksum wrong.
    pub tcp_checksum: u64,
    /// IP fragments that overlap others, contradict them, are too many, or are not for this port.
    pub fragments: u64,
    /// Frames of another VLAN.
    pub vlan: u64,
    /// Frames for another host of the link, or TCP in a link multicast (RFC 1122 §3.3.6).
    pub foreign: u64,
    /// ICMP errors that quote no segment in flight (RFC 5927 §4.1).
    pub icmp: u64,
    /// Frames for other queues of the interface, which did not keep up.
    pub handover: u64,
    /// Frames beyond
    /// [`CONNECTIONLESS_PER_SECOND_MAX`](crate::limits::CONNECTIONLESS_PER_SECOND_MAX).
    pub excess: u64,
}

impl AddAssign for PortDrops {
    fn add_assign(&mut self, other: Self) {
        let Self {
            malformed,
            ip_checksum,
            tcp_checksum,
            fragments,
            vlan,
            foreign,
            icmp,
            handover,
            excess,
        } = other;
        self.malformed += malformed;
        self.ip_checksum += ip_checksum;
        self.tcp_checksum += tcp_checksum;
        self.fragments += fragments;
        self.vlan += vlan;
        self.foreign += foreign;
        self.icmp += icmp;
        self.handover += handover;
        self.excess += excess;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameDrop {
    Malformed,
    IpChecksum,
    TcpChecksum,
    Fragment,
    Vlan,
    Foreign,
    Icmp,
    Handover,
    Excess,
}

impl PortDrops {
    pub(crate) const fn count(&mut self, reason: FrameDrop) -> u64 {
        let counter = match reason {
            FrameDrop::Malformed => &mut self.malformed,
            FrameDrop::IpChecksum => &mut self.ip_checksum,
            FrameDrop::TcpChecksum => &mut self.tcp_checksum,
            FrameDrop::Fragment => &mut self.fragments,
            FrameDrop::Vlan => &mut self.vlan,
            FrameDrop::Foreign => &mut self.foreign,
            FrameDrop::Icmp => &mut self.icmp,
            FrameDrop::Handover => &mut self.handover,
            FrameDrop::Excess => &mut self.excess,
        };
        *counter += 1;
        *counter
    }
}
