//! Configuration of an interface in its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use urnic_engine::port::VlanId;
use urnic_engine::tcp::CongestionKind;

/// This host in a network. Settings that were not given are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// IPv4 address and prefix length.
    pub ip: Option<(Ipv4Addr, u8)>,
    /// IPv6 address and prefix length.
    pub ip6: Option<(Ipv6Addr, u8)>,
    /// Router for other IPv4 networks.
    pub gw: Option<Ipv4Addr>,
    /// Router for other IPv6 networks.
    pub gw6: Option<Ipv6Addr>,
    /// Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// Length of the largest IP datagram in bytes.
    pub mtu: Option<usize>,
    /// Super-frames cross the interface.
    pub vnet: Option<bool>,
    /// Number of queues, each with a thread.
    pub queues: usize,
    /// The VLAN of its frames.
    pub vlan: Option<VlanId>,
    /// The IPv4 address comes from a DHCP server.
    pub dhcp: bool,
    /// Congestion controller of the connections.
    pub congestion: CongestionKind,
}

impl Network {
    /// The configured addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let v4 = self.ip.map(|(ip, _)| IpAddr::V4(ip));
        v4.into_iter().chain(self.ip6.map(|(ip, _)| IpAddr::V6(ip))).collect()
    }
}
