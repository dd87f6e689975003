//! Atomic Request and Response (RFC 7306 §5.2).

use bytemuck::{Pod, Zeroable};

use super::exactly;
use crate::types::{Stag, TaggedOffset};
use crate::wire::WrongLength;

/// Operation of an Atomic Request (RFC 7306 §5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOpcode {
    /// 0x0 add, field by field.
    FetchAdd,
    /// 0x2 swap if equal, masked.
    CmpSwap,
    /// Any other: not assigned.
    Reserved(u8),
}

impl AtomicOpcode {
    /// The opcode in the four low bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0xF {
            0x0 => Self::FetchAdd,
            0x2 => Self::CmpSwap,
            reserved => Self::Reserved(reserved),
        }
    }

    /// The opcode as four low bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::FetchAdd => 0x0,
            Self::CmpSwap => 0x2,
            Self::Reserved(bits) => bits & 0xF,
        }
    }
}

/// The header of an Atomic Request (RFC 7306 §5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The operation.
    pub opcode: AtomicOpcode,
    /// Request Identifier, echoed in the Response.
    pub request_id: u32,
    /// Responder's buffer.
    pub stag: Stag,
    /// Offset in the buffer of the 64-bit value.
    pub to: TaggedOffset,
    /// Add or Swap Data.
    pub data: u64,
    /// Add or Swap Mask.
    pub mask: u64,
    /// Compare Data; FetchAdd sends 0.
    pub compare: u64,
    /// Compare Mask; FetchAdd sends all ones.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Length of the header.
    // RFC 7306 §5.2.1, Figure 4.
    pub const LEN: usize = 52;

    /// Parses the header, which is everything after the DDP header. Fails if there are fewer or
    /// more bytes (RFC 7306 §4.2: no payload).
    pub fn parse(bytes: &[u8]) -> Result<Self, WrongLength> {
        let wire: AtomicRequestWire = bytemuck::cast(exactly::<{ Self::LEN }>(bytes)?);
        // spec: EXT-5.2.1-5
        let [_, _, _, opcode] = wire.opcode;
        Ok(Self {
            opcode: AtomicOpcode::from_bits(opcode),
            request_id: u32::from_be_bytes(wire.request_id),
            stag: Stag(u32::from_be_bytes(wire.stag)),
            to: TaggedOffset(u64::from_be_bytes(wire.to)),
            data: u64::from_be_bytes(wire.data),
            mask: u64::from_be_bytes(wire.mask),
            compare: u64::from_be_bytes(wire.compare),
            compare_mask: u64::from_be_bytes(wire.compare_mask),
        })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        bytemuck::cast(AtomicRequestWire {
            // spec: EXT-5.2.1-5
            opcode: [0, 0, 0, self.opcode.bits()],
            request_id: self.request_id.to_be_bytes(),
            stag: self.stag.0.to_be_bytes(),
            to: self.to.0.to_be_bytes(),
            data: self.data.to_be_bytes(),
            mask: self.mask.to_be_bytes(),
            compare: self.compare.to_be_bytes(),
            compare_mask: self.compare_mask.to_be_bytes(),
        })
    }
}

/// The header of an Atomic Response (RFC 7306 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Original Request Identifier.
    pub request_id: u32,
    /// Original Remote Data Value: the previous contents of the memory.
    pub original: u64,
}

impl AtomicResponse {
    /// Length of the header.
    // RFC 7306 §5.2.2, Figure 6. The "32 octets" in its §4 include the bytes of MPA and DDP.
    pub const LEN: usize = 12;

    /// Parses the header, which is everything after the DDP header. Fails if there are fewer or
    /// more bytes (RFC 7306 §4.2: no payload).
    pub fn parse(bytes: &[u8]) -> Result<Self, WrongLength> {
        let wire: AtomicResponseWire = bytemuck::cast(exactly::<{ Self::LEN }>(bytes)?);
        Ok(Self {
            request_id: u32::from_be_bytes(wire.request_id),
            original: u64::from_be_bytes(wire.original),
        })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        bytemuck::cast(AtomicResponseWire {
            request_id: self.request_id.to_be_bytes(),
            // spec: EXT-5.1.1-2
            original: self.original.to_be_bytes(),
        })
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AtomicRequestWire {
    opcode: [u8; 4],
    request_id: [u8; 4],
    stag: [u8; 4],
    to: [u8; 8],
    data: [u8; 8],
    mask: [u8; 8],
    compare: [u8; 8],
    compare_mask: [u8; 8],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AtomicResponseWire {
    request_id: [u8; 4],
    original: [u8; 8],
}
