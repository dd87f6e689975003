//! What a port and its connections are made with.

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
    /// Interface identifier of the link-local IPv6 address, on devices whose link addresses are no
    /// Ethernet addresses; `None` makes it from `mac`.
    pub interface_identifier: Option<u64>,
    /// IPv4 address and prefix length.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// IPv6 address and prefix length.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// Router for IPv4 destinations outside the prefix.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Router for IPv6 destinations outside the prefix.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Ask for an IPv4 address and router by DHCP (RFC 2131). They take the place of `ipv4` and
    /// `gateway_v4` when they come, and are taken away when the lease ends. None comes on a device
    /// without link addresses ([`Medium::Ip`](urnic_netdev::Medium::Ip)).
    pub dhcp: bool,
    /// The 802.1Q VLAN that the port is in: frames carry its tag, others are ignored. Without one,
    /// frames are sent untagged, and taken when they are untagged or carry a priority only.
    pub vlan: Option<VlanId>,
    /// The least that an ICMP message, or timeouts, make of the MTU of an IPv4 path, in bytes, at
    /// least 68. A forged message cannot force tiny segments (RFC 5044 §9.1). IPv6 has 1280.
    pub path_mtu_min: usize,
    /// TCP settings. MSS and path MTU are filled in from the device.
    pub tcp: tcp::Config,
    /// Whether FPDUs that arrive ahead of others are placed at once, on optimized connections.
    pub out_of_order_placement: bool,
    /// Blocks of [`PIECE_BLOCK_LEN`](crate::limits::PIECE_BLOCK_LEN) bytes that connections share
    /// for what arrives far beyond a gap, at most [`PIECE_BLOCKS_MAX`]. Beside them each connection
    /// may hold the FPDU that is next ([`NEAR_PAGES`](crate::mpa::pieces::NEAR_PAGES)).
    pub piece_blocks: usize,
    /// Connections that the port has at a time, those in TIME-WAIT not counted, at most
    /// [`CONNECTIONS_MAX`](crate::limits::CONNECTIONS_MAX). Another one is refused, or closed when it comes
    /// from a peer.
    pub connections_max: usize,
    /// Connections in TIME-WAIT that the port keeps, of 256 bytes each, at most
    /// [`TIME_WAIT_MAX`](crate::limits::TIME_WAIT_MAX); with more the oldest is over early. With 0 none is kept: TCP ports are used again while old
    /// segments of theirs may still be on their way.
    pub time_wait_max: usize,
    /// How long the timers of a connection's life run.
    pub life: LifeTimes,
    /// Whether payload is gathered by the device or copied into frames.
    pub send_path: SendPath,
}

impl PortConfig {
    /// A port with one IPv4 address in a /24 and a locally administered Ethernet address made
    /// from it.
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

    /// The port's link-local IPv6 address, made from its interface identifier or its Ethernet address
    /// (RFC 4291 §2.5.6 and appendix A).
    #[must_use]
    pub const fn link_local(&self) -> Ipv6Addr {
        if let Some(identifier) = self.interface_identifier {
            let [a, b, c, d, e, f, g, h] = identifier.to_be_bytes();
            return Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h]);
        }
        let [a, b, c, d, e, f] = self.mac;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The address to reach `remote` from.
    pub(crate) fn address_for(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.ipv4.map(|(address, _)| IpAddr::V4(address)),
            IpAddr::V6(remote) if remote.is_unicast_link_local() => {
                Some(IpAddr::V6(self.link_local()))
            }
            IpAddr::V6(_) => self.ipv6.map(|(address, _)| IpAddr::V6(address)),
        }
    }

    /// Whether the address is the port's.
    pub(crate) fn owns(&self, address: IpAddr) -> bool {
        self.address_for(address) == Some(address)
    }

    /// Whether the Ethernet frame is for this port, or multicast.
    #[inline]
    pub(crate) fn is_link_destination(&self, frame: &[u8]) -> bool {
        frame.first_chunk().is_none_or(|to: &[u8; 6]| *to == self.mac || to[0] & 1 != 0)
    }

    /// Whether the address is unicast: neither multicast nor broadcast nor unspecified.
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

    /// The neighbour through which `remote` is reached.
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

    /// TCP settings for a connection to `remote` over a device with this MTU.
    pub(crate) fn tcp_for(&self, remote: IpAddr, mtu: usize) -> tcp::Config {
        let ip_header_len = if remote.is_ipv4() { 20 } else { 40 };
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        let sized = tcp::Config::for_mtu(mtu, ip_header_len);
        tcp::Config {
            mss_receive: sized.mss_receive,
            path_payload_max: sized.path_payload_max,
            mss_default: sized.mss_default,
            ..self.tcp
        }
    }

    /// How received FPDUs are treated on a connection with this lower layer.
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
    /// The VLAN of this number; `None` for those that name none (IEEE 802.1Q §9.6).
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

/// How MPA uses TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LowerLayer {
    /// TCP segments are cut at FPDUs, and segments pass up in any order (RFC 5044 Appendix A).
    #[default]
    Optimized,
    /// TCP is a byte stream: FPDUs fall where they fall, bytes pass up in order only
    /// (RFC 5044 §5).
    Layered,
}

/// What a connection is opened with.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectParams<'a> {
    /// MPA settings.
    pub startup: StartupConfig,
    /// What to tell the peer's application, and how many Reads to allow.
    pub offer: Offer<'a>,
    /// How MPA uses TCP.
    pub lower_layer: LowerLayer,
}

/// What a listener is made with.
#[derive(Clone, Debug)]
pub struct ListenParams {
    /// MPA settings of the connections.
    pub startup: StartupConfig,
    /// How MPA uses TCP.
    pub lower_layer: LowerLayer,
    /// Connections that may be half open at a time, up to [`LISTEN_BACKLOG_MAX`]; twice as many that stand may wait for
    /// their startup. A larger backlog is also the number that may wait, up to
    /// [`LISTEN_ASKED_MAX`](crate::limits::LISTEN_ASKED_MAX). [`Backlog`](crate::tcp::Backlog) says what happens when
    /// there are more.
    pub backlog: usize,
    /// Leave accepted connections in streaming mode; MPA is started on them later.
    pub delayed: bool,
    /// When keep-alive probes are sent on the connections; `None` for what [`PortConfig::tcp`] says,
    /// and for none over the kernel's TCP.
    pub keepalive: Option<tcp::KeepAliveTimes>,
    /// Of `::`, only the addresses of IPv6: those of IPv4 are another listener's.
    pub only_ipv6: bool,
    /// Type of service and traffic class of the connections, over the kernel's TCP; a port sends all with the same.
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
