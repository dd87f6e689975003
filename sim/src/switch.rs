//! An Ethernet switch between links in memory.

use crate::guess::Guesser;
use crate::moving::Movers;
use urnic_netdev::memory::MemoryDevice;
use urnic_netdev::{Device, TxFrame};

const BURST: usize = 64;

/// Passes each frame to the node of its destination address, and frames to a group to all others. A
/// node's Ethernet address ends in its number, counted from 1: the switch learns nothing.
#[derive(Debug)]
pub(crate) struct Switch {
    ports: Vec<MemoryDevice>,
    /// The buffers keep their allocations.
    frames: Vec<Vec<u8>>,
    pub(crate) guesser: Option<Guesser>,
    pub(crate) movers: Movers,
}

impl Switch {
    pub(crate) fn new(ports: Vec<MemoryDevice>, guesser: Option<Guesser>) -> Self {
        let movers = Movers::new(ports.len());
        Self { ports, frames: Vec::new(), guesser, movers }
    }

    /// Tells all nodes if `announces`.
    pub(crate) fn move_node(&mut self, now_ns: u64, node: usize, announces: bool) {
        self.movers.move_host(node);
        if announces {
            for mut frame in self.movers.announcements(node) {
                send(&mut self.ports, &mut self.movers, node, now_ns, &mut frame);
            }
        }
    }

    /// Sends requests of hosts that do not exist.
    pub(crate) fn crowd(&mut self, now_ns: u64, node: usize, hosts: u32) {
        for _ in 0..hosts {
            let frame = self.movers.made_up(node);
            // The tail of a full queue drops, as in any switch.
            let _dropped = self.ports[node].transmit(now_ns, &TxFrame::whole(&frame));
        }
        self.ports[node].flush(now_ns);
    }

    /// Returns the number of frames.
    pub(crate) fn poll(&mut self, now_ns: u64) -> usize {
        let mut moved = 0;
        for from in 0..self.ports.len() {
            let Self { ports, frames, guesser, movers } = self;
            let mut count = 0;
            ports[from].receive(now_ns, BURST, &mut |frame| {
                if frames.len() == count {
                    frames.push(Vec::new());
                }
                frames[count].clear();
                frames[count].extend_from_slice(frame.head);
                count += 1;
            });
            for frame in &mut frames[..count] {
                if let Some(guesser) = guesser {
                    guesser.see(frame);
                }
                movers.leave(from, frame);
                send(ports, movers, from, now_ns, frame);
            }
            moved += count;
        }
        while let Some(mut frame) = self.guesser.as_mut().and_then(|guesser| guesser.poll(now_ns)) {
            send(&mut self.ports, &mut self.movers, usize::MAX, now_ns, &mut frame);
            moved += 1;
        }
        self.ports.iter_mut().for_each(|port| port.flush(now_ns));
        moved
    }

    pub(crate) fn next_arrival_ns(&self) -> Option<u64> {
        let forged = self.guesser.as_ref().and_then(Guesser::next_ns);
        self.ports.iter().filter_map(Device::next_arrival_ns).chain(forged).min()
    }
}

fn send(
    ports: &mut [MemoryDevice],
    movers: &mut Movers,
    from: usize,
    now_ns: u64,
    bytes: &mut [u8],
) {
    let Some(first) = bytes.first() else { return };
    let is_group = first & 1 != 0;
    let only = if is_group { None } else { movers.arrive(bytes) };
    let frame = TxFrame::whole(bytes);
    for (index, port) in ports.iter_mut().enumerate() {
        if index != from && (is_group || only == Some(index)) {
            // The tail of a full queue drops, as in any switch.
            let _dropped = port.transmit(now_ns, &frame);
        }
    }
}
