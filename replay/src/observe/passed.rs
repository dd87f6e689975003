//! Counts of frames that passed an interface.

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LiveFigures {
    /// iWARP connections so far.
    pub connections: u64,
    /// iWARP connections that are open.
    pub connections_open: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Their segments with data.
    pub segments: u64,
    /// Segments with known FPDUs that begin and end with an FPDU.
    pub segments_aligned: u64,
    /// Segments that begin or end inside an FPDU.
    pub segments_unaligned: u64,
    /// Segments ahead of bytes still missing.
    pub segments_out_of_order: u64,
    /// Segments without new bytes.
    pub segments_retransmitted: u64,
    /// Directions no longer followed, because the interface lost some of their frames.
    pub directions_incomplete: u64,
    /// Bytes that a receiver holds now, because bytes before them or of their FPDU are missing.
    pub bytes_held: u64,
    /// Findings that are errors, of ended connections.
    pub errors: u64,
}
