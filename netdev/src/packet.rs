//! Packet sockets of the Linux kernel (`AF_PACKET`): the frames of an interface that the kernel
//! continues to use. A frame is sent by one `writev` from its fragments, with a `virtio_net_hdr` in
//! front: the kernel or the network card completes super-frames and partial checksums. Frames
//! arrive through a `TPACKET_V2` ring. `TPACKET_V3` hands over blocks of frames, when a block is
//! full or a timer of at least a millisecond expires: a ping-pong would wait for it each time. The
//! slots hold frames of the MTU. The device reads a longer frame (merged by the kernel, or a
//! super-frame of this machine) from the socket's queue: with slots of 64 KiB the ring would take a
//! hundred MiB and more. There is no transmit ring: this process would have to copy payload into
//! it, and a super-frame does not fit into a slot. In a trial with plain frames of 1514 bytes over
//! veth on a busy machine a frame took 1.3 µs of processor time with such a ring, and 1.9 µs with
//! `writev`. The interface may be taken down, deleted and created again at any time. The device
//! notices by failing calls, and by a query every [`LINK_CHECK_INTERVAL_NS`].

mod filter;
pub(crate) mod open;
pub(crate) mod vlan;

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};

pub use filter::ADDRESSES_MAX;
pub use open::PacketConfig;

use crate::interface::{Control, Name};
use crate::link_state::LinkState;
use crate::sys::gather::{Gather, RUNS_MAX};
use crate::sys::packet_ring::{PacketRing, SlotHeader};
use crate::sys::packet_socket::{self, Membership};
use crate::{Capabilities, Device, Medium, OpenError, RxFrame, TransmitError, TxFrame, vnet};

/// Longest time for which a change of the interface goes unnoticed while calls succeed.
pub const LINK_CHECK_INTERVAL_NS: u64 = 100_000_000;

/// Packet socket on an interface.
#[derive(Debug)]
pub struct PacketSocket {
    /// Dropped before the socket, which owns the ring.
    ring: PacketRing,
    socket: File,
    control: Control,
    name: Name,
    /// Index of the interface that the socket is bound to: a new one of the same name has another.
    interface_index: u32,
    membership: Membership,
    super_frames: bool,
    link: LinkState,
    mac: [u8; 6],
    mtu: usize,
    check_due_ns: u64,
    gather: Gather,
    /// Buffer for a frame that is longer than a slot, with its header.
    buffer: Box<[u8]>,
    frames_cut: u64,
}

impl PacketSocket {
    /// Checks the rights by creating a packet socket, with the errors of opening an interface.
    pub fn check_rights() -> Result<(), OpenError> {
        open::check_rights()
    }

    /// Opens an interface; see [`PacketConfig`]. An [`OpenError`] names a remedy.
    pub fn open(config: &PacketConfig<'_>) -> Result<Self, OpenError> {
        open::open(config)
    }

    /// Opens an interface `queues` times. The kernel distributes received frames by a hash of
    /// addresses and ports that is equal for both directions: a flow stays in one queue, which is
    /// not known in advance. Frames without ports are distributed, too: a stack on one of several
    /// queues does not see each ARP reply. An [`OpenError`] names a remedy.
    pub fn open_queues(config: &PacketConfig<'_>, queues: usize) -> Result<Vec<Self>, OpenError> {
        open::open_queues(config, queues)
    }

    /// Returns the interface's name.
    #[must_use]
    pub const fn name(&self) -> Name {
        self.name
    }

    /// Returns the Ethernet address that the stack above must use.
    #[must_use]
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Returns the number of frames lost because they were longer than a slot and the socket's
    /// queue (without `CAP_NET_ADMIN` at most `net.core.rmem_max`) was full, or because the
    /// kernel's description of them was invalid.
    #[must_use]
    pub const fn frames_cut(&self) -> u64 {
        self.frames_cut
    }

    fn discard_received(&mut self) {
        let Self { ring, socket, buffer, .. } = self;
        // A busy interface may fill the ring as fast as it is emptied; one round is enough.
        for _ in 0..ring.slots() {
            let taken = ring.take(|header, slot| frame_in(header, slot, socket, buffer).is_some());
            if taken.is_none() {
                break;
            }
        }
    }

    fn check_link(&mut self, now_ns: u64) {
        if now_ns < self.check_due_ns {
            return;
        }
        self.check_due_ns = now_ns.saturating_add(LINK_CHECK_INTERVAL_NS);
        // An interface that goes down leaves an error on the socket, which stays readable until it
        // is taken.
        let _known_by_flags = packet_socket::take_error(self.socket.as_fd());
        let Ok(index) = self.control.index(self.name) else {
            self.link.set(self.name, LinkState::Gone);
            return;
        };
        if self.link == LinkState::Gone || index != self.interface_index {
            self.bind_again(index);
            return;
        }
        self.ask();
    }

    fn ask(&mut self) {
        match (self.control.flags(self.name), self.control.mtu(self.name)) {
            (Ok(flags), Ok(mtu)) => {
                self.mtu = mtu;
                let to = if flags.up() { LinkState::Up } else { LinkState::Down };
                self.link.set(self.name, to);
            }
            _ => self.link.set(self.name, LinkState::Gone),
        }
    }

    /// Binds to a new interface of the same name, after the first one was deleted.
    fn bind_again(&mut self, interface_index: u32) {
        let fd = self.socket.as_fd();
        // The kernel refuses this in a fanout group: such a socket is down until it is reopened.
        let bound = packet_socket::bind(fd, interface_index)
            .and_then(|()| packet_socket::join(fd, interface_index, self.membership));
        if bound.is_ok() {
            self.interface_index = interface_index;
            self.ask();
        } else {
            self.link.set(self.name, LinkState::Gone);
        }
    }

    /// Handles the error of a failed call. The next check is not made earlier: a link may flap.
    fn learn_from(&mut self, error: &io::Error) -> TransmitError {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => TransmitError::Full,
            Some(libc::EMSGSIZE) => TransmitError::TooLong,
            Some(libc::ENETDOWN) => {
                self.link.set(self.name, LinkState::Down);
                TransmitError::LinkDown
            }
            Some(libc::ENXIO | libc::ENODEV) => {
                self.link.set(self.name, LinkState::Gone);
                TransmitError::LinkDown
            }
            // EINVAL for a frame that the kernel cannot parse, EFAULT for memory whose file was
            // shortened.
            _ => TransmitError::Refused,
        }
    }
}

impl Device for PacketSocket {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            medium: Medium::Ethernet,
            mtu: self.mtu,
            segmentation_len_max: NonZeroUsize::new(SEGMENTATION_LEN_MAX)
                .filter(|_| self.super_frames),
            tx_checksum: self.super_frames,
            fragments_max: RUNS_MAX - 2,
            gather_len_min: GATHER_LEN_MIN,
            tx_digest: false,
        }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.check_link(now_ns);
        let Self { ring, socket, buffer, frames_cut, .. } = self;
        let mut count = 0;
        while count < burst {
            let taken = ring.take(|header, slot| match frame_in(header, slot, socket, buffer) {
                Some(frame) => {
                    sink(frame);
                    true
                }
                None => false,
            });
            match taken {
                None => break,
                Some(true) => count += 1,
                Some(false) => *frames_cut += 1,
            }
        }
        count
    }

    fn transmit(&mut self, _now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.link != LinkState::Up {
            return Err(TransmitError::LinkDown);
        }
        self.capabilities().check(frame)?;
        let header = vnet::encode(frame)?;
        match self.gather.write(self.socket.as_fd(), [&header, frame.head], frame.payload) {
            // The socket takes whole frames.
            Ok(_) => Ok(()),
            Err(error) => Err(self.learn_from(&error)),
        }
    }

    fn link_up(&self) -> bool {
        self.link == LinkState::Up
    }

    fn check_interval_ns(&self) -> Option<u64> {
        Some(LINK_CHECK_INTERVAL_NS)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// Returns the frame of a slot: in the slot, or read from the socket's queue. `None` if the kernel
/// cut it, or its header is invalid.
fn frame_in<'a>(
    header: SlotHeader,
    slot: &'a mut [u8],
    queue: &File,
    buffer: &'a mut [u8],
) -> Option<RxFrame<'a>> {
    let captured_len = usize::try_from(header.captured_len).ok()?;
    let (memory, at, len) = if header.status & libc::TP_STATUS_COPY != 0 {
        let read_len = fetch(queue, buffer)?;
        (buffer, vnet::HEADER_LEN, read_len.checked_sub(vnet::HEADER_LEN)?)
    } else {
        (slot, usize::from(header.mac_at), captured_len)
    };
    if u32::try_from(len) != Ok(header.len) {
        return None;
    }
    let front = memory.get_mut(at.checked_sub(vnet::HEADER_LEN)?..at.checked_add(len)?)?;
    let vnet_header = *front.first_chunk()?;
    if header.status & libc::TP_STATUS_VLAN_VALID == 0 {
        return Some(vnet::decode(vnet_header, &mut front[vnet::HEADER_LEN..]));
    }
    let tpid = if header.status & libc::TP_STATUS_VLAN_TPID_VALID == 0 {
        vlan::TPID
    } else {
        header.vlan_tpid
    };
    let frame = vlan::put_back(front, vnet::HEADER_LEN, tpid, header.vlan_tci)?;
    Some(vnet::decode(vnet::moved_by(vnet_header, crate::ethernet::TAG_LEN), frame))
}

pub(crate) fn fetch(mut queue: &File, buffer: &mut [u8]) -> Option<usize> {
    // After the interface went down, the first read returns that error. The frame is still queued:
    // if it were not read now, it would be taken for that of the next slot.
    for _ in 0..FETCH_TRIES {
        match queue.read(buffer) {
            Ok(len) => return Some(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => {}
        }
    }
    None
}

/// Errors in a row after which a frame is given up: one is pending, and another may arrive
/// meanwhile.
const FETCH_TRIES: usize = 3;

/// Payload of a super-frame that fits with the longest headers.
const SEGMENTATION_LEN_MAX: usize = vnet::SUPER_FRAME_LEN_MAX - vnet::HEADERS_LEN_MAX;

/// Same as for a TAP interface, whose frames the kernel gathers with the same code.
const GATHER_LEN_MIN: usize = 4096;

/// Longest frame that the kernel delivers, with its header: 64 KiB and the tagged link header.
pub(crate) const BUFFER_LEN: usize = vnet::HEADER_LEN + 65_536 + 22;

/// A device moves to the thread that polls it.
const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<PacketSocket>();
};

#[cfg(test)]
mod tests;
