//! Counts of what passed an interface.

/// What passed, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LiveFigures {
    /// iWARP connections so far.
    pub connections: u64,
    /// Of them, those that are open.
    pub connections_open: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Their segments with data.
    pub segments: u64,
    /// Of those whose FPDUs are known: that begin and end with one, and the others.
    pub segments_aligned: u64,
    /// Segments that begin or end inside an FPDU.
    pub segments_unaligned: u64,
    /// Segments ahead of bytes still missing.
    pub segments_out_of_order: u64,
    /// Segments that bring nothing new.
    pub segments_retransmitted: u64,
    /// Directions whose FPDUs are not followed any more, because the interface lost frames of them.
    pub directions_incomplete: u64,
    /// Bytes that a receiver holds now, because bytes before them or of their FPDU are missing.
    pub bytes_held: u64,
    /// Findings that are errors, of connections that are over.
    pub errors: u64,
}
