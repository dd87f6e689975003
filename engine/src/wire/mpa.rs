//! MPA on the wire: startup frames, FPDU sizes, markers (RFC 5044, RFC 6581).
//!
//! ```text
//! startup frame   Key (16) | M C R S reserved (1) | Rev (1) | PD_Length (2) | Private Data
//! FPDU            ULPDU_Length (2) | ULPDU | PAD (0..3, zero) | CRC (4)
//! marker          reserved (2, zero) | FPDUPTR (2)
//! ```

pub mod startup;

pub use startup::{
    EnhancedHeader, RtrKinds, StartupFrame, StartupFrameError, StartupHeader, StartupKind,
};

use crate::limits::MARKER_LEN;

/// Length of the ULPDU_Length field in front of a ULPDU (RFC 5044 §4.1).
pub const FPDU_HEADER_LEN: usize = 2;
/// Length of the CRC field that ends an FPDU (RFC 5044 §4.1).
pub const CRC_LEN: usize = 4;

/// Length of the PAD after a ULPDU of this length: 0 to 3.
// RFC 5044 §4.1: the PAD makes ULPDU_Length, ULPDU and PAD together a multiple of four bytes.
#[must_use]
pub const fn pad_len(ulpdu_len: usize) -> usize {
    ulpdu_len.wrapping_add(FPDU_HEADER_LEN).wrapping_neg() & 3
}

/// Length of an FPDU whose ULPDU has this length, without markers; a multiple of four. Panics if
/// `ulpdu_len` is within 9 of `usize::MAX`.
#[must_use]
#[expect(clippy::arithmetic_side_effects, reason = "overflow is documented to panic")]
pub(crate) const fn fpdu_len(ulpdu_len: usize) -> usize {
    FPDU_HEADER_LEN + ulpdu_len + pad_len(ulpdu_len) + CRC_LEN
}

/// A marker: the distance back to the start of the FPDU around it (RFC 5044 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// FPDUPTR: bytes from the first byte of ULPDU_Length to this marker; 0 if it is between two
    /// FPDUs. Always a multiple of four.
    pub fpduptr: u16,
}

impl Marker {
    /// Length of a marker.
    pub const LEN: usize = MARKER_LEN;

    /// Parses a marker. Any bytes are valid.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        // RFC 5044 §4.2: the reserved field MUST be ignored, and the two low bits of FPDUPTR are
        // masked (the CRC covers them as received, erratum 1427).
        let [_, _, high, low] = bytes;
        // spec: MPA-4.2-1, MPA-4.2-2
        Self { fpduptr: u16::from_be_bytes([high, low]) & !3 }
    }

    /// The bytes of this marker.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let [high, low] = (self.fpduptr & !3).to_be_bytes();
        // spec: MPA-4.2-1, MPA-4.2-2
        [0, 0, high, low]
    }
}

#[cfg(test)]
mod tests;
