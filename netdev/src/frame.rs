//! A frame on its way in or out, as values: where its bytes are and which offloads apply.

use std::num::NonZeroU16;

pub use crate::cursor::Cursor;
use crate::digests::{Destination, Room};
pub use crate::digests::{Digest, Digests};
pub use crate::sys::digester::{AppendToDigest, CopyAndDigest, Digester};
pub use crate::sys::fragment::Fragment;

/// A frame to transmit: header bytes, then payload gathered from fragments.
///
/// With [`segment_size`](Self::segment_size) set, the frame is a super-frame: the payload behind
/// `head` (which holds Ethernet, IP and TCP headers and nothing else) is to be cut every
/// `segment_size` bytes, each piece sent under a copy of the headers.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Link, network and transport headers (and anything else that is not gathered).
    pub head: &'a [u8],
    /// What follows the head, in order.
    pub payload: &'a [Fragment<'a>],
    /// Whether the device has to complete the transport checksum.
    pub checksum: TxChecksum,
    /// Bytes of payload per segment of a super-frame; `None` for an ordinary frame.
    pub segment_size: Option<NonZeroU16>,
    /// Digests of the payload that are still to be computed, by a device that copies frames and says so
    /// ([`Capabilities::tx_digest`](crate::Capabilities::tx_digest)). Without them the payload is as it is
    /// in the fragments.
    pub digests: Option<Digests<'a>>,
}

impl<'a> TxFrame<'a> {
    /// A frame that is in one place, with nothing left to the device.
    #[must_use]
    pub const fn whole(octets: &'a [u8]) -> Self {
        let checksum = TxChecksum::Complete;
        Self { head: octets, payload: &[], checksum, segment_size: None, digests: None }
    }

    /// Bytes of the whole frame, headers included.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(Fragment::len).sum::<usize>()
    }

    /// Whether the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the whole frame into the front of `dst`, with its digests, and returns how many bytes that
    /// took.
    ///
    /// # Panics
    /// When `dst` is shorter than the frame.
    pub fn gather(&self, dst: &mut [u8]) -> usize {
        let (head, rest) = dst.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        let mut room = Room::new(rest);
        self.copy_payload(&mut room);
        head.len() + room.filled()
    }

    /// Appends the payload, with its digests.
    #[inline]
    pub(crate) fn copy_payload(&self, to: &mut impl Destination) {
        match self.digests {
            None => self.payload.iter().for_each(|fragment| to.put(*fragment)),
            Some(digests) => digests.copy(self.payload, to),
        }
    }
}

/// The state of a transmitted frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// Already in place, or not needed.
    Complete,
    /// The device completes it: the field holds the pseudo-header's sum; the checksum covers from
    /// `start` to the end of the frame and belongs at `start + offset` (both in bytes from the
    /// frame's first).
    Partial {
        /// First byte that the checksum covers.
        start: u16,
        /// Where the checksum field is, counted from `start`.
        offset: u16,
    },
}

/// A received frame, borrowed from the device's memory.
///
/// Most devices have all of it in [`head`](Self::head). One whose memory other processes can write has
/// the headers there, copied out, and the rest in [`payload`](Self::payload), where it may change
/// meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The frame from its first link-layer byte (or IP byte, on [`Medium::Ip`]): all of it, or at least
    /// [`HEAD_LEN_MIN`](Self::HEAD_LEN_MIN) bytes when there is a payload.
    pub head: &'a [u8],
    /// What follows the head, in order.
    pub payload: &'a [Fragment<'a>],
    /// Whether the transport checksum was verified.
    pub checksum: RxChecksum,
    /// Payload bytes per original segment, when the device merged several into this frame.
    pub segment_size: Option<NonZeroU16>,
}

impl<'a> RxFrame<'a> {
    /// Bytes that a head has at least when a payload follows: the longest headers of Ethernet with a
    /// tag, of IPv6 and of TCP.
    pub const HEAD_LEN_MIN: usize = 18 + 40 + 60;

    /// A frame that is in one place.
    #[must_use]
    pub const fn whole(
        octets: &'a [u8],
        checksum: RxChecksum,
        segment_size: Option<NonZeroU16>,
    ) -> Self {
        Self { head: octets, payload: &[], checksum, segment_size }
    }

    /// Bytes of the whole frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(Fragment::len).sum::<usize>()
    }

    /// Whether the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frame in one place: where it is, or copied to `room`, whose bytes before are lost.
    #[must_use]
    pub fn gathered<'r>(&self, room: &'r mut Vec<u8>) -> RxFrame<'r>
    where
        'a: 'r,
    {
        if self.payload.is_empty() {
            return *self;
        }
        room.clear();
        room.extend_from_slice(self.head);
        for fragment in self.payload {
            let at = room.len();
            room.resize(at + fragment.len(), 0);
            fragment.copy_to(&mut room[at..]);
        }
        RxFrame::whole(room, self.checksum, self.segment_size)
    }
}

/// What is known of a received frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// Not verified: the receiver must.
    Unverified,
    /// Known to be right, or never having left this machine's memory.
    Valid,
}

/// What a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
}
