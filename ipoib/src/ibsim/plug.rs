//! The cable between a port and the switch: a packet in each datagram of a Unix socket.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use super::{IbsimError, address, port_name, switch_name};
use crate::wire::address::Guid;

/// Packets that wait for room in the switch's queue, at most; one more is lost.
const WAITING_MAX: usize = 256;
/// How soon room is looked for again.
const RETRY_NS: u64 = 100_000;
/// How soon a switch that was gone is looked for again.
const REPLUG_NS: u64 = 100_000_000;
/// Octets of a packet at most: 4096 of payload and its headers.
pub(super) const PACKET_LEN_MAX: usize = 4096 + 128;

#[derive(Debug)]
pub(super) struct Plug {
    socket: UnixDatagram,
    switch: Vec<u8>,
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    retry_ns: Option<u64>,
    /// Until when there is taken to be no switch.
    replug_ns: u64,
    buffer: Box<[u8; PACKET_LEN_MAX]>,
}

impl Plug {
    pub(super) fn new(simulator: &str, guid: Guid) -> Result<Self, IbsimError> {
        let io = |action| move |cause| IbsimError::Io { action, cause };
        let own = address(&port_name(simulator, guid)).map_err(io("naming a port"))?;
        let socket = UnixDatagram::bind_addr(&own)
            .map_err(io("plugging the port in (has another process this node?)"))?;
        socket.set_nonblocking(true).map_err(io("setting up a socket"))?;
        let switch = switch_name(simulator);
        // A switch that is not there yet is looked for when there is something to send.
        let _later = address(&switch).and_then(|switch| socket.connect_addr(&switch));
        Ok(Self {
            socket,
            switch,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            retry_ns: None,
            replug_ns: 0,
            buffer: Box::new([0; PACKET_LEN_MAX]),
        })
    }

    pub(super) fn send(&mut self, now_ns: u64, packet: &[u8]) {
        self.push_waiting(now_ns);
        if self.waiting.is_empty() && self.try_send(now_ns, packet) {
            return;
        }
        if self.waiting.len() < WAITING_MAX {
            let mut octets = self.spare.pop().unwrap_or_default();
            octets.clear();
            octets.extend_from_slice(packet);
            self.waiting.push_back(octets);
        }
    }

    /// Whether the packet is gone, if only to be lost.
    fn try_send(&mut self, now_ns: u64, packet: &[u8]) -> bool {
        if now_ns < self.replug_ns {
            return true;
        }
        match self.socket.send(packet) {
            Ok(_) => self.retry_ns = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.retry_ns = Some(now_ns.saturating_add(RETRY_NS));
                return false;
            }
            // There is no switch, or another one.
            Err(_) => {
                let switch = address(&self.switch);
                let found = switch.and_then(|switch| self.socket.connect_addr(&switch));
                if found.is_err() {
                    self.retry_ns = None;
                    self.replug_ns = now_ns.saturating_add(REPLUG_NS);
                    self.waiting.clear();
                }
            }
        }
        true
    }

    pub(super) fn push_waiting(&mut self, now_ns: u64) {
        while let Some(packet) = self.waiting.pop_front() {
            if !self.try_send(now_ns, &packet) {
                self.waiting.push_front(packet);
                return;
            }
            self.spare.push(packet);
        }
    }

    pub(super) fn receive(&mut self, burst: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let mut received = 0;
        while received < burst
            && let Ok(len) = self.socket.recv(&mut self.buffer[..])
        {
            sink(self.buffer.get(..len).unwrap_or_default());
            received += 1;
        }
        received
    }

    /// Packets that can be taken.
    pub(super) fn room(&self) -> usize {
        WAITING_MAX - self.waiting.len()
    }

    pub(super) fn due_ns(&self) -> Option<u64> {
        self.retry_ns.filter(|_| !self.waiting.is_empty())
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_was_not_there_is_looked_for_from_time_to_time() {
        let simulator = format!("urnic-plug-test-{}", std::process::id());
        let mut plug = Plug::new(&simulator, Guid(1)).unwrap();
        plug.send(0, b"lost");
        let switch = UnixDatagram::bind_addr(&address(&switch_name(&simulator)).unwrap()).unwrap();
        switch.set_nonblocking(true).unwrap();
        let mut octets = [0; 16];
        for now_ns in [1, 2, REPLUG_NS - 1] {
            plug.send(now_ns, b"early");
            assert!(switch.recv(&mut octets).is_err());
        }
        // The one that finds it is lost, as when another switch takes its place.
        plug.send(REPLUG_NS, b"finds");
        plug.send(REPLUG_NS, b"arrives");
        let len = switch.recv(&mut octets).unwrap();
        assert_eq!(&octets[..len], b"arrives");
    }
}
