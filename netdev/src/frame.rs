//! A frame to transmit or a received one, as values: where its bytes are, and which offloads apply.

use std::num::NonZeroU16;

use crate::SharedSlice;
pub use crate::cursor::Cursor;
use crate::digests::{Destination, Room};
pub use crate::digests::{Digest, Digests};
pub use crate::sys::digester::{AppendToDigest, CopyAndDigest, Digester};

/// Frame to transmit: header bytes, then payload gathered from fragments. With
/// [`segment_size`](Self::segment_size) it is a super-frame: the device cuts the payload behind
/// `head` (only the Ethernet, IP and TCP headers) into segments, each under a copy of the headers.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Link, network and transport headers, and anything else that is not gathered.
    pub head: &'a [u8],
    /// Bytes behind the head, in order.
    pub payload: &'a [SharedSlice<'a>],
    /// Offload of the transport checksum.
    pub checksum: TxChecksum,
    /// Payload bytes per segment of a super-frame; `None` for an ordinary frame.
    pub segment_size: Option<NonZeroU16>,
    /// Digests that the device computes while it copies
    /// ([`Capabilities::tx_digest`](crate::Capabilities::tx_digest)).
    pub digests: Option<Digests<'a>>,
}

impl<'a> TxFrame<'a> {
    /// Returns a contiguous frame without offloads.
    #[must_use]
    pub const fn whole(octets: &'a [u8]) -> Self {
        let checksum = TxChecksum::Complete;
        Self { head: octets, payload: &[], checksum, segment_size: None, digests: None }
    }

    /// Returns the length of the whole frame in bytes, headers included.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(SharedSlice::len).sum::<usize>()
    }

    /// Returns true if the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the whole frame to the front of `dst`, computes its digests, and returns its length.
    /// Panics if `dst` is shorter.
    pub fn gather(&self, dst: &mut [u8]) -> usize {
        let (head, rest) = dst.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        let mut room = Room::new(rest);
        self.copy_payload(&mut room);
        head.len() + room.filled()
    }

    #[inline]
    pub(crate) fn copy_payload(&self, to: &mut impl Destination) {
        match self.digests {
            None => self.payload.iter().for_each(|fragment| to.put(*fragment)),
            Some(digests) => digests.copy(self.payload, to),
        }
    }
}

/// State of a transmitted frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxChecksum {
    /// Already in place, or not needed.
    Complete,
    /// The device completes it: the field holds the pseudo-header's sum; the checksum covers the
    /// bytes from `start` to the end of the frame and belongs at `start + offset`.
    Partial {
        /// First byte that the checksum covers.
        start: u16,
        /// Offset of the checksum field, counted from `start`.
        offset: u16,
    },
}

/// Received frame, borrowed from the device's memory. A device whose memory other processes can
/// write copies the headers into [`head`](Self::head), and leaves the rest in
/// [`payload`](Self::payload), where it may change meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The frame from its first link-layer byte (or IP byte, on [`Medium::Ip`]): all of it, or at
    /// least [`HEAD_LEN_MIN`](Self::HEAD_LEN_MIN) bytes if there is a payload.
    pub head: &'a [u8],
    /// Bytes behind the head, in order.
    pub payload: &'a [SharedSlice<'a>],
    /// Result of the device's check of the transport checksum.
    pub checksum: RxChecksum,
    /// Payload bytes per original segment, if the device merged several into this frame.
    pub segment_size: Option<NonZeroU16>,
}

impl<'a> RxFrame<'a> {
    /// Least length of a head with a payload: headers of Ethernet with a tag, IPv6 and TCP.
    pub const HEAD_LEN_MIN: usize = 18 + 40 + 60;

    /// Returns a contiguous frame.
    #[must_use]
    pub const fn whole(
        octets: &'a [u8],
        checksum: RxChecksum,
        segment_size: Option<NonZeroU16>,
    ) -> Self {
        Self { head: octets, payload: &[], checksum, segment_size }
    }

    /// Returns the length of the whole frame, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(SharedSlice::len).sum::<usize>()
    }

    /// Returns true if the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a contiguous frame: this one, or a copy in `room`, whose earlier contents are lost.
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
            fragment.copy_out(0, &mut room[at..]);
        }
        RxFrame::whole(room, self.checksum, self.segment_size)
    }
}

/// Result of a device's check of the transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxChecksum {
    /// Not verified: the receiver must verify it.
    Unverified,
    /// Known to be right, or the bytes never left this machine's memory.
    Valid,
}

/// Layer at which frames begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Frames begin with an Ethernet header.
    Ethernet,
    /// Frames begin with an IPv4 or IPv6 header.
    Ip,
}
