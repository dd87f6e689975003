//! Frame devices. A [`Device`] moves whole frames in bursts and does not interpret them: kernel
//! interfaces, links between processes, links in memory, and middleware.

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

/// Network interfaces of the kernel: names and settings.
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

/// State and settings of the kernel's TCP for a stream socket.
pub mod stream_socket {
    pub use crate::sys::stream_socket::{
        Delivery, delivery, set_syn_retries, syn_retries, undelivered,
    };
}

use std::fmt;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;

pub use frame::{Digest, Digester, Digests, Medium, RxChecksum, RxFrame, TxChecksum, TxFrame};
pub use open::OpenError;
pub use sys::secure::has_more_rights_than_its_user;
pub use sys::shared_slice::SharedSlice;

const TRACE: &str = "urnic::netdev";

/// Capabilities of a device. Constant while the device exists, except for the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Layer at which frames begin.
    pub medium: Medium,
    /// Largest IP datagram, in bytes, without the link-layer header.
    pub mtu: usize,
    /// Largest super-frame payload of one [`Device::transmit`], in bytes. `None`: no segmentation.
    pub segmentation_len_max: Option<NonZeroUsize>,
    /// True if the device completes a [`TxChecksum::Partial`].
    pub tx_checksum: bool,
    /// Most fragments in one frame's payload.
    pub fragments_max: usize,
    /// Fragment length in bytes, as measured, from which the device gathers a fragment faster than
    /// the caller copies it into the head. 0 if fragments cost nothing.
    pub gather_len_min: usize,
    /// True if the device computes [digests](TxFrame::digests) while it copies. Used only with
    /// `tx_checksum`: the caller cannot compute a complete checksum before the digests are known.
    pub tx_digest: bool,
}

impl Capabilities {
    /// Checks that a device with these capabilities can carry the frame. Errors:
    /// [`TransmitError::TooLong`] if the frame, or a segment of it, is longer than the MTU allows
    /// (a VLAN tag in the head is not counted), or exceeds
    /// [`segmentation_len_max`](Self::segmentation_len_max) or
    /// [`fragments_max`](Self::fragments_max); [`TransmitError::Refused`] if the frame has digests
    /// and the device computes none.
    #[inline]
    pub fn check(&self, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        let payload_len = frame.payload.iter().map(SharedSlice::len).sum();
        self.check_len(frame, payload_len)
    }

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

/// Reasons why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransmitError {
    /// No room now; room returns without an action of the caller.
    #[error("transmit queue full")]
    Full,
    /// The frame is larger than the device can carry.
    #[error("frame larger than the device carries")]
    TooLong,
    /// The device cannot send this frame: offering it later does not help.
    #[error("frame refused by the device")]
    Refused,
    /// The link is down; frames are lost until it returns.
    #[error("link down")]
    LinkDown,
}

/// Source and sink of frames. `now_ns` is the caller's monotonic clock; kernel devices ignore it.
/// No method blocks, and none panics on an I/O error.
pub trait Device: fmt::Debug {
    /// Returns the capabilities of the device.
    fn capabilities(&self) -> Capabilities;

    /// Hands at most `burst` received frames to `sink`, in order. Returns the number of frames
    /// taken, which with some devices includes refused ones.
    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize;

    /// Takes one frame, which may stay queued until [`flush`](Self::flush).
    fn transmit(&mut self, now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError>;

    /// Returns the number of frames that [`transmit`](Self::transmit) certainly has room for; 0
    /// only if it is full.
    fn transmit_room(&self) -> usize {
        usize::MAX
    }

    /// Sends the frames that `transmit` queued.
    fn flush(&mut self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Returns the time of the caller's clock at which to poll and flush again although no
    /// descriptor becomes readable: a frame of a virtual link becomes receivable, or the interface
    /// may accept frames again.
    fn next_arrival_ns(&self) -> Option<u64> {
        None
    }

    /// Returns true if the link is up.
    fn link_up(&self) -> bool {
        true
    }

    /// Returns the interval, in nanoseconds, at which [`receive`](Self::receive) must be called
    /// even if nothing arrives, because some changes of the interface make no descriptor readable.
    fn check_interval_ns(&self) -> Option<u64> {
        None
    }

    /// Returns a descriptor that becomes readable when frames wait. Call it before each sleep: some
    /// devices ask their peer for an event in this call. `None` if the caller must poll.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the number of faults of its peer that the device refused.
    fn refusals(&self) -> Refusals {
        Refusals::default()
    }
}

/// Refusals by a device, of the process at its other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Processes of other users.
    pub peers: u64,
    /// Memory regions beyond a limit, or of the wrong kind.
    pub regions: u64,
    /// Invalid frames, and invalid chains of buffers.
    pub frames: u64,
    /// Sessions with a peer that ended, for any reason.
    pub sessions_ended: u64,
}

impl Refusals {
    /// Returns the sum of the refusals of two devices.
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

/// Implements methods of [`Device`] by another device: `forward_device!(self => self.inner;
/// flush);`.
#[macro_export]
macro_rules! forward_device {
    ($this:ident => $inner:expr; $($method:ident),+) => {
        $($crate::forward_device!(@$method $this $inner);)+
    };
    (@capabilities $this:ident $inner:expr) => {
        fn capabilities(&$this) -> $crate::Capabilities {
            $inner.capabilities()
        }
    };
    (@receive $this:ident $inner:expr) => {
        fn receive(
            &mut $this,
            now_ns: u64,
            burst: usize,
            sink: &mut dyn FnMut($crate::RxFrame<'_>),
        ) -> usize {
            $inner.receive(now_ns, burst, sink)
        }
    };
    (@transmit $this:ident $inner:expr) => {
        fn transmit(
            &mut $this,
            now_ns: u64,
            frame: &$crate::TxFrame<'_>,
        ) -> Result<(), $crate::TransmitError> {
            $inner.transmit(now_ns, frame)
        }
    };
    (@flush $this:ident $inner:expr) => {
        fn flush(&mut $this, now_ns: u64) {
            $inner.flush(now_ns);
        }
    };
    (@transmit_room $this:ident $inner:expr) => {
        $crate::forward_device!(@returns transmit_room usize, $this $inner);
    };
    (@next_arrival_ns $this:ident $inner:expr) => {
        $crate::forward_device!(@returns next_arrival_ns Option<u64>, $this $inner);
    };
    (@link_up $this:ident $inner:expr) => {
        $crate::forward_device!(@returns link_up bool, $this $inner);
    };
    (@check_interval_ns $this:ident $inner:expr) => {
        $crate::forward_device!(@returns check_interval_ns Option<u64>, $this $inner);
    };
    (@refusals $this:ident $inner:expr) => {
        $crate::forward_device!(@returns refusals $crate::Refusals, $this $inner);
    };
    (@readiness $this:ident $inner:expr) => {
        fn readiness(&$this) -> Option<std::os::fd::BorrowedFd<'_>> {
            $inner.readiness()
        }
    };
    (@returns $method:ident $returned:ty, $this:ident $inner:expr) => {
        fn $method(&$this) -> $returned {
            $inner.$method()
        }
    };
}

macro_rules! device_behind {
    ($holder:ty) => {
        impl<D: Device + ?Sized> Device for $holder {
            forward_device!(self => **self; capabilities, receive, transmit, transmit_room);
            forward_device!(self => **self; flush, next_arrival_ns, link_up, check_interval_ns);
            forward_device!(self => **self; readiness, refusals);
        }
    };
}

device_behind!(&mut D);
device_behind!(Box<D>);
