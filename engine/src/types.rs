//! Types for the numbers of the protocol: plain integers without invariants beyond their width.

use std::fmt;
use std::ops::Add;

/// A steering tag: identifies a tagged buffer to the remote peer (RFC 5041 §1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A byte position inside a tagged buffer (RFC 5041 §1.3, "Tagged Offset").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaggedOffset(pub u64);

/// A message sequence number: per untagged queue and direction, from 1 on, modulo 2³² (RFC 5041
/// §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(pub u32);

impl Msn {
    /// The number of the first message on every queue.
    // spec: DDP-4.3-2
    pub const FIRST: Self = Self(1);

    /// Returns the number of the next message.
    // spec: DDP-4.3-2
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the number of messages that `self` is ahead of `earlier`, modulo 2³².
    #[must_use]
    pub const fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

/// A byte position inside an untagged message (RFC 5041 §4.3, "Message Offset").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MsgOffset(pub u32);

/// An untagged queue number (RFC 5041 §4.3). RDMAP uses 0 to 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// Send and Immediate Data messages.
    pub const SEND: Self = Self(0);
    /// RDMA Read Requests and Atomic Requests.
    pub const READ_REQUEST: Self = Self(1);
    /// Terminate messages.
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses (RFC 7306 §5.2.2).
    pub const ATOMIC_RESPONSE: Self = Self(3);
}

/// The number of a queue pair inside one [`Rnic`](crate::verbs::Rnic).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNum(pub u32);

/// An application's own identifier of a work request; the completion returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WrId(pub u64);

/// The number of a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdNum(pub u32);

/// A position in one direction of a TCP byte stream: 0 is the first byte after the SYN. It never
/// wraps in practice (2⁶⁴ bytes), so positions compare with `<`. 32-bit sequence numbers exist only
/// in [`tcp::seq`](crate::tcp) and on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamOffset(pub u64);

impl StreamOffset {
    /// The first byte after the SYN.
    pub const ZERO: Self = Self(0);

    /// Bytes from `earlier` to `self`. Panics if `earlier` is after `self`: a caller's bug.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        assert!(earlier.0 <= self.0, "stream offsets compared in the wrong order");
        self.0 - earlier.0
    }

    /// Like [`bytes_since`](Self::bytes_since), as an index. Panics also beyond `usize`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "asserted on 32-bit, lossless on 64-bit")]
    pub const fn index_from(self, earlier: Self) -> usize {
        let bytes = self.bytes_since(earlier);
        assert!(bytes <= usize::MAX as u64, "stream distance beyond the address space");
        bytes as usize
    }
}

impl Add<u64> for StreamOffset {
    type Output = Self;
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for StreamOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
