//! AF_XDP sockets of the Linux kernel: the frames of one queue of an interface, bypassing the
//! kernel's stack. A redirect program on the interface passes every frame of the queue to the
//! socket. The program is attached by a descriptor, so it is removed when the process ends, for any
//! reason. Frames of queues without a socket pass to the kernel.
//!
//! A received frame is borrowed from packet memory; a frame to transmit is copied into it, since
//! the kernel or the card sends from no other. Zero-copy mode means that the kernel copies neither.
//! `examples/raw_packet.rs` measures; over veth, native mode was slower than generic mode in every
//! run.
//!
//! Limitations and remedies:
//! - A frame must fit into a chunk: an MTU of up to [`MTU_MAX`], no super-frames. Drivers have
//!   limits of their own (veth 3506 bytes).
//! - Nothing completes checksums. Frames of a sender in this machine that leaves them to its card
//!   (the kernel on the other end of a veth, a packet socket with super-frames) are dropped as
//!   corrupt. Remedy: `ethtool -K PEER tx off`.
//! - The tags that a card strips from frames are lost. Remedy: `ethtool -K IFACE rxvlan off`.

mod open;
mod redirect;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use open::{MTU_MAX, XdpConfig};

use crate::interface::{Control, Name};
use crate::link_state::LinkState;
use crate::rights;
use crate::sys::bpf::AttachMode;
use crate::sys::xdp_queue::XdpQueue;
use crate::{
    Capabilities, Device, Medium, OpenError, RxChecksum, RxFrame, TransmitError, TxChecksum,
    TxFrame,
};
use redirect::Redirect;

/// Longest time for which a change of the interface goes unnoticed while calls succeed.
pub const LINK_CHECK_INTERVAL_NS: u64 = 100_000_000;

/// Socket on a queue of an interface.
#[derive(Debug)]
pub struct XdpSocket {
    /// Dropped before the queue, so that frames are not redirected to a closed socket.
    _redirect: Arc<Redirect>,
    queue: XdpQueue,
    /// Makes the interface receive the groups of the stack above, or all frames.
    _membership: OwnedFd,
    control: Control,
    name: Name,
    interface_index: u32,
    reopen: Option<open::Reopen>,
    link: LinkState,
    mac: [u8; 6],
    frame_len_max: usize,
    mtu: usize,
    check_due_ns: u64,
    flushed_ns: u64,
    mode: XdpMode,
}

/// Path of frames to the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpMode {
    /// True if the program runs in the driver, false if behind it.
    pub native: bool,
    /// True if the card uses packet memory directly, false if the kernel copies.
    pub zero_copy: bool,
    /// Reasons why the requested mode was not possible, each with the kernel's answer.
    pub fallbacks: Vec<String>,
}

impl XdpSocket {
    /// Checks the rights by creating a socket, a socket map and a redirect program.
    pub fn check_rights() -> Result<(), OpenError> {
        open::check_rights()
    }

    /// Opens one queue of an interface; see [`XdpConfig`]. An [`OpenError`] names a remedy.
    pub fn open(config: &XdpConfig<'_>) -> Result<Self, OpenError> {
        let mut queues = open::open(config, 1)?;
        Ok(queues.pop().expect("one queue was asked for"))
    }

    /// Opens `queues` queues of an interface, from the configured one on, under one program. The
    /// card chooses the queue of a flow (`ethtool -x`, `ethtool -n`). An [`OpenError`] names a
    /// remedy.
    pub fn open_queues(config: &XdpConfig<'_>, queues: usize) -> Result<Vec<Self>, OpenError> {
        open::open(config, queues)
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

    /// Returns the path of frames to the socket, and the reasons for fallbacks.
    #[must_use]
    pub const fn mode(&self) -> &XdpMode {
        &self.mode
    }

    /// Returns the number of ring entries that named no chunk of the kernel's: 0 with a correct
    /// kernel.
    #[must_use]
    pub const fn bad_entries(&self) -> u64 {
        self.queue.bad_entries()
    }

    fn check_link(&mut self, now_ns: u64) {
        if now_ns < self.check_due_ns {
            return;
        }
        self.check_due_ns = now_ns.saturating_add(LINK_CHECK_INTERVAL_NS);
        match self.control.index(self.name) {
            Ok(index) if self.link != LinkState::Gone && index == self.interface_index => {
                self.ask()
            }
            Ok(_) => self.open_again(),
            Err(_) => self.link.set(self.name, LinkState::Gone),
        }
    }

    fn ask(&mut self) {
        match (self.control.flags(self.name), self.control.mtu(self.name)) {
            (Ok(flags), Ok(mtu)) => {
                let link_header_len = crate::ethernet::HEADER_LEN + crate::ethernet::TAG_LEN;
                self.mtu = mtu.min(self.frame_len_max - link_header_len);
                let to = if flags.up() { LinkState::Up } else { LinkState::Down };
                self.link.set(self.name, to);
            }
            _ => self.link.set(self.name, LinkState::Gone),
        }
    }

    /// Reopens on a new interface of the same name, after the first one was deleted.
    fn open_again(&mut self) {
        self.link.set(self.name, LinkState::Gone);
        // Not possible for one of several queues: the program is attached once for all of them.
        if let Some(reopen) = &self.reopen
            && let Ok(again) = reopen.open()
        {
            let check_due_ns = self.check_due_ns;
            *self = again;
            self.check_due_ns = check_due_ns;
        }
    }

    fn learn_from(&mut self, error: &io::Error) {
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => self.link.set(self.name, LinkState::Down),
            Some(libc::ENXIO | libc::ENODEV | libc::EBADF) => {
                self.link.set(self.name, LinkState::Gone)
            }
            // The next check reports it; frames stay in the ring until then.
            _ => {}
        }
    }
}

impl Device for XdpSocket {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            medium: Medium::Ethernet,
            mtu: self.mtu,
            segmentation_len_max: None,
            tx_checksum: false,
            fragments_max: usize::MAX,
            gather_len_min: 0,
            tx_digest: false,
        }
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.check_link(now_ns);
        if self.link == LinkState::Gone {
            return 0;
        }
        self.queue.receive(burst, &mut |bytes| {
            sink(RxFrame::whole(bytes, RxChecksum::Unverified, None));
        })
    }

    fn transmit(&mut self, _now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        if self.link != LinkState::Up {
            return Err(TransmitError::LinkDown);
        }
        self.capabilities().check(frame)?;
        let len = frame.len();
        if len > self.frame_len_max {
            return Err(TransmitError::TooLong);
        }
        if frame.checksum != TxChecksum::Complete {
            return Err(TransmitError::Refused);
        }
        let taken = self.queue.transmit(len, |chunk| {
            frame.gather(chunk);
        });
        if taken { Ok(()) } else { Err(TransmitError::Full) }
    }

    fn transmit_room(&self) -> usize {
        self.queue.room_at_least()
    }

    fn flush(&mut self, now_ns: u64) {
        self.flushed_ns = now_ns;
        if self.link != LinkState::Gone
            && let Err(error) = self.queue.flush()
        {
            self.learn_from(&error);
        }
    }

    /// Frames that a congested interface did not take must be flushed again; no event reports when.
    fn next_arrival_ns(&self) -> Option<u64> {
        let waits = self.link == LinkState::Up && self.queue.has_unsent();
        waits.then(|| self.flushed_ns.saturating_add(FLUSH_AGAIN_NS))
    }

    fn link_up(&self) -> bool {
        self.link == LinkState::Up
    }

    fn check_interval_ns(&self) -> Option<u64> {
        Some(LINK_CHECK_INTERVAL_NS)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        (self.link != LinkState::Gone).then(|| self.queue.as_fd())
    }
}

/// Interval after which frames that a congested interface did not take are flushed again.
const FLUSH_AGAIN_NS: u64 = 50_000;

fn failed(name: Name, action: &str, error: io::Error) -> OpenError {
    OpenError::from_io(error, format!("{action} {name}"), rights::remedy(rights::XDP))
}

/// A device moves to the thread that polls it.
const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<XdpSocket>();
};
