//! RDMA Read Request (RFC 5040 §4.4).

use bytemuck::{Pod, Zeroable};

use super::exactly;
use crate::types::{Stag, TaggedOffset};
use crate::wire::WrongLength;

/// The header of an RDMA Read Request (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Requester's buffer, echoed in the Response.
    pub sink_stag: Stag,
    /// Offset of the data in the requester's buffer.
    pub sink_to: TaggedOffset,
    /// RDMARDSZ: bytes to read.
    pub size: u32,
    /// Responder's buffer.
    pub source_stag: Stag,
    /// Offset of the data in the responder's buffer.
    pub source_to: TaggedOffset,
}

impl ReadRequest {
    /// Length of the header.
    pub const LEN: usize = 28;

    /// Parses what follows the DDP header.
    /// # Errors
    /// A wrong length (RFC 5040 §4.2: a Read Request has no payload).
    pub fn parse(bytes: &[u8]) -> Result<Self, WrongLength> {
        let wire: ReadRequestWire = bytemuck::cast(exactly::<{ Self::LEN }>(bytes)?);
        Ok(Self {
            sink_stag: Stag(u32::from_be_bytes(wire.sink_stag)),
            sink_to: TaggedOffset(u64::from_be_bytes(wire.sink_to)),
            size: u32::from_be_bytes(wire.size),
            source_stag: Stag(u32::from_be_bytes(wire.source_stag)),
            source_to: TaggedOffset(u64::from_be_bytes(wire.source_to)),
        })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        bytemuck::cast(ReadRequestWire {
            sink_stag: self.sink_stag.0.to_be_bytes(),
            sink_to: self.sink_to.0.to_be_bytes(),
            size: self.size.to_be_bytes(),
            source_stag: self.source_stag.0.to_be_bytes(),
            source_to: self.source_to.0.to_be_bytes(),
        })
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ReadRequestWire {
    sink_stag: [u8; 4],
    sink_to: [u8; 8],
    size: [u8; 4],
    source_stag: [u8; 4],
    source_to: [u8; 8],
}
