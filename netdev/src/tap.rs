//! TAP interfaces of the Linux kernel (Ethernet frames by `read` and `write`), and TUN interfaces
//! (IP datagrams). A frame is sent by one `writev` from its fragments, and received by one `read`.
//! With the `virtio_net_hdr` ([`TapConfig::vnet_header`]) it may be a super-frame of up to 64 KiB,
//! and its checksums are not completed unless it leaves this machine. The interface may be taken
//! down, renamed, deleted and created again at any time. The device notices by failing calls, and
//! by a query every [`LINK_CHECK_INTERVAL_NS`]. After a deletion it attaches to the next interface
//! of the same name.

mod open;

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};

pub use open::{QUEUE_FRAMES, TapConfig};

use crate::interface::{Control, Name};
use crate::link_state::LinkState;
use crate::sys::gather::{Gather, RUNS_MAX};
use crate::sys::tap;
use crate::{
    Capabilities, Device, Medium, OpenError, RxChecksum, RxFrame, TransmitError, TxFrame, vnet,
};

/// Longest time for which a change of the interface goes unnoticed while calls succeed.
pub const LINK_CHECK_INTERVAL_NS: u64 = 100_000_000;

/// One queue of a TAP interface.
#[derive(Debug)]
pub struct Tap {
    file: File,
    control: Control,
    name: Name,
    /// Flags to attach with, if the interface is created again.
    attach_flags: u16,
    link: LinkState,
    mtu: usize,
    check_due_ns: u64,
    gather: Gather,
    buffer: Box<[u8]>,
}

impl Tap {
    /// Checks the rights to create an interface: access to the driver's node, and the right to set
    /// up interfaces of this network namespace. An existing interface may be open to other users.
    pub fn check_rights() -> Result<(), OpenError> {
        open::check_rights()
    }

    /// Opens an interface's one queue, or creates it; see [`TapConfig`]. An [`OpenError`] names a
    /// remedy.
    pub fn open(config: &TapConfig) -> Result<Self, OpenError> {
        let mut queues = open::open(config, 1)?;
        Ok(queues.pop().expect("one queue was asked for"))
    }

    /// Opens `queues` queues of an interface created for several, or creates one. The kernel
    /// delivers each received flow to the queue that last sent a frame of it. An [`OpenError`]
    /// names a remedy.
    pub fn open_queues(config: &TapConfig, queues: usize) -> Result<Vec<Self>, OpenError> {
        open::open(config, queues)
    }

    /// Returns the interface's name; it may have been renamed since it was opened.
    #[must_use]
    pub const fn name(&self) -> Name {
        self.name
    }

    /// Sets the carrier of the interface: without one its state is down, and packets sent into it
    /// are lost. Fails if the interface is deleted or not set up, and with kernels before 4.20.
    pub fn set_carrier(&self, on: bool) -> io::Result<()> {
        tap::set_carrier(self.file.as_fd(), on)
    }

    /// Sets the largest IP datagram, in bytes: `EPERM` without `CAP_NET_ADMIN`, `EINVAL` if the
    /// interface cannot carry that.
    pub fn set_mtu(&mut self, mtu: usize) -> io::Result<()> {
        self.control.set_mtu(self.name, mtu)?;
        self.mtu = mtu;
        Ok(())
    }

    const fn medium(&self) -> Medium {
        if self.attach_flags & tap::TUN != 0 { Medium::Ip } else { Medium::Ethernet }
    }

    const fn has_vnet_header(&self) -> bool {
        self.attach_flags & tap::VNET_HEADER != 0
    }

    const fn vnet_header_len(&self) -> usize {
        if self.has_vnet_header() { vnet::HEADER_LEN } else { 0 }
    }

    fn check_link(&mut self, now_ns: u64) {
        if now_ns < self.check_due_ns {
            return;
        }
        self.check_due_ns = now_ns.saturating_add(LINK_CHECK_INTERVAL_NS);
        if self.link == LinkState::Gone {
            self.attach_again();
        } else {
            self.ask();
        }
    }

    fn ask(&mut self) {
        let to = match tap::attached(self.file.as_fd()) {
            Err(_) => LinkState::Gone,
            Ok((name, _)) => {
                self.name = name;
                match (self.control.flags(name), self.control.mtu(name)) {
                    (Ok(flags), Ok(mtu)) => {
                        self.mtu = mtu;
                        if flags.up() { LinkState::Up } else { LinkState::Down }
                    }
                    // In another namespace, where the name cannot be looked up: failing calls
                    // report a link that is down.
                    _ => LinkState::Up,
                }
            }
        };
        self.link.set(self.name, to);
    }

    /// Attaches to another interface of the same name, if there is one, after a deletion.
    fn attach_again(&mut self) {
        // Never creates one: it was deleted on purpose.
        if self.control.index(self.name).is_err() {
            return;
        }
        let fd = self.file.as_fd();
        let attached =
            tap::attach(fd, self.name, self.attach_flags).and_then(|()| self.set_up_header());
        if attached.is_ok() {
            self.ask();
        }
    }

    fn set_up_header(&self) -> io::Result<()> {
        let fd = self.file.as_fd();
        if !self.has_vnet_header() {
            // Without the header a partial checksum looks like a wrong one, which an earlier owner
            // may have enabled.
            return tap::set_offload(fd, false);
        }
        let (_, flags) = tap::attached(fd)?;
        if flags & tap::VNET_HEADER == 0 {
            return Err(io::Error::other("other queues are used without virtio_net_hdr"));
        }
        tap::set_vnet_header_len(fd, vnet::HEADER_LEN)?;
        tap::set_offload(fd, true)
    }

    /// The next check is not made earlier, to limit the cost of a flapping link.
    fn learn_from(&mut self, error: &io::Error) -> TransmitError {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => TransmitError::Full,
            Some(libc::EMSGSIZE) => TransmitError::TooLong,
            Some(libc::EIO | libc::ENETDOWN) => {
                self.link.set(self.name, LinkState::Down);
                TransmitError::LinkDown
            }
            Some(libc::EBADFD | libc::EBADF | libc::ENODEV | libc::ENXIO) => {
                self.link.set(self.name, LinkState::Gone);
                TransmitError::LinkDown
            }
            // EINVAL for a frame that the kernel cannot parse, EFAULT for memory whose file was
            // shortened.
            _ => TransmitError::Refused,
        }
    }
}

impl Device for Tap {
    fn capabilities(&self) -> Capabilities {
        let super_frames = self.has_vnet_header();
        Capabilities {
            medium: self.medium(),
            mtu: self.mtu,
            segmentation_len_max: NonZeroUsize::new(SEGMENTATION_LEN_MAX).filter(|_| super_frames),
            tx_checksum: super_frames,
            fragments_max: FRAGMENTS_MAX,
            gather_len_min: GATHER_LEN_MIN,
            tx_digest: false,
        }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.check_link(now_ns);
        if self.link == LinkState::Gone {
            return 0;
        }
        let mut count = 0;
        while count < burst {
            let len = match (&self.file).read(&mut self.buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.learn_from(&error);
                    break;
                }
            };
            count += 1;
            let frame = &mut self.buffer[..len];
            if self.attach_flags & tap::VNET_HEADER == 0 {
                let checksum = RxChecksum::Unverified;
                sink(RxFrame::whole(frame, checksum, None));
            } else if let Some((header, bytes)) = frame.split_first_chunk_mut() {
                sink(vnet::decode(*header, bytes));
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
        let header = &header[..self.vnet_header_len()];
        match self.gather.write(self.file.as_fd(), [header, frame.head], frame.payload) {
            // The driver takes whole frames.
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

    /// `None` while the interface is deleted: the descriptor is always readable then, with an
    /// error.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        (self.link != LinkState::Gone).then(|| self.file.as_fd())
    }
}

/// Payload of a super-frame that fits with the longest headers.
const SEGMENTATION_LEN_MAX: usize = vnet::SUPER_FRAME_LEN_MAX - vnet::HEADERS_LEN_MAX;

/// Fragments besides the header and the head of a frame.
const FRAGMENTS_MAX: usize = RUNS_MAX - 2;

/// Each fragment costs the kernel about 36 ns, besides the copy: it is faster to copy fragments of
/// 1448 bytes into the head (by 15 % with super-frames, 30 % with plain frames), and to gather 8940
/// bytes.
const GATHER_LEN_MIN: usize = 4096;

/// Longest frame that the driver delivers, with its header: 64 KiB and the tagged link header.
const BUFFER_LEN: usize = vnet::HEADER_LEN + 65_536 + 22;
