//! Sends datagrams: to a neighbour by its path, or to a group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::discovery::{self, solicited_node};
use super::groups::{self, Multicast};
use super::neighbour::Route;
use super::path::{self, Hop};
use super::sa::Request;
use super::{Link, LinkState};
use crate::wire::address::{Gid, LinkAddress, Qpn};
use crate::wire::arp::{ArpPacket, Operation};
use crate::wire::datagram::{self, DatagramType, HEADER_LEN};
use crate::wire::mad::{JoinState, PathRecord};
use crate::wire::packet::{GlobalRoute, PacketHeader};

/// Reasons why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// This port is not in the broadcast group.
    #[error("the link is down")]
    Down,
    /// The datagram is longer than the link's MTU.
    #[error("longer than the link's MTU")]
    TooLong,
    /// The bytes are no IP datagram, or no neighbour leads to the destination.
    #[error("no datagram that this link can carry")]
    Refused,
}

pub(crate) fn destination(head: &[u8]) -> Option<(DatagramType, IpAddr)> {
    match head.first()? >> 4 {
        4 => {
            let to: [u8; 4] = head.get(16..20)?.try_into().ok()?;
            Some((DatagramType::Ipv4, Ipv4Addr::from(to).into()))
        }
        6 => {
            let to: [u8; 16] = head.get(24..40)?.try_into().ok()?;
            Some((DatagramType::Ipv6, Ipv6Addr::from(to).into()))
        }
        _ => None,
    }
}

impl Link {
    /// Sends an IP datagram of `len` bytes that begins with `head`; `fill` writes it whole. It
    /// waits for its neighbour, path or group, or is dropped if the queue is full.
    ///
    /// # Errors
    /// [`SendError`] if the datagram was not taken.
    pub fn send(
        &mut self,
        now_ns: u64,
        head: &[u8],
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), SendError> {
        let LinkState::Up { mtu, .. } = self.state() else { return Err(SendError::Down) };
        if len > mtu {
            return Err(SendError::TooLong);
        }
        let (kind, to) = destination(head).ok_or(SendError::Refused)?;
        let payload_len = HEADER_LEN + len;
        let write = |payload: &mut [u8]| {
            let (header, rest) = payload.split_at_mut(HEADER_LEN);
            header.copy_from_slice(&datagram::header(kind));
            fill(rest);
        };
        let group = self.map.group(to);
        let group = group.or_else(|| {
            // RFC 4391 §4: the hosts of the network are those of the broadcast group.
            self.config.is_directed_broadcast(to).then(|| self.map.broadcast())
        });
        if let Some(mgid) = group {
            self.send_to_group(now_ns, mgid, payload_len, write);
            return Ok(());
        }
        let hop = self.config.next_hop(to).ok_or(SendError::Refused)?;
        let route = self.neighbours.route(now_ns, hop, &mut self.budget);
        self.counters.waiting_dropped += self.budget.take_evicted();
        match route {
            Route::Known { at, probe } => {
                self.send_to(now_ns, at, payload_len, write);
                if probe {
                    self.ask_neighbour(now_ns, hop, Some(at));
                }
            }
            Route::Wait => {
                let payload = written(payload_len, write);
                let dropped = self.neighbours.wait(hop, payload, &mut self.budget);
                self.counters.waiting_dropped += dropped;
                self.handle_timeout(now_ns);
            }
        }
        Ok(())
    }

    /// The payload begins with the encapsulation header.
    pub(super) fn send_to(
        &mut self,
        now_ns: u64,
        to: LinkAddress,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let route = self.paths.route(now_ns, to.gid, &mut self.budget);
        self.counters.waiting_dropped += self.budget.take_evicted();
        let asks = match route {
            path::Route::Known { hop, ask } => {
                self.emit_unicast(to, hop, len, write);
                ask
            }
            path::Route::Wait { ask } => {
                let payload = written(len, write);
                let dropped = self.paths.wait(to.gid, to.qpn, payload, &mut self.budget);
                self.counters.waiting_dropped += dropped;
                ask
            }
            path::Route::Absent => {
                let payload = written(len, write);
                self.without_path([payload]);
                false
            }
        };
        if asks {
            self.ask_path(now_ns, to.gid);
        }
    }

    // spec: IPOIB-9.1-5
    pub(super) fn ask_path(&mut self, now_ns: u64, gid: Gid) {
        let query = PathRecord::query(self.own_gid(), gid, self.map.p_key());
        if !self.client.ask(now_ns, Request::Path(query)) {
            let waited = self.paths.fail(now_ns, gid, true, &mut self.budget);
            self.without_path(waited);
        }
    }

    /// RFC 4391 §10. If this port is no member, queues the payload and joins the group, to send
    /// only. A payload for a missing group goes to the routers or is dropped.
    // spec: IPOIB-10-1
    pub(super) fn send_to_group(
        &mut self,
        now_ns: u64,
        mgid: Gid,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        if mgid == self.map.broadcast() {
            if let Some(record) = self.membership.record() {
                self.emit_multicast(mgid, Multicast::of(record), len, write);
            }
            return;
        }
        match self.groups.route(now_ns, mgid) {
            groups::Route::Member(multicast) => self.emit_multicast(mgid, multicast, len, write),
            groups::Route::Wait { ask } => {
                let dropped = self.groups.wait(mgid, written(len, write), &mut self.budget);
                self.counters.waiting_dropped += dropped;
                let Some(state) = ask else { return };
                if !self.ask_join(now_ns, mgid, state, state == JoinState::FULL_MEMBER) {
                    let lost = self.groups.absent(now_ns, mgid, state, &mut self.budget);
                    self.counters.without_group += lost.len() as u64;
                }
            }
            groups::Route::Absent => {
                let payload = written(len, write);
                self.send_to_routers(now_ns, mgid, &payload);
            }
            groups::Route::Full => self.counters.without_group += 1,
        }
    }

    /// Sends a payload to the routers if it may leave the link (RFC 4391 §10).
    // spec: IPOIB-10-1
    pub(super) fn send_to_routers(&mut self, now_ns: u64, absent: Gid, payload: &[u8]) {
        let routers = datagram::parse(payload).ok().and_then(|(_, datagram)| {
            match destination(datagram)?.1 {
                // RFC 5771 §4: 224.0.0.0/24 stays on the link.
                IpAddr::V4(to) if to.octets()[..3] == [224, 0, 0] => None,
                IpAddr::V4(_) => Some(self.map.ipv4(Ipv4Addr::new(224, 0, 0, 2))),
                // RFC 4291 §2.7: scopes 1 and 2 stay on the link.
                IpAddr::V6(to) if to.octets()[1] & 0x0f <= 2 => None,
                IpAddr::V6(_) => Some(self.map.ipv6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2))),
            }
        });
        // The routers' group may be missing, too: its own call from `send_to_group` ends here.
        match routers.filter(|routers| *routers != absent) {
            Some(routers) => {
                self.send_to_group(now_ns, routers, payload.len(), |place| {
                    place.copy_from_slice(payload);
                });
            }
            None => self.counters.without_group += 1,
        }
    }

    pub(super) fn flush_neighbour(&mut self, now_ns: u64, ip: IpAddr) {
        while let Some((at, payload)) = self.neighbours.pop(ip, &mut self.budget) {
            self.send_to(now_ns, at, payload.len(), |place| place.copy_from_slice(&payload));
        }
    }

    pub(super) fn flush_path(&mut self, gid: Gid) {
        while let Some((hop, qpn, payload)) = self.paths.pop(gid, &mut self.budget) {
            let to = LinkAddress { qpn, gid };
            self.emit_unicast(to, hop, payload.len(), |place| place.copy_from_slice(&payload));
        }
    }

    pub(super) fn flush_group(&mut self, mgid: Gid) {
        while let Some((multicast, payload)) = self.groups.pop(mgid, &mut self.budget) {
            let write = |place: &mut [u8]| place.copy_from_slice(&payload);
            self.emit_multicast(mgid, multicast, payload.len(), write);
        }
    }

    /// Asks the known holder if `at` is given; otherwise all hosts of the link (IPv4), or the
    /// solicited-node group (IPv6).
    pub(super) fn ask_neighbour(&mut self, now_ns: u64, ip: IpAddr, at: Option<LinkAddress>) {
        let own = self.own_address();
        match ip {
            IpAddr::V4(target_ip) => {
                let Some((sender_ip, _)) = self.config.ipv4 else { return };
                let arp = ArpPacket {
                    operation: Operation::Request,
                    sender: own,
                    sender_ip,
                    target: [0; LinkAddress::LEN],
                    target_ip,
                };
                self.send_message(now_ns, DatagramType::Arp, &arp.to_bytes(), at, || None);
            }
            IpAddr::V6(target) => {
                let [given, of_link] = self.own_ipv6();
                let source = if target.is_unicast_link_local() { of_link } else { given };
                let Some(source) = source else { return };
                let group = solicited_node(target);
                let to = if at.is_some() { target } else { group };
                let message = discovery::solicitation(source, to, target, own);
                let mgid = self.map.ipv6(group);
                self.send_message(now_ns, DatagramType::Ipv6, &message, at, || Some(mgid));
            }
        }
    }

    /// Sends a message to an interface, to a group, or to all.
    pub(super) fn send_message(
        &mut self,
        now_ns: u64,
        kind: DatagramType,
        message: &[u8],
        at: Option<LinkAddress>,
        group: impl FnOnce() -> Option<Gid>,
    ) {
        let len = HEADER_LEN + message.len();
        let write = |payload: &mut [u8]| {
            let (header, rest) = payload.split_at_mut(HEADER_LEN);
            header.copy_from_slice(&datagram::header(kind));
            rest.copy_from_slice(message);
        };
        match at {
            Some(at) => self.send_to(now_ns, at, len, write),
            None => {
                let mgid = group().unwrap_or_else(|| self.map.broadcast());
                self.send_to_group(now_ns, mgid, len, write);
            }
        }
    }

    // spec: IPOIB-ARCH-2
    fn emit_unicast(
        &mut self,
        to: LinkAddress,
        hop: Hop,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let own = self.own_gid();
        // Routers between subnets need the destination.
        let global = (own.0[..8] != to.gid.0[..8]).then_some(GlobalRoute {
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            source: own,
            destination: to.gid,
        });
        let header =
            PacketHeader { dlid: hop.dlid, ..self.header(hop.service_level, global, to.qpn) };
        self.emit(&header, len, write);
    }

    /// Sends with a global header, always.
    // spec: IPOIB-ARCH-2
    fn emit_multicast(
        &mut self,
        mgid: Gid,
        multicast: Multicast,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let global = Some(GlobalRoute {
            traffic_class: multicast.traffic_class,
            flow_label: multicast.flow_label,
            hop_limit: multicast.hop_limit,
            source: self.own_gid(),
            destination: mgid,
        });
        let header = PacketHeader {
            dlid: multicast.mlid,
            ..self.header(multicast.service_level, global, Qpn::MULTICAST)
        };
        self.emit(&header, len, write);
    }

    fn header(
        &mut self,
        service_level: u8,
        global: Option<GlobalRoute>,
        destination_qp: Qpn,
    ) -> PacketHeader {
        self.psn = self.psn.wrapping_add(1);
        PacketHeader {
            service_level,
            dlid: self.own_lid(),
            slid: self.own_lid(),
            global,
            p_key: self.own_key,
            destination_qp,
            psn: self.psn,
            // RFC 4391 §9.1.2: the broadcast group's, in all packets of the link.
            // spec: IPOIB-9.1-4
            q_key: self.q_key(),
            source_qp: self.config.qpn,
        }
    }

    fn emit(&mut self, header: &PacketHeader, len: usize, write: impl FnOnce(&mut [u8])) {
        let mut packet = self.spare.pop().unwrap_or_default();
        packet.clear();
        header.emit_by(len, write, &mut packet);
        self.out.push_back(packet);
        self.counters.datagrams_sent += 1;
    }
}

fn written(len: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut payload = vec![0; len];
    write(&mut payload);
    payload
}
