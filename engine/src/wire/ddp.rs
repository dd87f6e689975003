//! DDP headers (RFC 5041 §4).
//!
//! ```text
//! tagged      control | RsvdULP (1) | STag (4) | TO (8)                          14 bytes
//! untagged    control | RsvdULP (5)            | QN (4) | MSN (4) | MO (4)       18 bytes
//! control     T L reserved(4) DV(2)
//! ```

use bytemuck::{Pod, Zeroable};

use super::{ProtocolVersion, TooShort};
use crate::types::{MsgOffset, Msn, QueueNumber, Stag, TaggedOffset};

/// The header of a DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpHeader {
    /// The sender names the destination of the payload: STag and offset (T = 1).
    Tagged(TaggedHeader),
    /// The payload goes into a buffer that the receiver has queued (T = 0).
    Untagged(UntaggedHeader),
}

/// The header of a segment for a tagged buffer (RFC 5041 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// L: the last segment of its message.
    pub last: bool,
    /// DV.
    pub version: ProtocolVersion,
    /// RsvdULP: belongs to the ULP. RDMAP keeps its control byte here.
    pub rsvd_ulp: u8,
    /// STag of the buffer.
    pub stag: Stag,
    /// Offset of the payload in the buffer.
    pub to: TaggedOffset,
}

/// The header of a segment for an untagged buffer (RFC 5041 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// L: the last segment of its message.
    pub last: bool,
    /// DV.
    pub version: ProtocolVersion,
    /// `RsvdULP[0:7]`: belongs to the ULP. RDMAP keeps its control byte here.
    pub rsvd_ulp: u8,
    /// `RsvdULP[8:39]`: belongs to the ULP. RDMAP keeps the STag to invalidate here, else 0.
    pub invalidate_stag: Stag,
    /// The queue of buffers.
    pub qn: QueueNumber,
    /// Number of the message on that queue.
    pub msn: Msn,
    /// Offset of the payload in the message.
    pub mo: MsgOffset,
}

impl DdpHeader {
    pub(crate) const LEN_MAX: usize = UntaggedHeader::LEN;

    #[must_use]
    pub(crate) const fn len_by_control(control: u8) -> usize {
        if control & TAGGED != 0 { TaggedHeader::LEN } else { UntaggedHeader::LEN }
    }

    /// Parses the header at the start of a segment; the version is not checked. Fails if the
    /// segment is shorter than its header.
    // spec: DDP-4.4-1
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<Self, TooShort> {
        let Some(&control) = segment.first() else {
            return Err(TooShort { need: TaggedHeader::LEN, have: 0 });
        };
        let header = if control & TAGGED != 0 {
            segment.first_chunk().map(|bytes| Self::Tagged(TaggedHeader::from_bytes(*bytes)))
        } else {
            segment.first_chunk().map(|bytes| Self::Untagged(UntaggedHeader::from_bytes(*bytes)))
        };
        header.ok_or_else(|| TooShort { need: Self::len_by_control(control), have: segment.len() })
    }

    /// Writes the header to the start of `out` and returns its length. Panics if `out` is too
    /// short.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        match self {
            Self::Tagged(header) => emit_array(header.to_bytes(), out),
            Self::Untagged(header) => emit_array(header.to_bytes(), out),
        }
    }

    /// Length of this header.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => TaggedHeader::LEN,
            Self::Untagged(_) => UntaggedHeader::LEN,
        }
    }

    /// L: the last segment of its message.
    #[must_use]
    pub const fn last(&self) -> bool {
        match self {
            Self::Tagged(header) => header.last,
            Self::Untagged(header) => header.last,
        }
    }

    /// DV.
    #[must_use]
    pub const fn version(&self) -> ProtocolVersion {
        match self {
            Self::Tagged(header) => header.version,
            Self::Untagged(header) => header.version,
        }
    }

    /// The first byte that belongs to the ULP.
    #[must_use]
    pub const fn rsvd_ulp(&self) -> u8 {
        match self {
            Self::Tagged(header) => header.rsvd_ulp,
            Self::Untagged(header) => header.rsvd_ulp,
        }
    }
}

impl TaggedHeader {
    /// Length of the header.
    pub const LEN: usize = 14;

    /// Parses the header. T and the reserved bits are ignored.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let wire: TaggedWire = bytemuck::cast(bytes);
        Self {
            last: wire.control & LAST != 0,
            version: ProtocolVersion::from_bits(wire.control),
            rsvd_ulp: wire.rsvd_ulp,
            stag: Stag(u32::from_be_bytes(wire.stag)),
            to: TaggedOffset(u64::from_be_bytes(wire.to)),
        }
    }

    /// The bytes of the header.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        bytemuck::cast(TaggedWire {
            control: TAGGED | control(self.last, self.version),
            rsvd_ulp: self.rsvd_ulp,
            stag: self.stag.0.to_be_bytes(),
            to: self.to.0.to_be_bytes(),
        })
    }
}

impl UntaggedHeader {
    /// Length of the header.
    pub const LEN: usize = 18;

    /// Parses the header. T and the reserved bits are ignored.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let wire: UntaggedWire = bytemuck::cast(bytes);
        Self {
            last: wire.control & LAST != 0,
            version: ProtocolVersion::from_bits(wire.control),
            rsvd_ulp: wire.rsvd_ulp,
            invalidate_stag: Stag(u32::from_be_bytes(wire.rsvd_ulp_tail)),
            qn: QueueNumber(u32::from_be_bytes(wire.qn)),
            msn: Msn(u32::from_be_bytes(wire.msn)),
            mo: MsgOffset(u32::from_be_bytes(wire.mo)),
        }
    }

    /// The bytes of the header.
    #[must_use]
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        bytemuck::cast(UntaggedWire {
            control: control(self.last, self.version),
            rsvd_ulp: self.rsvd_ulp,
            rsvd_ulp_tail: self.invalidate_stag.0.to_be_bytes(),
            qn: self.qn.0.to_be_bytes(),
            msn: self.msn.0.to_be_bytes(),
            mo: self.mo.0.to_be_bytes(),
        })
    }
}

// RFC 5041 §4.1: the four reserved bits MUST be zero when sent and are not checked on receipt.
// spec: DDP-4.1-5
const fn control(last: bool, version: ProtocolVersion) -> u8 {
    let last = if last { LAST } else { 0 };
    last | version.bits()
}

fn emit_array<const N: usize>(bytes: [u8; N], out: &mut [u8]) -> usize {
    *out.first_chunk_mut().expect("the caller provides room for a header") = bytes;
    N
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct TaggedWire {
    control: u8,
    rsvd_ulp: u8,
    stag: [u8; 4],
    to: [u8; 8],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct UntaggedWire {
    control: u8,
    rsvd_ulp: u8,
    rsvd_ulp_tail: [u8; 4],
    qn: [u8; 4],
    msn: [u8; 4],
    mo: [u8; 4],
}

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;

#[cfg(test)]
mod tests;
