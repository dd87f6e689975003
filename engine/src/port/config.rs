//! Settings of a port and of its connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::limits::{CONNECTIONS_USUAL, LISTEN_BACKLOG_MAX, PIECE_BLOCKS_MAX, TIME_WAIT_KEPT};
use crate::mpa::startup::{Offer, StartupConfig};
use crate::stream::life::LifeTimes;
use crate::stream::{RxPolicy, SendPath};
use crate::tcp;

/// The identity of a port, and defaults for its connections.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Interface identifier of the link-local IPv6 address; `None` makes it from `mac`.
    pub interface_identifier: Option<u64>,
    /// IPv4 address and prefix length.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// IPv6 address and prefix length.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// Router for IPv4 destinations outside the prefix.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Router for IPv6 destinations outside the prefix.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Ask for an IPv4 address and router by DHCP (RFC 2131), which replace `ipv4` and `gateway_v4`
    /// for the lease. A device without link addresses ([`Medium::Ip`](urnic_netdev::Medium::Ip))
    /// gets none.
    pub dhcp: bool,
    /// The port's 802.1Q VLAN: frames carry its tag, frames of others are dropped. `None`: frames
    /// are sent untagged, and accepted if they are untagged or carry only a priority.
    pub vlan: Option<VlanId>,
    /// Smallest MTU of an IPv4 path that ICMP or timeouts can set, in bytes, at least 68: a forged
    /// message cannot force tiny segments (RFC 5044 §9.1). IPv6 has 1280.
    pub path_mtu_min: usize,
    /// TCP settings.
    pub tcp: tcp::Config,
    /// Place FPDUs that arrive ahead of others at once, on optimized connections.
    pub out_of_order_placement: bool,
    /// Blocks of [`PIECE_BLOCK_LEN`](crate::limits::PIECE_BLOCK_LEN) bytes that connections share
    /// for bytes far beyond a gap, at most [`PIECE_BLOCKS_MAX`].
    pub piece_blocks: usize,
    /// Most connections of the port at a time, not counting those in TIME-WAIT; at most
    /// [`CONNECTIONS_MAX`](crate::limits::CONNECTIONS_MAX). Further ones are refused or closed.
    pub connections_max: usize,
    /// Most connections in TIME-WAIT that the port keeps, of 256 bytes each, at most
    /// [`TIME_WAIT_MAX`](crate::limits::TIME_WAIT_MAX); then the oldest ends early. 0 keeps none:
    /// TCP ports are reused while old segments of theirs may still be in the network.
    pub time_wait_max: usize,
    /// Durations of the timers of a connection's life.
    pub life: LifeTimes,
    /// Choice between payload gathered by the device and payload copied into frames.
    pub send_path: SendPath,
}

impl PortConfig {
    /// One IPv4 address in a /24, and a locally administered Ethernet address made from it.
    #[must_use]
    pub fn for_ipv4(address: Ipv4Addr) -> Self {
        let [a, b, c, d] = address.octets();
        Self {
            mac: [0x02, 0x00, a, b, c, d],
            interface_identifier: None,
            ipv4: Some((address, 24)),
            ipv6: None,
            gateway_v4: None,
            gateway_v6: None,
            dhcp: false,
            vlan: None,
            path_mtu_min: PATH_MTU_MIN,
            tcp: tcp::Config::default(),
            out_of_order_placement: true,
            piece_blocks: PIECE_BLOCKS_MAX,
            connections_max: CONNECTIONS_USUAL,
            time_wait_max: TIME_WAIT_KEPT,
            life: LifeTimes::default(),
            send_path: SendPath::default(),
        }
    }

    /// A port that asks for its IPv4 address by DHCP.
    #[must_use]
    pub fn for_dhcp(mac: [u8; 6]) -> Self {
        Self { mac, ipv4: None, dhcp: true, ..Self::for_ipv4(Ipv4Addr::UNSPECIFIED) }
    }

    /// The port's link-local IPv6 address (RFC 4291 §2.5.6 and appendix A).
    #[must_use]
    pub const fn link_local(&self) -> Ipv6Addr {
        if let Some(identifier) = self.interface_identifier {
            let [a, b, c, d, e, f, g, h] = identifier.to_be_bytes();
            return Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h]);
        }
        let [a, b, c, d, e, f] = self.mac;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    pub(crate) fn address_for(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.ipv4.map(|(address, _)| IpAddr::V4(address)),
            IpAddr::V6(remote) if remote.is_unicast_link_local() => {
                Some(IpAddr::V6(self.link_local()))
            }
            IpAddr::V6(_) => self.ipv6.map(|(address, _)| IpAddr::V6(address)),
        }
    }

    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        self.address_for(address) == Some(address)
    }

    #[inline]
    pub(crate) fn is_link_destination(&self, frame: &[u8]) -> bool {
        frame.first_chunk().is_none_or(|to: &[u8; 6]| *to == self.mac || to[0] & 1 != 0)
    }

    /// Returns true if the address is unicast: neither multicast nor broadcast nor unspecified.
    pub(crate) fn is_unicast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else {
            return !address.is_multicast() && !address.is_unspecified();
        };
        let is_of_subnet = self.ipv4.is_some_and(|(own, prefix_len)| {
            let host_bits = u32::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0);
            // RFC 3021: the two addresses of a point-to-point link are those of its ends.
            host_bits > 1 && address.to_bits() == own.to_bits() | host_bits
        });
        !address.is_multicast()
            && !address.is_broadcast()
            && !address.is_unspecified()
            && !is_of_subnet
    }

    pub(crate) fn next_hop(&self, remote: IpAddr) -> IpAddr {
        match remote {
            IpAddr::V4(to) => match (self.ipv4, self.gateway_v4) {
                (Some((own, prefix_len)), Some(gateway))
                    if !same_prefix(
                        u128::from(own.to_bits()),
                        u128::from(to.to_bits()),
                        32,
                        prefix_len,
                    ) =>
                {
                    IpAddr::V4(gateway)
                }
                _ => remote,
            },
            IpAddr::V6(to) if to.is_unicast_link_local() => remote,
            IpAddr::V6(to) => match (self.ipv6, self.gateway_v6) {
                (Some((own, prefix_len)), Some(gateway))
                    if !same_prefix(own.to_bits(), to.to_bits(), 128, prefix_len) =>
                {
                    IpAddr::V6(gateway)
                }
                _ => remote,
            },
        }
    }

    pub(crate) fn tcp_for(&self, remote: IpAddr, mtu: usize) -> tcp::PathConfig {
        let ip_header_len = if remote.is_ipv4() { 20 } else { 40 };
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        tcp::PathConfig::new(self.tcp, mtu, ip_header_len)
    }

    pub(crate) fn rx_policy(&self, lower_layer: LowerLayer) -> RxPolicy {
        let out_of_order = self.out_of_order_placement && lower_layer == LowerLayer::Optimized;
        RxPolicy { out_of_order, ..RxPolicy::default() }
    }
}

fn same_prefix(a: u128, b: u128, width: u32, prefix_len: u8) -> bool {
    let host_bits = width.saturating_sub(u32::from(prefix_len));
    a.checked_shr(host_bits) == b.checked_shr(host_bits)
}

/// The default of [`PortConfig::path_mtu_min`]: segments of 512 bytes.
const PATH_MTU_MIN: usize = 552;

/// The identifier of an 802.1Q VLAN, 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanId(u16);

impl VlanId {
    /// Returns the VLAN with this number; `None` for reserved numbers (IEEE 802.1Q §9.6).
    #[must_use]
    pub const fn new(id: u16) -> Option<Self> {
        if id >= 1 && id <= 4094 { Some(Self(id)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// Use of TCP by MPA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LowerLayer {
    /// TCP segments are cut at FPDUs, and segments pass up in any order (RFC 5044 Appendix A).
    #[default]
    Optimized,
    /// TCP is a byte stream: FPDUs begin anywhere, bytes pass up in order only (RFC 5044 §5).
    Layered,
}

/// Parameters of a connection that is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectParams<'a> {
    /// MPA settings.
    pub startup: StartupConfig,
    /// Private data for the peer's application, and the number of Reads to allow.
    pub offer: Offer<'a>,
    /// Use of TCP by MPA.
    pub lower_layer: LowerLayer,
}

/// Parameters of a listener.
#[derive(Clone, Debug)]
pub struct ListenParams {
    /// MPA settings of the connections.
    pub startup: StartupConfig,
    /// Use of TCP by MPA.
    pub lower_layer: LowerLayer,
    /// Most half-open connections, up to [`LISTEN_BACKLOG_MAX`]; twice as many established ones may
    /// wait for their startup. A larger backlog is also the number that may wait, up to
    /// [`LISTEN_REQUESTED_MAX`](crate::limits::LISTEN_REQUESTED_MAX).
    /// [`Backlog`](crate::tcp::Backlog) evicts further ones.
    pub backlog: usize,
    /// Leave accepted connections in streaming mode; MPA is started on them later.
    pub delayed: bool,
    /// Keep-alive probes on the connections; `None` for those of [`PortConfig::tcp`], and for no
    /// probes over the kernel's TCP.
    pub keepalive: Option<tcp::KeepAliveTimes>,
    /// If true, a listener at `::` takes only IPv6; another listener may take IPv4.
    pub only_ipv6: bool,
    /// Type of service of the connections, over the kernel's TCP; a port uses one value for all.
    pub traffic_class: Option<u8>,
}

impl Default for ListenParams {
    fn default() -> Self {
        Self {
            startup: StartupConfig::default(),
            lower_layer: LowerLayer::default(),
            backlog: LISTEN_BACKLOG_MAX,
            delayed: false,
            keepalive: None,
            only_ipv6: false,
            traffic_class: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> PortConfig {
        PortConfig {
            ipv6: Some(("fd00::1".parse().unwrap(), 64)),
            gateway_v4: Some(Ipv4Addr::new(10, 0, 0, 254)),
            gateway_v6: Some("fd00::ff".parse().unwrap()),
            ..PortConfig::for_ipv4(Ipv4Addr::new(10, 0, 0, 1))
        }
    }

    #[test]
    fn the_router_is_the_next_hop_to_other_networks_only() {
        for (remote, hop) in [
            ("10.0.0.9", "10.0.0.9"),
            ("10.0.1.9", "10.0.0.254"),
            ("fd00::9", "fd00::9"),
            ("fd00:0:0:1::9", "fd00::ff"),
            ("fe80::9", "fe80::9"),
        ] {
            assert_eq!(config().next_hop(remote.parse().unwrap()), hop.parse::<IpAddr>().unwrap());
        }
        let without = PortConfig { gateway_v4: None, gateway_v6: None, ..config() };
        for remote in ["10.0.1.9", "fd00:0:0:1::9"] {
            let remote = remote.parse().unwrap();
            assert_eq!(without.next_hop(remote), remote, "it is taken for a neighbour");
        }
    }

    #[test]
    fn peers_are_reached_from_the_address_of_their_scope() {
        let config = config();
        let link_local = IpAddr::V6(config.link_local());
        for (remote, own) in [
            ("10.9.9.9", Some("10.0.0.1".parse().unwrap())),
            ("fd09::9", Some("fd00::1".parse().unwrap())),
            ("fe80::9", Some(link_local)),
        ] {
            let remote = remote.parse().unwrap();
            assert_eq!(config.address_for(remote), own);
            assert!(config.owns(own.unwrap()) && !config.owns(remote), "{remote}");
        }
        let without = PortConfig { ipv4: None, ipv6: None, ..config };
        for remote in ["10.9.9.9", "fd09::9"] {
            assert_eq!(without.address_for(remote.parse().unwrap()), None);
        }
    }

    /// RFC 3021: a network of two addresses has no broadcast address.
    #[test]
    fn the_last_address_of_a_network_of_more_than_two_is_no_host() {
        for (prefix_len, address, is_unicast) in [
            (24, [10, 0, 0, 255], false),
            (25, [10, 0, 0, 255], true),
            (25, [10, 0, 0, 127], false),
            (30, [10, 0, 0, 3], false),
            (31, [10, 0, 0, 1], true),
            (32, [10, 0, 0, 0], true),
            (24, [10, 0, 0, 0], true),
            (24, [0, 0, 0, 0], false),
            (24, [224, 0, 0, 1], false),
            (24, [255, 255, 255, 255], false),
        ] {
            let ipv4 = Some((Ipv4Addr::new(10, 0, 0, 0), prefix_len));
            let config = PortConfig { ipv4, ..config() };
            assert_eq!(config.is_unicast(address.into()), is_unicast, "{address:?}/{prefix_len}");
        }
    }

    #[test]
    fn frames_to_the_own_link_address_and_to_groups_are_for_the_port() {
        let config = config();
        let mut other = config.mac;
        other[5] ^= 1;
        for (to, is_its) in [
            (config.mac, true),
            ([0xff; 6], true),
            ([0x33, 0x33, 0xff, 0, 0, 1], true),
            ([1, 0, 0x5e, 0, 0, 1], true),
            (other, false),
        ] {
            assert_eq!(config.is_link_destination(&to), is_its, "{to:x?}");
        }
    }

    #[test]
    fn only_optimized_connections_place_out_of_order_unless_none_may() {
        for (out_of_order_placement, lower_layer, expected) in [
            (true, LowerLayer::Optimized, true),
            (true, LowerLayer::Layered, false),
            (false, LowerLayer::Optimized, false),
        ] {
            let config = PortConfig { out_of_order_placement, ..config() };
            assert_eq!(config.rx_policy(lower_layer).out_of_order, expected);
        }
    }
}
