//! What a link needs of the fabric that its port is plugged into: management datagrams on one side,
//! packets on the other. The client of ibsim and the fabric in memory both offer it.

use std::fmt;
use std::os::fd::BorrowedFd;

use crate::wire::address::{Gid, Guid, Lid, PKey};
use crate::wire::mad::MAD_LEN;

/// A port as the subnet manager has set it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// Its name from its maker.
    pub guid: Guid,
    /// The prefix of its subnet.
    pub prefix: u64,
    /// Its name in the subnet; 0 before it has one.
    pub lid: Lid,
    /// The port of the subnet manager, where the administrator is, too; 0 before there is one.
    pub sm_lid: Lid,
    /// Whether it carries packets.
    pub is_active: bool,
    /// Bytes of the largest payload of its packets.
    pub mtu_octets: usize,
    /// Its partitions.
    pub p_keys: Vec<PKey>,
}

impl PortInfo {
    /// Its global name.
    #[must_use]
    pub fn gid(&self) -> Gid {
        Gid::new(self.prefix, self.guid)
    }
}

/// Management datagrams to and from the subnet administrator, and what the manager has set.
pub trait Mads: fmt::Debug {
    /// The port, when it has changed since the last call; at the first call, too.
    fn port_change(&mut self, now_ns: u64) -> Option<PortInfo>;

    /// Sends a datagram to queue pair 1 of a port. It may be lost.
    fn send_mad(&mut self, now_ns: u64, to: Lid, mad: &[u8; MAD_LEN]);

    /// The next datagram that has come to queue pair 1, and the port it came from.
    fn receive_mad(&mut self, now_ns: u64) -> Option<(Lid, [u8; MAD_LEN])>;

    /// Waits for datagrams, at most so long; `false` when that makes none come.
    fn wait(&mut self, for_ns: u64) -> bool {
        let _ = for_ns;
        false
    }
}

/// Packets of the port.
pub trait Packets: fmt::Debug {
    /// Sends a packet, local header to variant CRC. It may be lost.
    fn send_packet(&mut self, now_ns: u64, packet: &[u8]);

    /// Hands at most `burst` packets that have come to `sink`; returns how many.
    fn receive_packets(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Packets that there is room for now.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// When something comes by the passing of time, or the fabric wants to be asked.
    fn next_arrival_ns(&self) -> Option<u64>;

    /// A descriptor that becomes readable when packets or management datagrams wait.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
