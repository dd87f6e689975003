//! Port of a link: queues of packets and management datagrams.

use std::collections::VecDeque;

use super::Fabric;
use crate::fabric::{Mads, Packets, PortInfo};
use crate::wire::address::{Guid, Lid};
use crate::wire::mad::MAD_LEN;

/// Further packets are lost.
const PACKETS_MAX: usize = 4096;
const MADS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Plug {
    pub(super) info: PortInfo,
    packets: VecDeque<(u64, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    mads: VecDeque<(u64, Lid, [u8; MAD_LEN])>,
}

impl Plug {
    pub(super) const fn new(info: PortInfo) -> Self {
        Self { info, packets: VecDeque::new(), spare: Vec::new(), mads: VecDeque::new() }
    }

    /// Returns false if there is no room.
    pub(super) fn push_packet(&mut self, at_ns: u64, packet: &[u8]) -> bool {
        if self.packets.len() >= PACKETS_MAX {
            return false;
        }
        let mut octets = self.spare.pop().unwrap_or_default();
        octets.clear();
        octets.extend_from_slice(packet);
        self.packets.push_back((at_ns, octets));
        true
    }

    pub(super) fn push_mad(&mut self, at_ns: u64, from: Lid, mad: [u8; MAD_LEN]) {
        if self.mads.len() < MADS_MAX {
            self.mads.push_back((at_ns, from, mad));
        }
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.mads.clear();
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        let packet = self.packets.front().map(|(at_ns, _)| *at_ns);
        let mad = self.mads.front().map(|(at_ns, ..)| *at_ns);
        [packet, mad].into_iter().flatten().min()
    }
}

/// Port of a fabric in memory.
#[derive(Debug)]
pub struct MemoryPort {
    fabric: Fabric,
    guid: Guid,
    told: Option<PortInfo>,
    burst: Vec<Vec<u8>>,
}

impl MemoryPort {
    pub(super) const fn new(fabric: Fabric, guid: Guid) -> Self {
        Self { fabric, guid, told: None, burst: Vec::new() }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Plug) -> R) -> Option<R> {
        let mut state = self.fabric.lock();
        state.ports.values_mut().find(|plug| plug.info.guid == self.guid).map(act)
    }
}

impl Mads for MemoryPort {
    fn port_change(&mut self, _now_ns: u64) -> Option<PortInfo> {
        let told = self.told.as_ref();
        let info = self.with(|plug| (told != Some(&plug.info)).then(|| plug.info.clone()))??;
        self.told = Some(info.clone());
        Some(info)
    }

    fn send_mad(&mut self, now_ns: u64, to: Lid, mad: &[u8; MAD_LEN]) {
        self.fabric.lock().take_mad(now_ns, self.guid, to, mad);
    }

    fn receive_mad(&mut self, now_ns: u64) -> Option<(Lid, [u8; MAD_LEN])> {
        self.with(|plug| {
            let (at_ns, ..) = plug.mads.front()?;
            if *at_ns > now_ns {
                return None;
            }
            plug.mads.pop_front().map(|(_, from, mad)| (from, mad))
        })?
    }
}

impl Packets for MemoryPort {
    fn send_packet(&mut self, now_ns: u64, packet: &[u8]) {
        self.fabric.lock().forward(now_ns, self.guid, packet);
    }

    fn receive_packets(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut taken = std::mem::take(&mut self.burst);
        self.with(|plug| {
            plug.spare.append(&mut taken);
            let has_come = |(at_ns, _): &(u64, _)| *at_ns <= now_ns;
            while taken.len() < burst && plug.packets.front().is_some_and(has_come) {
                taken.extend(plug.packets.pop_front().map(|(_, packet)| packet));
            }
        });
        // The lock is free while the sink runs.
        for packet in &taken {
            sink(packet);
        }
        let count = taken.len();
        self.burst = taken;
        count
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.with(|plug| {
            let changed = self.told.as_ref() != Some(&plug.info);
            if changed { Some(0) } else { plug.next_arrival_ns() }
        })?
    }
}
