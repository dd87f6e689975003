//! Negotiated parameters and limits of a receiver.

use crate::limits::{FPDUS_AHEAD_MAX, ULPDU_LEN_MAX};
use crate::mpa::pieces::PIECE_RANGES_MAX;

/// Negotiated parameters of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxConfig {
    /// The peer inserts markers.
    pub markers: bool,
    /// CRCs are checked.
    pub crc: bool,
    /// FPDUs beyond a gap are placed at once. `false`: everything out of order is held, as for a
    /// layered stream or an application that polls the last byte of a buffer.
    pub out_of_order: bool,
    /// Shortest ULPDU accepted: the smallest DDP header.
    pub ulpdu_len_min: usize,
    /// Longest ULPDU accepted, at most [`ULPDU_LEN_MAX`].
    pub ulpdu_len_max: usize,
}

impl Default for RxConfig {
    /// No markers, CRC on, placement out of order, ULPDUs from 14 bytes to the RFC's limit.
    fn default() -> Self {
        Self {
            markers: false,
            crc: true,
            out_of_order: true,
            ulpdu_len_min: 14,
            ulpdu_len_max: ULPDU_LEN_MAX,
        }
    }
}

/// Limits of what a receiver remembers. Bytes beyond them are not accepted; TCP retransmits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxLimits {
    /// Separate ranges of held bytes, at most [`PIECE_RANGES_MAX`].
    pub pieces_max: usize,
    /// FPDUs placed ahead of the delivery point, at most [`FPDUS_AHEAD_MAX`].
    pub fpdus_ahead_max: usize,
}

impl Default for RxLimits {
    fn default() -> Self {
        Self { pieces_max: PIECE_RANGES_MAX, fpdus_ahead_max: FPDUS_AHEAD_MAX }
    }
}
