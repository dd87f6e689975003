//! Announces this interface's addresses when the link comes up, since neighbours may know its
//! former queue pair (RFC 4391 §9.4). Repeats that: the subnet manager may set switches up for a
//! group after it has granted the join.

use std::net::Ipv6Addr;

use super::{Link, LinkState, discovery};
use crate::limits::{ANNOUNCE_INTERVAL_NS, ANNOUNCEMENTS};
use crate::wire::address::LinkAddress;
use crate::wire::arp::{ArpPacket, Operation};
use crate::wire::datagram::DatagramType;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Announcing {
    left: u32,
    due_ns: u64,
}

impl Link {
    pub(super) fn announce(&mut self, now_ns: u64) {
        self.announcing = Announcing { left: ANNOUNCEMENTS, due_ns: now_ns };
        self.run_announcing(now_ns);
    }

    pub(super) fn announcing_timeout(&self) -> Option<u64> {
        let is_up = matches!(self.state(), LinkState::Up { .. });
        (is_up && self.announcing.left > 0).then_some(self.announcing.due_ns)
    }

    pub(super) fn run_announcing(&mut self, now_ns: u64) {
        if self.announcing_timeout().is_some_and(|due_ns| due_ns <= now_ns) {
            self.announcing.left -= 1;
            self.announcing.due_ns = now_ns.saturating_add(ANNOUNCE_INTERVAL_NS);
            self.announce_once(now_ns);
        }
    }

    fn announce_once(&mut self, now_ns: u64) {
        let own = self.own_address();
        if let Some((ip, _)) = self.config.ipv4 {
            // RFC 5227 §2.3: a request for the own address.
            let arp = ArpPacket {
                operation: Operation::Request,
                sender: own,
                sender_ip: ip,
                target: [0; LinkAddress::LEN],
                target_ip: ip,
            };
            self.send_message(now_ns, DatagramType::Arp, &arp.to_bytes(), None, || None);
        }
        for address in self.own_ipv6().into_iter().flatten() {
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let message = discovery::advertisement(address, all_nodes, own);
            let mgid = self.map.ipv6(all_nodes);
            self.send_message(now_ns, DatagramType::Ipv6, &message, None, || Some(mgid));
        }
    }
}
