//! Bytes on the wire and the values they stand for.
//!
//! One file per protocol. Everything here is a pure function between bytes and plain values: no
//! state, no decision about what is acceptable. A value read from the wire may therefore be
//! nonsense (a wrong version, an unassigned opcode); the layer that owns the field judges it.
//! The only error at this level is that bytes are missing, or, for the MPA startup frames, that
//! they can never become a frame.
//!
//! All integers are big-endian, except the CRC of an FPDU ([`crc32c::to_wire`]).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::fmt;

pub mod crc32c;
pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod terminate;

/// The bytes at hand are fewer than the header needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("header needs {need} octets, {have} are there")]
pub struct TooShort {
    /// Bytes the header takes.
    pub need: usize,
    /// Bytes that were given.
    pub have: usize,
}

/// A header of fixed size with nothing after it came in another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message takes exactly {need} octets, it has {have}")]
pub struct WrongLength {
    /// Bytes the message takes.
    pub need: usize,
    /// Bytes that were given.
    pub have: usize,
}

/// The two-bit version carried by every DDP segment (DV) and RDMAP message (RV).
///
/// Both are the same on all segments of a stream and in both directions (RFC 5041 §4.1,
/// RFC 5040 §4.1). Parsing keeps whatever the two bits say; range 0 to 3.
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
