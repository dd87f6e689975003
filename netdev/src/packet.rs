//! Packet sockets of the Linux kernel (`AF_PACKET`): an interface's frames, beside the kernel.
//!
//! Owns one socket on an interface that the kernel goes on using. A frame goes out by one `writev`
//! from where its bytes are, with a `virtio_net_hdr` in front: super-frames and partial checksums
//! are the kernel's, or the card's, to finish. Frames come in through a ring that the kernel fills.
//!
//! The ring is `TPACKET_V2`, not 3: the latter hands over blocks of frames, when they are full or
//! a timer of a millisecond or more has run out, which is what a ping-pong would wait for each
//! time. Its slots hold frames of the MTU. A longer frame (the kernel merges them on receive, and
//! other stacks in this machine send uncut ones) is queued whole behind its slot and fetched by
//! `read` into one buffer: slots of 64 KiB would make the ring a hundred MiB and more.
//!
//! There is no transmit ring: payload would have to be copied into it by this program, while the
//! kernel copies from anywhere, and a super-frame does not fit into a slot. The price: a trial
//! program of its own, with plain frames of 1514 bytes over veth on a busy machine, spent 1.3 µs
//! of processor time on a frame by such a ring, and 1.9 by `writev`.
//!
//! The interface may be taken down, set up again, deleted and made anew at any time. The device
//! notices by the errors it meets, and by asking every [`LINK_CHECK_INTERVAL_NS`] of the callers'
//! clock.

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

/// How long a change of the interface may go unnoticed while its calls succeed, in nanoseconds.
pub const LINK_CHECK_INTERVAL_NS: u64 = 100_000_000;

/// A packet socket on an interface.
#[derive(Debug)]
pub struct PacketSocket {
    /// Dropped before the socket: the ring is the socket's.
    ring: PacketRing,
    socket: File,
    control: Control,
    name: Name,
    /// What the socket is bound to; another interface of the name has another.
    interface_index: u32,
    membership: Membership,
    super_frames: bool,
    link: LinkState,
    mac: [u8; 6],
    mtu: usize,
    check_due_ns: u64,
    gather: Gather,
    /// A frame that is longer than a slot, behind its header.
    buffer: Box<[u8]>,
    frames_cut: u64,
}

impl PacketSocket {
    /// Tries what every interface takes: a packet socket.
    ///
    /// # Errors
    /// As opening an interface would fail.
    pub fn check_rights() -> Result<(), OpenError> {
        open::check_rights()
    }

    /// Opens an interface; see [`PacketConfig`].
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open(config: &PacketConfig<'_>) -> Result<Self, OpenError> {
        open::open(config)
    }

    /// Opens an interface `queues` times. The kernel divides received frames among the queues by
    /// a hash of addresses and ports that is the same in both directions, so that a flow stays in
    /// one queue; which one cannot be known before. What has no ports is divided too: a stack on
    /// one of several queues does not see each ARP reply.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open_queues(config: &PacketConfig<'_>, queues: usize) -> Result<Vec<Self>, OpenError> {
        open::open_queues(config, queues)
    }

    /// The interface's name.
    #[must_use]
    pub const fn name(&self) -> Name {
        self.name
    }

    /// The Ethernet address that the stack above has to use.
    #[must_use]
    pub const fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Frames lost because they were longer than a slot and the socket's queue was full. Without
    /// `CAP_NET_ADMIN` that queue is as short as `net.core.rmem_max` says.
    #[must_use]
    pub const fn frames_cut(&self) -> u64 {
        self.frames_cut
    }

    /// Throws away what has been received so far.
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

    /// Asks the kernel what has become of the interface, when that is due.
    fn check_link(&mut self, now_ns: u64) {
        if now_ns < self.check_due_ns {
            return;
        }
        self.check_due_ns = now_ns.saturating_add(LINK_CHECK_INTERVAL_NS);
        // An interface that goes down leaves an error on the socket: as long as it is not taken,
        // the descriptor is ready all the time.
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

    /// Brings state and MTU up to date.
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

    /// An interface of the name has appeared after the first one was deleted.
    fn bind_again(&mut self, interface_index: u32) {
        let fd = self.socket.as_fd();
        // Refused in a fanout group: such a socket stays down until it is opened anew.
        let bound = packet_socket::bind(fd, interface_index)
            .and_then(|()| packet_socket::join(fd, interface_index, self.membership));
        if bound.is_ok() {
            self.interface_index = interface_index;
            self.ask();
        } else {
            self.link.set(self.name, LinkState::Gone);
        }
    }

    /// Learns from a failed call. The next check is due as usual: a link that flaps costs no more.
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
            // EINVAL for a frame the kernel cannot parse, EFAULT for memory whose file shrank.
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

/// The frame that a slot stands for: in the slot itself, or fetched from the socket's queue. `None`
/// when the kernel cut it, or what it says of it cannot be.
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

/// Takes the frame from the socket's queue that a slot stands for.
pub(crate) fn fetch(mut queue: &File, buffer: &mut [u8]) -> Option<usize> {
    // An error that waits on the socket, of an interface that went down, is told before any frame
    // and once: the frame is there still, and would pass for that of the next slot.
    for _ in 0..FETCH_TRIES {
        match queue.read(buffer) {
            Ok(len) => return Some(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => {}
        }
    }
    None
}

/// Errors in a row after which a frame is given up: one waits, and another may come meanwhile.
const FETCH_TRIES: usize = 3;

/// Super-frame payload that fits with the longest headers.
const SEGMENTATION_LEN_MAX: usize = vnet::SUPER_FRAME_LEN_MAX - vnet::HEADERS_LEN_MAX;

/// As on a TAP interface, whose frames the kernel gathers with the same code.
const GATHER_LEN_MIN: usize = 4096;

/// Longest frame that the kernel gives, with its header: 64 KiB and the link header, tagged.
pub(crate) const BUFFER_LEN: usize = vnet::HEADER_LEN + 65_536 + 22;

/// A device moves to the thread that polls it.
const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<PacketSocket>();
};

#[cfg(test)]
mod tests;
