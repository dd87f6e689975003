//! Counters of each layer, owned by the layer, read by others.

use crate::wire::rdmap::Opcode;

/// Counts of MPA reception (RFC 5044).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MpaRxCounters {
    /// Distinct FPDUs found complete and valid.
    pub fpdus: u64,
    /// FPDUs whose CRC was checked and right.
    pub crc_good: u64,
    /// FPDUs whose beginning was found through a marker.
    pub fpdus_by_marker: u64,
    /// FPDUs passed up before all earlier bytes had arrived.
    pub fpdus_out_of_order: u64,
    /// FPDUs whose CRC was checked and wrong.
    pub crc_bad: u64,
    /// Markers read.
    pub markers: u64,
    /// Markers that contradict the FPDU that contains them.
    pub marker_errors: u64,
    /// Bytes copied into the piece store because their FPDU was incomplete.
    pub bytes_held: u64,
    /// Most bytes held at one time.
    pub bytes_held_peak: u64,
    /// Time from arrival to placement, summed over the bytes held: bytes × nanoseconds. All other
    /// bytes are placed when they arrive. Bytes held now count up to the last change.
    pub held_byte_ns: u128,
    /// Upper bound of the longest time from arrival to placement, in nanoseconds: each 2048-byte
    /// block of the stream counts from its first byte that arrived.
    pub held_ns_max: u64,
    /// Segments (or parts) refused for lack of room; the peer's TCP retransmits them.
    pub refused_for_room: u64,
}

/// Counts of DDP placement and RDMAP delivery (RFC 5041, RFC 5040).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RdmaRxCounters {
    /// Bytes copied to their final place.
    pub bytes_placed: u64,
    /// Bytes of `bytes_placed` in FPDUs that were placed before all earlier bytes had arrived.
    pub bytes_placed_out_of_order: u64,
    /// Payload bytes of Sends that were copied once more, since no receive was posted when they
    /// arrived. They count as placed with the second copy.
    pub bytes_without_receive: u64,
    /// FPDUs delivered, by opcode.
    pub fpdus_by_opcode: [u64; 16],
    /// Messages delivered (FPDUs with the Last flag), by opcode.
    pub messages_by_opcode: [u64; 16],
}

/// Counts of bytes copied in user space for sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaTxCounters {
    /// Payload bytes of RDMA Read Responses: each is copied once, when it is framed.
    pub bytes_snapshot: u64,
    /// Payload bytes of other FPDUs that were copied because a part was sent alone or acknowledged,
    /// or because their request was flushed.
    pub bytes_kept: u64,
    /// Payload bytes copied into frames ([`SendPath`](crate::stream::SendPath)), at each
    /// transmission.
    pub bytes_staged: u64,
    /// Zero-length RDMA Reads of the engine that ask if Writes and Sends were placed
    /// ([`CompletionLevel::Placed`](../verbs/enum.CompletionLevel.html#variant.Placed)).
    pub confirmations: u64,
}

impl RdmaRxCounters {
    pub(crate) const fn count(&mut self, opcode: Opcode, last: bool) {
        let index = opcode.bits() as usize;
        self.fpdus_by_opcode[index] += 1;
        if last {
            self.messages_by_opcode[index] += 1;
        }
    }
}
