//! Switch: forwards packets as the administrator has granted. At the edge it checks partitions and
//! lengths, like ports do.

use super::State;
use crate::fabric::PortInfo;
use crate::wire::address::{Gid, Guid, Lid, PKey};
use crate::wire::packet::{GLOBAL_LEN, HEAD_LEN, PacketHeader, TAIL_LEN};

/// Packet counters of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// Packets delivered to a port, each copy counted.
    pub delivered: u64,
    /// Not a datagram of InfiniBand, or damaged.
    pub malformed: u64,
    /// To an unknown LID, or to a group that the sender may not send to.
    pub unroutable: u64,
    /// Packets of a partition that one of the two ports is not in.
    pub p_key_violations: u64,
    /// Longer than the MTU.
    pub too_long: u64,
    /// For a port whose queue was full, or that was disconnected.
    pub lost: u64,
}

/// A limited member must use a limited member's key (RFC 4392 §1.2).
pub(crate) fn may_send(table: &[PKey], key: PKey) -> bool {
    let of_partition = |own: &&PKey| own.full_member() == key.full_member();
    table.iter().filter(of_partition).any(|own| own.is_full_member() || !key.is_full_member())
}

pub(crate) fn may_receive(table: &[PKey], key: PKey) -> bool {
    table.iter().any(|own| own.admits(key))
}

/// Length of the payload with its pad.
pub(crate) fn payload_len(packet: &[u8], header: &PacketHeader) -> usize {
    let global = if header.global.is_some() { GLOBAL_LEN } else { 0 };
    packet.len().saturating_sub(HEAD_LEN + global + TAIL_LEN)
}

impl State {
    pub(super) fn forward(&mut self, now_ns: u64, from: Guid, packet: &[u8]) {
        let Some(sender) = self.ports.values().find(|plug| plug.info.guid == from) else { return };
        let sender = sender.info.clone();
        if !sender.is_active {
            self.counters.lost += 1;
            return;
        }
        let Ok((header, _)) = PacketHeader::parse(packet) else {
            self.counters.malformed += 1;
            return;
        };
        if payload_len(packet, &header) > self.config.mtu_octets {
            self.counters.too_long += 1;
            return;
        }
        if !may_send(&sender.p_keys, header.p_key) {
            self.counters.p_key_violations += 1;
            return;
        }
        let at_ns = now_ns.saturating_add(self.config.latency_ns);
        for lid in self.destinations(&sender, &header) {
            let Some(plug) = self.ports.get_mut(&lid) else {
                self.counters.unroutable += 1;
                continue;
            };
            if !may_receive(&plug.info.p_keys, header.p_key) {
                self.counters.p_key_violations += 1;
            } else if plug.info.is_active && plug.push_packet(at_ns, packet) {
                self.counters.delivered += 1;
            } else {
                self.counters.lost += 1;
            }
        }
    }

    fn destinations(&mut self, sender: &PortInfo, header: &PacketHeader) -> Vec<Lid> {
        if !header.dlid.is_multicast() {
            return vec![header.dlid];
        }
        let Some(members) = self.administrator.receivers(header.dlid, sender.gid()) else {
            self.counters.unroutable += 1;
            return Vec::new();
        };
        let lid_of = |gid: &Gid| {
            let plug = self.ports.values().find(|plug| plug.info.gid() == *gid);
            plug.map(|plug| plug.info.lid)
        };
        members.iter().filter_map(lid_of).collect()
    }
}
