//! Interface between a link and the fabric of its port: management datagrams and packets. The
//! client of ibsim and the fabric in memory both implement it.

use std::fmt;
use std::os::fd::BorrowedFd;

use crate::wire::address::{Gid, Guid, Lid, PKey};
use crate::wire::mad::MAD_LEN;

/// A port as the subnet manager has set it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// GUID, assigned by the manufacturer.
    pub guid: Guid,
    /// Prefix of its subnet.
    pub prefix: u64,
    /// LID in the subnet; 0 before one is assigned.
    pub lid: Lid,
    /// LID of the subnet manager's port, which is also the administrator's; 0 before there is one.
    pub sm_lid: Lid,
    /// True if the port carries packets.
    pub is_active: bool,
    /// Largest payload of the port's packets, in bytes.
    pub mtu_octets: usize,
    /// Keys of the partitions that the port is in.
    pub p_keys: Vec<PKey>,
}

impl PortInfo {
    /// Returns the port's GID.
    // spec: IPOIB-9.1-3
    #[must_use]
    pub fn gid(&self) -> Gid {
        Gid::new(self.prefix, self.guid)
    }
}

/// Management datagrams to and from the subnet administrator, and the port's settings.
pub trait Mads: fmt::Debug {
    /// Returns the port if it has changed since the last call; the first call returns it, too.
    fn port_change(&mut self, now_ns: u64) -> Option<PortInfo>;

    /// Sends a datagram, which may be lost, to queue pair 1 of a port.
    fn send_mad(&mut self, now_ns: u64, to: Lid, mad: &[u8; MAD_LEN]);

    /// Returns the next datagram to queue pair 1, and the port that sent it.
    fn receive_mad(&mut self, now_ns: u64) -> Option<(Lid, [u8; MAD_LEN])>;

    /// Waits for datagrams, for at most this time. Returns false if this fabric cannot wait.
    fn wait(&mut self, for_ns: u64) -> bool {
        let _ = for_ns;
        false
    }
}

/// Packets of the port.
pub trait Packets: fmt::Debug {
    /// Sends a packet, which may be lost: all bytes from the local header to the variant CRC.
    fn send_packet(&mut self, now_ns: u64, packet: &[u8]);

    /// Hands at most `burst` received packets to `sink`. Returns their number.
    fn receive_packets(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Returns the number of packets that there is room for now.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Returns the time of the next arrival, or of the next poll of the fabric.
    fn next_arrival_ns(&self) -> Option<u64>;

    /// Returns a descriptor that becomes readable when packets or management datagrams wait.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
