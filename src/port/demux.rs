//! From a frame to the TCP segment in it, or to the host stack.

use std::net::IpAddr;

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, checksum,
};
use urnic_netdev::{Fragment, Medium};

use crate::port::PortDrops;

/// A TCP segment in its IP datagram, checksums verified where they had to be.
#[derive(Debug)]
pub(crate) struct Inbound<'f> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Who sent it on this link.
    pub(crate) source_mac: Option<[u8; 6]>,
    /// TCP header and payload, link padding removed.
    pub(crate) segment: &'f [u8],
}

/// What a frame is.
#[derive(Debug)]
pub(crate) enum Parsed<'f> {
    Tcp(Inbound<'f>),
    /// Something for the host stack to look at.
    Other,
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameDrop {
    Malformed,
    IpChecksum,
    TcpChecksum,
    Fragment,
}

impl FrameDrop {
    pub(crate) const fn count(self, drops: &mut PortDrops) {
        match self {
            Self::Malformed => drops.malformed += 1,
            Self::IpChecksum => drops.ip_checksum += 1,
            Self::TcpChecksum => drops.tcp_checksum += 1,
            Self::Fragment => drops.fragments += 1,
        }
    }
}

/// Octets of an 802.1Q tag.
const VLAN_TAG_LEN: usize = 4;

/// Finds the TCP segment in a frame. `verify` asks for the TCP checksum to be checked.
pub(crate) fn parse(medium: Medium, frame: &[u8], verify: bool) -> Result<Parsed<'_>, FrameDrop> {
    match medium {
        Medium::Ip => match frame.first().map(|octet| octet >> 4) {
            Some(4) => parse_ipv4(frame, None, verify),
            Some(6) => parse_ipv6(frame, None, verify),
            _ => Err(FrameDrop::Malformed),
        },
        Medium::Ethernet => {
            let ethernet = EthernetFrame::new_checked(frame).map_err(|_| FrameDrop::Malformed)?;
            let mac = Some(ethernet.src_addr().0);
            let (mut ethertype, mut payload) = (ethernet.ethertype(), ethernet.payload());
            if matches!(ethertype, EthernetProtocol::Unknown(0x8100 | 0x88a8)) {
                let [_, _, high, low, rest @ ..] = payload else {
                    return Err(FrameDrop::Malformed);
                };
                debug_assert_eq!(payload.len() - rest.len(), VLAN_TAG_LEN);
                ethertype = EthernetProtocol::from(u16::from_be_bytes([*high, *low]));
                payload = rest;
            }
            match ethertype {
                EthernetProtocol::Ipv4 => parse_ipv4(payload, mac, verify),
                EthernetProtocol::Ipv6 => parse_ipv6(payload, mac, verify),
                _ => Ok(Parsed::Other),
            }
        }
    }
}

fn parse_ipv4(
    datagram: &[u8],
    source_mac: Option<[u8; 6]>,
    verify: bool,
) -> Result<Parsed<'_>, FrameDrop> {
    let packet = Ipv4Packet::new_checked(datagram).map_err(|_| FrameDrop::Malformed)?;
    if packet.version() != 4 {
        return Err(FrameDrop::Malformed);
    }
    // RFC 1122 §3.2.1.2: the header checksum is verified on every datagram.
    if !packet.verify_checksum() {
        return Err(FrameDrop::IpChecksum);
    }
    if packet.next_header() != IpProtocol::Tcp {
        return Ok(Parsed::Other);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(FrameDrop::Fragment);
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    let start = usize::from(packet.header_len());
    let end = usize::from(packet.total_len());
    let segment = datagram.get(start..end).ok_or(FrameDrop::Malformed)?;
    checked(segment, IpAddr::V4(source), IpAddr::V4(destination), source_mac, verify)
}

fn parse_ipv6(
    datagram: &[u8],
    source_mac: Option<[u8; 6]>,
    verify: bool,
) -> Result<Parsed<'_>, FrameDrop> {
    let packet = Ipv6Packet::new_checked(datagram).map_err(|_| FrameDrop::Malformed)?;
    if packet.version() != 6 {
        return Err(FrameDrop::Malformed);
    }
    // Extension headers before TCP are rare; smoltcp deals with them.
    if packet.next_header() != IpProtocol::Tcp {
        return Ok(Parsed::Other);
    }
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    let end = packet.total_len();
    let segment = datagram.get(IPV6_HEADER_LEN..end).ok_or(FrameDrop::Malformed)?;
    checked(segment, IpAddr::V6(source), IpAddr::V6(destination), source_mac, verify)
}

const IPV6_HEADER_LEN: usize = 40;

fn checked(
    segment: &[u8],
    source: IpAddr,
    destination: IpAddr,
    source_mac: Option<[u8; 6]>,
    verify: bool,
) -> Result<Parsed<'_>, FrameDrop> {
    // RFC 9293 MUST-3: the checksum is verified on every segment.
    if verify && !tcp_checksum_is_right(segment, source, destination) {
        return Err(FrameDrop::TcpChecksum);
    }
    Ok(Parsed::Tcp(Inbound { source, destination, source_mac, segment }))
}

fn tcp_checksum_is_right(segment: &[u8], source: IpAddr, destination: IpAddr) -> bool {
    let addresses = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            checksum::combine(&[
                checksum::data(&source.octets()),
                checksum::data(&destination.octets()),
            ])
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            checksum::combine(&[
                checksum::data(&source.octets()),
                checksum::data(&destination.octets()),
            ])
        }
        _ => return false,
    };
    let len = u16::try_from(segment.len()).unwrap_or(u16::MAX);
    let octets = Fragment::from_slice(segment).ones_complement_sum();
    checksum::combine(&[addresses, u16::from(u8::from(IpProtocol::Tcp)), len, octets]) == u16::MAX
}
