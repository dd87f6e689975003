//! Link addresses of neighbours: learned from ARP and NDP, asked for when missing.
//!
//! smoltcp has such a table too, but keeps it to itself; frames of the engine do not pass it.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags,
    NdiscRepr, RawHardwareAddress,
};
use urnic_netdev::{TransmitError, TxChecksum, TxFrame};

use crate::limits::{CONNECTIONS_MAX, NEIGHBOURS_MAX};
use crate::port::PortConfig;
use crate::port::framing::{ETHERTYPE_ARP, ETHERTYPE_IPV6, Framing, Opened};
use crate::time::Instant;

/// Time between two questions for the same neighbour.
const SOLICIT_INTERVAL_NS: u64 = 200_000_000;

#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    known: HashMap<IpAddr, [u8; 6]>,
    /// Questions without an answer yet, and who waits for it.
    asked: HashMap<IpAddr, Question>,
    /// The same questions, oldest first; one that was answered meanwhile is void.
    due: VecDeque<(Instant, IpAddr)>,
    /// Connections whose question was answered, or is to be asked again.
    woken: Vec<u32>,
    /// Counts the times that a neighbour had another address than before.
    changes: u64,
}

#[derive(Debug)]
struct Question {
    asked_at: Instant,
    waiting: Vec<u32>,
}

/// What a frame says about who has which link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    address: IpAddr,
    mac: [u8; 6],
    /// It was said to us.
    to_us: bool,
    /// It counts against what is known already (RFC 4861 §7.2.5; always with ARP).
    overrides: bool,
}

impl Neighbours {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn lookup(&self, address: IpAddr) -> Option<[u8; 6]> {
        self.known.get(&address).copied()
    }

    /// Differs from every earlier value once a neighbour that was known has another link address.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Takes the source address of a frame from `address` for the way to it, if none is known. Anybody
    /// can send such a frame, so that it changes nothing.
    pub(crate) fn suppose(&mut self, address: IpAddr, mac: [u8; 6]) {
        if !self.known.contains_key(&address) {
            self.learn(address, mac);
        }
    }

    fn learn(&mut self, address: IpAddr, mac: [u8; 6]) {
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
        if let Some(question) = self.asked.remove(&address) {
            self.woken.extend(question.waiting);
        }
        if self.known.insert(address, mac).is_some_and(|before| before != mac) {
            self.changes += 1;
        }
    }

    /// A connection that need not wait for an answer any longer.
    pub(crate) fn next_woken(&mut self) -> Option<u32> {
        self.woken.pop()
    }

    /// Forgets questions that were asked too long ago; whoever still wants the answer asks again.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(asked_at, address)) = self.due.front()
            && now.nanos_since(asked_at) >= SOLICIT_INTERVAL_NS
        {
            self.due.pop_front();
            if self.asked.get(&address).is_some_and(|question| question.asked_at == asked_at)
                && let Some(question) = self.asked.remove(&address)
            {
                self.woken.extend(question.waiting);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due.front().map(|(asked_at, _)| asked_at.plus_nanos(SOLICIT_INTERVAL_NS))
    }

    /// Learns from an ARP packet or a neighbour solicitation or advertisement; `false` when the
    /// frame is something else.
    pub(crate) fn learn_from(&mut self, config: &PortConfig, opened: &Opened<'_>) -> bool {
        let Some(Claim { address, mac, to_us, overrides }) = claim_in(config, opened) else {
            return false;
        };
        // RFC 826: what is known is brought up to date; new is what somebody tells us or what we
        // asked for. Nobody speaks for us.
        let known = self.known.contains_key(&address);
        let wanted = to_us || self.asked.contains_key(&address);
        if (if known { overrides } else { wanted }) && !config.owns(address) {
            self.learn(address, mac);
        }
        true
    }

    /// Asks for a neighbour's link address, unless that was done a moment ago. The connection in
    /// `waiting` is woken by the answer, or when it is time to ask again. Returns how many frames
    /// that took.
    pub(crate) fn solicit(
        &mut self,
        now: Instant,
        config: &PortConfig,
        framing: Framing,
        target: IpAddr,
        waiting: Option<u32>,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        if let Some(question) = self.asked.get_mut(&target) {
            question.waiting.extend(waiting);
            return 0;
        }
        let mut frame = match (target, config.address_for(target)) {
            (IpAddr::V4(target), Some(IpAddr::V4(own))) => arp_request(config.mac, own, target),
            (IpAddr::V6(target), Some(IpAddr::V6(own))) => {
                neighbour_solicitation(config.mac, own, target)
            }
            _ => return 0,
        };
        // As many questions as connections: each waits for one. Doubts can wait.
        if self.due.len() >= CONNECTIONS_MAX && waiting.is_none() {
            return 0;
        }
        let waiting = waiting.into_iter().collect();
        self.asked.insert(target, Question { asked_at: now, waiting });
        self.due.push_back((now, target));
        framing.seal(&mut frame);
        let frame = TxFrame {
            head: &frame,
            payload: &[],
            checksum: TxChecksum::Complete,
            segment_size: None,
        };
        usize::from(transmit(&frame).is_ok())
    }
}

fn claim_in(config: &PortConfig, opened: &Opened<'_>) -> Option<Claim> {
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
            // RFC 4861 §7.1: only messages that no router has passed on are believed.
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

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn hear(neighbours: &mut Neighbours, frame: &[u8]) {
        let config = PortConfig::for_ipv4(OWN);
        neighbours.learn_from(&config, &Framing::Ethernet.open(frame).unwrap());
    }

    fn ask(neighbours: &mut Neighbours, now: Instant, waiting: Option<u32>) -> usize {
        let config = PortConfig::for_ipv4(OWN);
        let target = IpAddr::V4(PEER);
        neighbours.solicit(now, &config, Framing::Ethernet, target, waiting, &mut |_| Ok(()))
    }

    #[test]
    fn new_is_only_what_was_asked_for_or_said_to_us() {
        let mut neighbours = Neighbours::new();
        let other = Ipv4Addr::new(10, 0, 0, 3);
        hear(&mut neighbours, &arp_request(MAC, PEER, other));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), None, "overheard");
        hear(&mut neighbours, &arp_request(MAC, PEER, OWN));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some(MAC));
        hear(&mut neighbours, &arp_request([4; 6], PEER, PEER));
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some([4; 6]), "gratuitous ARP");
        assert_eq!(neighbours.changes(), 1);
        neighbours.suppose(IpAddr::V4(PEER), MAC);
        assert_eq!(neighbours.lookup(IpAddr::V4(PEER)), Some([4; 6]), "a SYN changes nothing");
        hear(&mut neighbours, &arp_request(MAC, OWN, OWN));
        assert_eq!(neighbours.lookup(IpAddr::V4(OWN)), None, "nobody speaks for us");
    }

    #[test]
    fn an_answer_wakes_those_who_wait_and_nobody_else() {
        let mut neighbours = Neighbours::new();
        assert_eq!(ask(&mut neighbours, Instant::ZERO, Some(3)), 1);
        assert_eq!(ask(&mut neighbours, Instant::ZERO, Some(4)), 0, "asked a moment ago");
        hear(&mut neighbours, &arp_request(MAC, Ipv4Addr::new(10, 0, 0, 7), OWN));
        assert_eq!(neighbours.next_woken(), None);
        hear(&mut neighbours, &arp_request(MAC, PEER, PEER));
        let mut woken: Vec<_> = std::iter::from_fn(|| neighbours.next_woken()).collect();
        woken.sort_unstable();
        assert_eq!(woken, [3, 4]);
        let at = neighbours.poll_timeout().unwrap();
        neighbours.handle_timeout(at);
        assert_eq!((neighbours.poll_timeout(), neighbours.next_woken()), (None, None));
    }

    #[test]
    fn a_question_is_asked_again_by_those_who_still_wait() {
        let mut neighbours = Neighbours::new();
        ask(&mut neighbours, Instant::ZERO, Some(3));
        neighbours.handle_timeout(Instant::ZERO.plus_nanos(SOLICIT_INTERVAL_NS - 1));
        assert_eq!(neighbours.next_woken(), None);
        let later = Instant::ZERO.plus_nanos(SOLICIT_INTERVAL_NS);
        neighbours.handle_timeout(later);
        assert_eq!(neighbours.next_woken(), Some(3));
        assert_eq!(ask(&mut neighbours, later, None), 1);
    }
}
