//! Link addresses of neighbours: learned from ARP and NDP, asked for when missing.
//!
//! smoltcp has such a table too, but keeps it to itself; frames of the engine do not pass it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscRepr,
    RawHardwareAddress,
};
use urnic_netdev::{TransmitError, TxChecksum, TxFrame};

use crate::limits::NEIGHBOURS_MAX;
use crate::port::PortConfig;
use crate::time::Instant;

/// Time between two questions for the same neighbour.
const SOLICIT_INTERVAL_NS: u64 = 200_000_000;

#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    known: HashMap<IpAddr, [u8; 6]>,
    /// When neighbours were last asked for.
    asked: HashMap<IpAddr, Instant>,
    news: bool,
}

impl Neighbours {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn lookup(&self, address: IpAddr) -> Option<[u8; 6]> {
        self.known.get(&address).copied()
    }

    pub(crate) fn learn(&mut self, address: IpAddr, mac: [u8; 6]) {
        // A group address is nobody's own.
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return;
        }
        // Somebody who makes up addresses must not keep others from being reached. Connections
        // keep the route they have; an address that is dropped and needed is asked for again.
        if self.known.len() >= NEIGHBOURS_MAX
            && !self.known.contains_key(&address)
            && let Some(dropped) = self.known.keys().next().copied()
        {
            self.known.remove(&dropped);
        }
        self.asked.remove(&address);
        self.news |= self.known.insert(address, mac) != Some(mac);
    }

    /// Whether something new was learned since the last call.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Whether a question should be asked again. It is forgotten here, and asked by whoever still
    /// wants the answer.
    pub(crate) fn take_retry_due(&mut self, now: Instant) -> bool {
        let before = self.asked.len();
        self.asked.retain(|_, at| now.nanos_since(*at) < SOLICIT_INTERVAL_NS);
        self.asked.len() < before
    }

    /// When a question should be asked again.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.asked.values().map(|at| at.plus_nanos(SOLICIT_INTERVAL_NS)).min()
    }

    /// Learns from an ARP packet or a neighbour solicitation or advertisement.
    pub(crate) fn learn_from(&mut self, frame: &[u8]) {
        if let Some((address, mac)) = sender_of(frame) {
            self.learn(address, mac);
        }
    }

    /// Asks for a neighbour's link address, unless that was done a moment ago. Returns how many
    /// frames that took.
    pub(crate) fn solicit(
        &mut self,
        now: Instant,
        config: &PortConfig,
        target: IpAddr,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        if let Some(at) = self.asked.get(&target)
            && now.nanos_since(*at) < SOLICIT_INTERVAL_NS
        {
            return 0;
        }
        let frame = match (target, config.ipv4, config.ipv6) {
            (IpAddr::V4(target), Some((own, _)), _) => arp_request(config.mac, own, target),
            (IpAddr::V6(target), _, Some((own, _))) => {
                neighbour_solicitation(config.mac, own, target)
            }
            _ => return 0,
        };
        self.asked.insert(target, now);
        let frame = TxFrame {
            head: &frame,
            payload: &[],
            checksum: TxChecksum::Complete,
            segment_size: None,
        };
        usize::from(transmit(&frame).is_ok())
    }
}

fn sender_of(frame: &[u8]) -> Option<(IpAddr, [u8; 6])> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    match frame.ethertype() {
        EthernetProtocol::Arp => {
            let packet = ArpPacket::new_checked(frame.payload()).ok()?;
            let ArpRepr::EthernetIpv4 { source_hardware_addr, source_protocol_addr, .. } =
                ArpRepr::parse(&packet).ok()?
            else {
                return None;
            };
            Some((IpAddr::V4(source_protocol_addr), source_hardware_addr.0))
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(frame.payload()).ok()?;
            // RFC 4861 §7.1: only messages that no router has passed on are believed.
            if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != 255 {
                return None;
            }
            let (source, destination) = (packet.src_addr(), packet.dst_addr());
            let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
            let checksums = smoltcp::phy::ChecksumCapabilities::default();
            let repr = Icmpv6Repr::parse(&source, &destination, &message, &checksums).ok()?;
            let Icmpv6Repr::Ndisc(ndisc) = repr else { return None };
            let (address, lladdr) = match ndisc {
                NdiscRepr::NeighborSolicit { lladdr, .. } => (source, lladdr?),
                NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => (target_addr, lladdr?),
                _ => return None,
            };
            let mac: [u8; 6] = lladdr.as_bytes().try_into().ok()?;
            (!address.is_unspecified()).then_some((IpAddr::V6(address), mac))
        }
        _ => None,
    }
}

fn arp_request(mac: [u8; 6], own: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
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

fn neighbour_solicitation(mac: [u8; 6], own: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_the_newest_neighbour_is_always_in_it() {
        let mut neighbours = Neighbours::new();
        for host in 0..2 * NEIGHBOURS_MAX {
            let host = u32::try_from(host).unwrap();
            let address = IpAddr::V4(Ipv4Addr::from(host));
            neighbours.learn(address, [2, 0, 0, 0, 0, 1]);
            assert!(neighbours.lookup(address).is_some());
        }
        assert_eq!(neighbours.known.len(), NEIGHBOURS_MAX);
    }

    #[test]
    fn a_group_address_is_nobodys() {
        let mut neighbours = Neighbours::new();
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        neighbours.learn(address, [0xff; 6]);
        neighbours.learn(address, [0; 6]);
        assert!(neighbours.lookup(address).is_none());
    }
}
