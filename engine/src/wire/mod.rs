//! Conversion between bytes on the wire and values. Everything here is a pure function without a
//! decision on validity: the layer that owns a field checks it. The only errors are missing bytes
//! and, for the MPA startup frames, bytes that can never become a frame. All integers are
//! big-endian, except the CRC of an FPDU ([`crc32c::to_wire`]).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::fmt;

pub mod crc32c;
pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod terminate;

/// There are fewer bytes than the header needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("header needs {need} bytes, {have} are present")]
pub struct TooShort {
    /// Length of the header.
    pub need: usize,
    /// Number of bytes given.
    pub have: usize,
}

/// A message of fixed length has another length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message needs exactly {need} bytes, it has {have}")]
pub struct WrongLength {
    /// Length of the message.
    pub need: usize,
    /// Number of bytes given.
    pub have: usize,
}

/// The two-bit version of every DDP segment (DV) and RDMAP message (RV), the same on all of a
/// stream and in both directions (RFC 5041 §4.1, RFC 5040 §4.1). Parsing accepts 0 to 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProtocolVersion(u8);

impl ProtocolVersion {
    /// The version of the RDMA Consortium, from before the RFCs: 00b.
    pub const RDMAC: Self = Self(0);
    /// The version of RFC 5040 and RFC 5041: 01b.
    pub const IETF: Self = Self(1);

    /// The version in the two low bits of `bits`.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0b11)
    }

    /// The version as the two low bits of a byte.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
