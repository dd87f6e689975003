//! ARP (RFC 826) and neighbour discovery (RFC 4861): messages about link addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};

use crate::port::config::PortConfig;
use crate::port::interface::framing::{ETHERTYPE_ARP, ETHERTYPE_IPV6, Opened};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) address: IpAddr,
    pub(super) mac: [u8; 6],
    pub(super) to_us: bool,
    /// It replaces a known link address (RFC 4861 §7.2.5; always with ARP).
    pub(super) overrides: bool,
}

pub(super) fn claim_in(config: &PortConfig, opened: &Opened<'_>) -> Option<Claim> {
    match opened.ethertype {
        ETHERTYPE_ARP => {
            let packet = ArpPacket::new_checked(opened.payload).ok()?;
            let ArpRepr::EthernetIpv4 {
                source_hardware_addr,
                source_protocol_addr,
                target_protocol_addr,
                ..
            } = ArpRepr::parse(&packet).ok()?
            else {
                return None;
            };
            let address = IpAddr::V4(source_protocol_addr);
            let to_us = config.owns(IpAddr::V4(target_protocol_addr));
            // RFC 5227 §2.1.1: a probe has no sender address yet.
            (!address.is_unspecified()).then_some(Claim {
                address,
                mac: source_hardware_addr.0,
                to_us,
                overrides: true,
            })
        }
        ETHERTYPE_IPV6 => {
            let packet = Ipv6Packet::new_checked(opened.payload).ok()?;
            // RFC 4861 §7.1: messages that a router has forwarded are ignored.
            if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != 255 {
                return None;
            }
            let (source, destination) = (packet.src_addr(), packet.dst_addr());
            let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
            let checksums = smoltcp::phy::ChecksumCapabilities::default();
            let repr = Icmpv6Repr::parse(&source, &destination, &message, &checksums).ok()?;
            let Icmpv6Repr::Ndisc(ndisc) = repr else { return None };
            let (address, lladdr, to_us, overrides) = match ndisc {
                NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                    let to_us = config.owns(IpAddr::V6(target_addr));
                    (source, lladdr?, to_us, true)
                }
                NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } => {
                    let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
                    (target_addr, lladdr?, false, overrides)
                }
                _ => return None,
            };
            let mac: [u8; 6] = lladdr.as_bytes().try_into().ok()?;
            let address = IpAddr::V6(address);
            (!address.is_unspecified()).then_some(Claim { address, mac, to_us, overrides })
        }
        _ => None,
    }
}

pub(super) fn arp_request(mac: [u8; 6], own: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: own,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: target,
    };
    let link = EthernetRepr {
        src_addr: EthernetAddress(mac),
        dst_addr: EthernetAddress::BROADCAST,
        ethertype: EthernetProtocol::Arp,
    };
    let mut frame = vec![0; link.buffer_len() + arp.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
    link.emit(&mut ethernet);
    arp.emit(&mut ArpPacket::new_unchecked(ethernet.payload_mut()));
    frame
}

pub(super) fn neighbour_solicitation(mac: [u8; 6], own: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    // RFC 4291 §2.7.1: the solicited-node group of the target.
    let [.., x, y, z] = target.octets();
    let group = Ipv6Addr::from([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z]);
    let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit {
        target_addr: target,
        lladdr: Some(RawHardwareAddress::from(EthernetAddress(mac))),
    });
    let ip = Ipv6Repr {
        src_addr: own,
        dst_addr: group,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: 255,
    };
    let link = EthernetRepr {
        src_addr: EthernetAddress(mac),
        // RFC 2464 §7.
        dst_addr: EthernetAddress([0x33, 0x33, 0xff, x, y, z]),
        ethertype: EthernetProtocol::Ipv6,
    };
    let mut frame = vec![0; link.buffer_len() + ip.buffer_len() + message.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
    link.emit(&mut ethernet);
    let mut packet = Ipv6Packet::new_unchecked(ethernet.payload_mut());
    ip.emit(&mut packet);
    message.emit(
        &own,
        &group,
        &mut Icmpv6Packet::new_unchecked(packet.payload_mut()),
        &smoltcp::phy::ChecksumCapabilities::default(),
    );
    frame
}
