//! AF_XDP sockets of the Linux kernel: the frames of one queue of an interface, past the kernel's
//! stack.
//!
//! Owns a socket with packet memory of its own. A redirect program on the interface, loaded here,
//! gives it every frame that arrives on its queue; the kernel sees none of them. The program is
//! held by a descriptor and goes with the process, however that ends. Frames of queues without a
//! socket pass to the kernel.
//!
//! A received frame is borrowed from packet memory; one to transmit is copied into it, the only
//! device for which that holds, because the kernel or the card sends from nowhere else. Zero-copy
//! mode means that the kernel copies neither. `examples/raw_packet.rs` measures; over veth, the
//! native mode was slower than the generic one in every run.
//!
//! What does not work, and what to do:
//! - Frames are as long as a chunk: an MTU of up to [`MTU_MAX`], no super-frames. Drivers have
//!   limits of their own (veth 3506 bytes).
//! - Nothing completes checksums. A sender in this machine that leaves them to its card (the kernel
//!   on the other end of a veth, a packet socket with super-frames) sends frames that never get
//!   one, and they are dropped as corrupt: `ethtool -K PEER tx off`.
//! - A card that takes VLAN tags out of frames loses them: `ethtool -K IFACE rxvlan off`.

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

/// How long a change of the interface may go unnoticed while its calls succeed, in nanoseconds.
pub const LINK_CHECK_INTERVAL_NS: u64 = 100_000_000;

/// A socket on a queue of an interface.
#[derive(Debug)]
pub struct XdpSocket {
    /// Takes frames from the interface before the queue goes.
    _redirect: Arc<Redirect>,
    queue: XdpQueue,
    /// Makes the interface receive what the stack above listens to.
    _membership: OwnedFd,
    control: Control,
    name: Name,
    interface_index: u32,
    reopen: Option<open::Reopen>,
    link: LinkState,
    mac: [u8; 6],
    /// Longest frame that fits into a chunk.
    frame_len_max: usize,
    mtu: usize,
    check_due_ns: u64,
    flushed_ns: u64,
    mode: XdpMode,
}

/// How frames get to the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpMode {
    /// Whether the program runs in the driver, rather than behind it.
    pub native: bool,
    /// Whether the card uses packet memory itself, rather than the kernel copying.
    pub zero_copy: bool,
    /// Why it is not what was asked for, each with what the kernel answered.
    pub fallbacks: Vec<String>,
}

impl XdpSocket {
    /// Tries what every interface takes: a socket, a map of sockets and a redirect program.
    ///
    /// # Errors
    /// As opening an interface would fail.
    pub fn check_rights() -> Result<(), OpenError> {
        open::check_rights()
    }

    /// Opens one queue of an interface; see [`XdpConfig`].
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open(config: &XdpConfig<'_>) -> Result<Self, OpenError> {
        let mut queues = open::open(config, 1)?;
        Ok(queues.pop().expect("one queue was asked for"))
    }

    /// Opens `queues` queues of an interface, from that of the configuration on, under one program.
    /// Which queue a flow arrives on is the card's choice (`ethtool -x`, `ethtool -n`).
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open_queues(config: &XdpConfig<'_>, queues: usize) -> Result<Vec<Self>, OpenError> {
        open::open(config, queues)
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

    /// How frames get here, and why not better.
    #[must_use]
    pub const fn mode(&self) -> &XdpMode {
        &self.mode
    }

    /// Ring entries of the kernel that named no chunk of its own; always 0 with a sane kernel.
    #[must_use]
    pub const fn bad_entries(&self) -> u64 {
        self.queue.bad_entries()
    }

    /// Asks the kernel what has become of the interface, when that is due.
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

    /// Brings state and MTU up to date.
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

    /// An interface of the name has appeared after the first one was deleted.
    fn open_again(&mut self) {
        self.link.set(self.name, LinkState::Gone);
        // One of several queues cannot: the program is attached once for all of them.
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
            // The next check will tell; frames stay in the ring until then.
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

    /// Nothing arrives by itself; but what a congested interface did not take has to be offered
    /// again, and no event tells when.
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

/// How long frames wait that a congested interface did not take, in nanoseconds.
const FLUSH_AGAIN_NS: u64 = 50_000;

/// The error for a failed `action` on the interface.
fn failed(name: Name, action: &str, error: io::Error) -> OpenError {
    OpenError::from_io(error, format!("{action} {name}"), rights::remedy(rights::XDP))
}

/// A device moves to the thread that polls it.
const _: fn() = || {
    fn moves<T: Send>() {}
    moves::<XdpSocket>();
};
