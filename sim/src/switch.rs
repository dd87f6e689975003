//! An Ethernet switch between links in memory.

use crate::guess::Guesser;
use urnic_netdev::memory::MemoryDevice;
use urnic_netdev::{Device, TxFrame};

/// Frames taken from one port per poll.
const BURST: usize = 64;
/// Length of an Ethernet address.
const ADDRESS_LEN: usize = 6;

/// Forwards each frame to the node of its destination address, or to all nodes.
///
/// A node's Ethernet address ends in its number, counted from 1, so the switch learns nothing.
#[derive(Debug)]
pub(crate) struct Switch {
    ports: Vec<MemoryDevice>,
    /// Frames between two ports; the buffers keep their allocations.
    frames: Vec<Vec<u8>>,
    /// A node that sees all frames and forges others.
    pub(crate) guesser: Option<Guesser>,
}

impl Switch {
    pub(crate) const fn new(ports: Vec<MemoryDevice>, guesser: Option<Guesser>) -> Self {
        Self { ports, frames: Vec::new(), guesser }
    }

    /// Forwards arrived frames. Returns their number.
    pub(crate) fn poll(&mut self, now_ns: u64) -> usize {
        let mut moved = 0;
        for from in 0..self.ports.len() {
            let Self { ports, frames, guesser } = self;
            let mut count = 0;
            ports[from].receive(now_ns, BURST, &mut |frame| {
                if frames.len() == count {
                    frames.push(Vec::new());
                }
                frames[count].clear();
                frames[count].extend_from_slice(frame.head);
                count += 1;
            });
            for frame in &frames[..count] {
                if let Some(guesser) = guesser {
                    guesser.see(frame);
                }
                send(ports, from, now_ns, frame);
            }
            moved += count;
        }
        while let Some(frame) = self.guesser.as_mut().and_then(|guesser| guesser.poll(now_ns)) {
            send(&mut self.ports, usize::MAX, now_ns, &frame);
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

fn send(ports: &mut [MemoryDevice], from: usize, now_ns: u64, bytes: &[u8]) {
    let Some(destination) = bytes.get(..ADDRESS_LEN) else { return };
    let is_group = destination[0] & 1 != 0;
    let number = usize::from(destination[ADDRESS_LEN - 1]);
    let frame = TxFrame::whole(bytes);
    for (index, port) in ports.iter_mut().enumerate() {
        if index != from && (is_group || index + 1 == number) {
            // A full queue drops the newest frame, as in any switch.
            let _dropped = port.transmit(now_ns, &frame);
        }
    }
}
