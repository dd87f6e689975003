//! Receives packets: checks them, hands datagrams up, and handles ARP and neighbour discovery.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::discovery::{self, Message};
use super::{Link, LinkState};
use crate::wire::address::{Gid, Lid, LinkAddress, QKey, Qpn};
use crate::wire::arp::{ArpPacket, Operation};
use crate::wire::datagram::{self, DatagramType, HEADER_LEN};
use crate::wire::packet::PacketHeader;

impl Link {
    /// Handles a packet. Returns its IP datagram, if it is for the host.
    pub fn handle_packet<'p>(&mut self, now_ns: u64, packet: &'p [u8]) -> Option<&'p [u8]> {
        let Ok((header, payload)) = PacketHeader::parse(packet) else {
            self.counters.malformed_packets += 1;
            return None;
        };
        let is_multicast = self.admits(&header)?;
        let LinkState::Up { mtu, .. } = self.state() else { return None };
        let parsed = datagram::parse(payload).ok().filter(|_| payload.len() <= mtu + HEADER_LEN);
        // The pad is up to three bytes; the IP header contains the exact length.
        let handed = match parsed {
            Some((DatagramType::Ipv4, datagram)) => {
                let datagram =
                    ipv4(datagram, is_multicast, |to| self.config.is_directed_broadcast(to.into()));
                if datagram.is_some_and(|datagram| self.handle_dhcp(now_ns, datagram)) {
                    return None;
                }
                datagram
            }
            Some((DatagramType::Ipv6, datagram)) => {
                return self.handle_ipv6(now_ns, datagram, is_multicast, header.slid);
            }
            Some((DatagramType::Arp, packet)) => {
                self.handle_arp(now_ns, packet, header.slid);
                return None;
            }
            _ => None,
        };
        self.count(handed)
    }

    fn count<'p>(&mut self, handed: Option<&'p [u8]>) -> Option<&'p [u8]> {
        match handed {
            Some(_) => self.counters.datagrams_received += 1,
            None => self.counters.bad_datagrams += 1,
        }
        handed
    }

    /// Checks that the packet is for this interface and has the link's keys; true for a group. A
    /// refusal (`None`) is counted.
    fn admits(&mut self, header: &PacketHeader) -> Option<bool> {
        let counter = match self.judge(header) {
            Ok(is_multicast) => return Some(is_multicast),
            Err(Misfit::Foreign) => &mut self.counters.foreign_packets,
            Err(Misfit::OwnCopy) => &mut self.counters.own_copies,
            Err(Misfit::PKey) => &mut self.counters.p_key_mismatches,
            Err(Misfit::QKey) => &mut self.counters.q_key_mismatches,
        };
        *counter += 1;
        None
    }

    fn judge(&self, header: &PacketHeader) -> Result<bool, Misfit> {
        // RFC 4392 §1.2: same partition, and at least one of the two a full member.
        if !self.own_key.admits(header.p_key) {
            return Err(Misfit::PKey);
        }
        let is_multicast = header.destination_qp == Qpn::MULTICAST;
        // spec: IPOIB-9.1-2
        if !is_multicast && header.destination_qp != self.config.qpn {
            return Err(Misfit::Foreign);
        }
        // RFC 4391 §9.1.2.
        // spec: IPOIB-9.1-4
        if header.q_key != self.q_key() {
            return Err(Misfit::QKey);
        }
        let destination = header.global.as_ref().map(|global| global.destination);
        if is_multicast {
            let (Some(route), Some(mgid)) = (&header.global, destination) else {
                return Err(Misfit::Foreign);
            };
            if route.source == self.own_gid() && header.source_qp == self.config.qpn {
                return Err(Misfit::OwnCopy);
            }
            let is_member = mgid == self.map.broadcast() || self.groups.receives(mgid);
            return if is_member && header.dlid.is_multicast() {
                Ok(true)
            } else {
                Err(Misfit::Foreign)
            };
        }
        // RFC 4391 §6: with or without a global header.
        // spec: IPOIB-6-2
        let is_own = destination.is_none_or(|gid: Gid| gid == self.own_gid());
        if header.dlid == self.own_lid() && is_own { Ok(false) } else { Err(Misfit::Foreign) }
    }

    pub(super) const fn q_key(&self) -> QKey {
        match self.state() {
            LinkState::Up { q_key, .. } => q_key,
            LinkState::Down(_) => QKey(0),
        }
    }

    fn handle_ipv6<'p>(
        &mut self,
        now_ns: u64,
        datagram: &'p [u8],
        is_multicast: bool,
        slid: Lid,
    ) -> Option<&'p [u8]> {
        match discovery::parse(datagram) {
            Ok(None) => {
                let handed = ipv6(datagram, is_multicast);
                return self.count(handed);
            }
            Ok(Some(message)) => self.handle_discovery(now_ns, message, slid),
            Err(discovery::Invalid) => self.counters.bad_datagrams += 1,
        }
        None
    }

    /// RFC 826, with the addresses of RFC 4391 §9.2.
    fn handle_arp(&mut self, now_ns: u64, packet: &[u8], slid: Lid) {
        let sender_is_right = |arp: &ArpPacket| {
            let ip = arp.sender_ip;
            let is_host = !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified();
            is_host && is_interface(arp.sender) && !self.owns(ip.into())
        };
        let Some(arp) = ArpPacket::parse(packet).ok().filter(sender_is_right) else {
            self.counters.bad_datagrams += 1;
            return;
        };
        let ip = IpAddr::V4(arp.sender_ip);
        let is_for_us = self.owns(arp.target_ip.into());
        self.learn(now_ns, ip, (arp.sender, slid), is_for_us);
        if is_for_us && arp.operation == Operation::Request {
            let reply = ArpPacket {
                operation: Operation::Reply,
                sender: self.own_address(),
                sender_ip: arp.target_ip,
                target: arp.sender.to_bytes(),
                target_ip: arp.sender_ip,
            };
            let to = Some(arp.sender);
            self.send_message(now_ns, DatagramType::Arp, &reply.to_bytes(), to, || None);
        }
    }

    fn handle_discovery(&mut self, now_ns: u64, message: Message, slid: Lid) {
        match message {
            Message::Solicitation { source, target, from } => {
                if !self.owns(target.into()) {
                    return;
                }
                let own = self.own_address();
                let from = from.filter(|from| is_interface(*from));
                let (to, at) = match from {
                    Some(from) => {
                        self.learn(now_ns, source.into(), (from, slid), true);
                        (source, Some(from))
                    }
                    // RFC 4861 §7.2.4: answer a host without an address at all nodes.
                    None => (Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), None),
                };
                let answer = discovery::advertisement(target, to, own);
                let group = self.map.ipv6(to);
                self.send_message(now_ns, DatagramType::Ipv6, &answer, at, || Some(group));
            }
            Message::Advertisement { target, at } => {
                let Some(at) = at.filter(|at| is_interface(*at) && !self.owns(target.into()))
                else {
                    self.counters.bad_datagrams += 1;
                    return;
                };
                // RFC 4861 §7.2.5: ignore advertisements of unknown neighbours.
                self.learn(now_ns, target.into(), (at, slid), false);
            }
        }
    }

    /// Stores the link-layer address that a neighbour itself reports, and sends the datagrams that
    /// wait for it. Queries the path to its port if the source LID of the report is another one.
    fn learn(&mut self, now_ns: u64, ip: IpAddr, (at, slid): (LinkAddress, Lid), wanted: bool) {
        if self.paths.has_moved(now_ns, at.gid, slid) {
            self.ask_path(now_ns, at.gid);
        }
        self.neighbours.learn(now_ns, ip, at, wanted, &mut self.budget);
        self.counters.waiting_dropped += self.budget.take_evicted();
        self.flush_neighbour(now_ns, ip);
    }
}

enum Misfit {
    Foreign,
    OwnCopy,
    PKey,
    QKey,
}

fn is_interface(address: LinkAddress) -> bool {
    !address.gid.is_multicast()
        && address.gid.0 != [0; 16]
        && address.qpn != Qpn::MULTICAST
        && address.qpn.bits() > Qpn::GSI.bits()
}

/// `None` if its length is invalid, or for a unicast datagram that was sent to a group (RFC 1122
/// §3.3.6, RFC 1812 §5.3.4).
fn ipv4(
    datagram: &[u8],
    came_to_group: bool,
    is_directed_broadcast: impl Fn(Ipv4Addr) -> bool,
) -> Option<&[u8]> {
    let head = datagram.first_chunk::<20>()?;
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let to = Ipv4Addr::new(head[16], head[17], head[18], head[19]);
    let is_for_several = || to.is_multicast() || to.is_broadcast() || is_directed_broadcast(to);
    let is_right = head[0] >> 4 == 4 && (!came_to_group || is_for_several());
    datagram.get(..len).filter(|_| is_right)
}

fn ipv6(datagram: &[u8], came_to_group: bool) -> Option<&[u8]> {
    let head = datagram.first_chunk::<40>()?;
    let len = 40 + usize::from(u16::from_be_bytes([head[4], head[5]]));
    let is_right = head[0] >> 4 == 6 && (!came_to_group || head[24] == 0xff);
    datagram.get(..len).filter(|_| is_right)
}
