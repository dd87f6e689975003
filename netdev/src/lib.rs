//! Frame devices.
//!
//! A [`Device`] moves whole frames in bursts and knows nothing of what is in them. Kernel devices,
//! the linked memory pair and middleware (impairment, recording) all implement it, so a stack
//! above runs unchanged on any of them.

pub mod capture;
mod checksum;
mod cursor;
mod digests;
mod ethernet;
pub mod frame;
pub mod impair;
mod link_state;
pub mod loopback;
pub mod memory;
pub mod monitor;
mod open;
pub mod packet;
pub mod packets;
mod peer;
pub mod published;
pub mod record;
mod rights;
mod segment;
pub mod shm;
mod sys;
pub mod tap;
pub mod vhost_user;
mod virtqueue;
mod vnet;
pub mod xdp;

/// Network interfaces of the kernel: what they are called and how they are set up.
pub mod interface {
    pub use crate::sys::address::addresses;
    pub use crate::sys::interface::{Control, Flags, Name, NameError, names};
}

/// Check of the user at the other end of a Unix socket.
pub mod local_peer {
    pub use crate::peer::datagram::{Datagram, UserDatagram};
    pub use crate::peer::identity::{ForeignUser, check_peer, check_user};
    pub use crate::sys::credentials::{PeerProcess, peer_process};
}

/// Copies to and from memory that others may access meanwhile.
pub mod shared_memory {
    pub use crate::sys::copy::{copy_across, copy_in, copy_out};
    pub use crate::sys::stream_socket::send_fragments;
}

/// What the kernel's TCP says of a stream socket.
pub mod stream_socket {
    pub use crate::sys::stream_socket::{
        Delivery, delivery, set_syn_retries, syn_retries, undelivered,
    };
}

use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;

pub use frame::{
    Digest, Digester, Digests, Fragment, Medium, RxChecksum, RxFrame, TxChecksum, TxFrame,
};
pub use open::OpenError;
pub use sys::secure::has_more_rights_than_its_user;

/// The target of what devices tell `tracing`: what they were opened with, and changes of their link.
const TRACE: &str = "urnic::netdev";

/// What a device can do. Constant while the device exists, but for the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What frames begin with.
    pub medium: Medium,
    /// Largest IP datagram, in bytes (link-layer header not counted).
    pub mtu: usize,
    /// Largest super-frame payload handed to [`Device::transmit`] at once, in bytes; `None` when
    /// the device cannot cut super-frames.
    pub segmentation_len_max: Option<NonZeroUsize>,
    /// Whether the device completes a [`TxChecksum::Partial`].
    pub tx_checksum: bool,
    /// Most fragments in one frame's payload.
    pub fragments_max: usize,
    /// Bytes of a run of memory from which on the device gathers it sooner than it takes a copy of
    /// it, measured: the cost of each fragment. 0 where a fragment costs nothing, as when the device
    /// copies frames into memory of its own.
    pub gather_len_min: usize,
    /// Whether the device copies each frame at once when it takes it, and computes
    /// [digests](TxFrame::digests) on the way. Asked of it only when it completes checksums, too, for what
    /// those cover has to be there.
    pub tx_digest: bool,
}

impl Capabilities {
    /// Whether a device with these capabilities can carry the frame.
    ///
    /// # Errors
    /// [`TransmitError::TooLong`] when the frame, or a segment of the super-frame, is longer than
    /// the MTU allows (a VLAN tag in the head is not counted), when a super-frame's payload is
    /// longer than the device cuts, and when it has more fragments than the device gathers;
    /// [`TransmitError::Refused`] when it has digests for a device that computes none.
    #[inline]
    pub fn check(&self, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        let payload_len = frame.payload.iter().map(Fragment::len).sum();
        self.check_len(frame, payload_len)
    }

    /// The same for a frame whose payload is known to be so long.
    #[inline]
    fn check_len(&self, frame: &TxFrame<'_>, payload_len: usize) -> Result<(), TransmitError> {
        let link_header_len = match self.medium {
            Medium::Ip => 0,
            Medium::Ethernet => {
                ethernet::network_header(frame.head).map_or(ethernet::HEADER_LEN, |(at, _)| at)
            }
        };
        let frame_len_max = self.mtu.saturating_add(link_header_len);
        let (segment_len, segmentation_fits) = match frame.segment_size {
            None => (payload_len, true),
            Some(size) => {
                let len_max = self.segmentation_len_max.map_or(0, NonZeroUsize::get);
                (payload_len.min(usize::from(size.get())), payload_len <= len_max)
            }
        };
        if frame.digests.is_some() && !self.tx_digest {
            return Err(TransmitError::Refused);
        }
        let fits = frame.head.len().saturating_add(segment_len) <= frame_len_max;
        if fits && segmentation_fits && frame.payload.len() <= self.fragments_max {
            Ok(())
        } else {
            Err(TransmitError::TooLong)
        }
    }
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransmitError {
    /// No room now; room comes back by itself. The frame may be offered again or dropped.
    #[error("transmit queue full")]
    Full,
    /// The frame is larger than the device can carry.
    #[error("frame larger than the device carries")]
    TooLong,
    /// The device cannot make anything of the frame: it is no use to offer it again.
    #[error("frame refused by the device")]
    Refused,
    /// The link is down; frames are lost until it returns.
    #[error("link down")]
    LinkDown,
}

/// A source and sink of frames.
///
/// `now_ns` is the caller's monotonic clock in nanoseconds. Devices of virtual links act by it;
/// kernel devices ignore it. No method blocks, and none panics on an I/O error.
pub trait Device: fmt::Debug {
    /// What the device can do.
    fn capabilities(&self) -> Capabilities;

    /// Hands at most `burst` received frames to `sink`, in order, and returns how many.
    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize;

    /// Shows `look` the beginnings of at most `burst` frames, in order, that [`receive`](Self::receive) hands
    /// over next, as far as the device knows them: at least their headers. They stay where they are. With
    /// that the caller can ask for memory that it is going to need; a device that knows nothing shows none.
    fn look_ahead(&mut self, now_ns: u64, burst: usize, look: &mut dyn FnMut(&[u8])) {
        let _knows_nothing = (now_ns, burst, look);
    }

    /// Takes one frame. It may stay queued until [`flush`](Self::flush).
    ///
    /// # Errors
    /// When the frame was not taken; see [`TransmitError`].
    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError>;

    /// Frames that [`transmit`](Self::transmit) has room for now, at least; 0 only when it is full.
    fn transmit_room(&self) -> usize {
        usize::MAX
    }

    /// Pushes out what `transmit` queued.
    fn flush(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// When the next frame becomes receivable by the passing of time, on a virtual link.
    /// `None` when there is none, or when the device is not on a virtual clock.
    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    /// Whether the link is up.
    fn link_up(&self) -> bool {
        true
    }

    /// How often [`receive`](Self::receive) wants to be called though nothing arrives, in
    /// nanoseconds, because changes of the interface make no descriptor ready. `None` when there is
    /// nothing to notice.
    fn check_interval_ns(&self) -> Option<u64> {
        None
    }

    /// A descriptor that becomes readable when frames wait.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns counts of what the device refused from its peer.
    fn refusals(&self) -> Refusals {
        Refusals::default()
    }
}

/// Refusals of a device, of the process at its other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Processes of other users.
    pub peers: u64,
    /// Pieces of memory: more than a peer may have, or not as memory has to be.
    pub regions: u64,
    /// Frames, and chains of buffers, that cannot be.
    pub frames: u64,
    /// Connections with a peer that ended, for whatever reason.
    pub sessions_ended: u64,
}

impl Refusals {
    /// Returns the sum of those of two devices.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            peers: self.peers.saturating_add(other.peers),
            regions: self.regions.saturating_add(other.regions),
            frames: self.frames.saturating_add(other.frames),
            sessions_ended: self.sessions_ended.saturating_add(other.sessions_ended),
        }
    }
}

/// A device that is referred to is a device.
macro_rules! forward_device {
    ($($holder:ty),+) => {$(
        impl<D: Device + ?Sized> Device for $holder {
            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }

            fn receive(
                &mut self,
                now_ns: u64,
                burst: usize,
                sink: &mut dyn FnMut(RxFrame<'_>),
            ) -> usize {
                (**self).receive(now_ns, burst, sink)
            }

            fn look_ahead(&mut self, now_ns: u64, burst: usize, look: &mut dyn FnMut(&[u8])) {
                (**self).look_ahead(now_ns, burst, look);
            }

            fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
                (**self).transmit(now_ns, frame)
            }

            fn transmit_room(&self) -> usize {
                (**self).transmit_room()
            }

            fn flush(&mut self, now_ns: u64) {
                (**self).flush(now_ns);
            }

            fn next_arrival_ns(&self) -> Option<u64> {
                (**self).next_arrival_ns()
            }

            fn link_up(&self) -> bool {
                (**self).link_up()
            }

            fn check_interval_ns(&self) -> Option<u64> {
                (**self).check_interval_ns()
            }

            fn readiness(&self) -> Option<BorrowedFd<'_>> {
                (**self).readiness()
            }

            fn refusals(&self) -> Refusals {
                (**self).refusals()
            }
        }
    )+};
}

forward_device!(&mut D, Box<D>);
