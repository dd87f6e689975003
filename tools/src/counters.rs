//! What an end counted, as it is reported and as it crosses the wire.

use serde::Serialize;
use urnic::ConnectionCounters;

use crate::device::DeviceSpec;

/// Fields of [`Counters`].
pub(crate) const FIELD_COUNT: usize = 19;

/// Counts of the connections of a session, at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counters {
    /// Octets that were copied in user space to be sent. Of Writes and Sends the engine copies none
    /// (`tests/copies.rs` looks for them) but those of FPDUs that were cut: frames and vectored
    /// writes refer to registered memory, where `--send-path` does not stage it. Read Responses are
    /// copied once. An AF_XDP socket can send from nowhere but its packet memory, so there it is all
    /// once more, with what frames it.
    pub(crate) payload_bytes_copied_tx: u64,
    /// Of those, octets of Read Responses: what was in memory when they were framed.
    pub(crate) payload_bytes_snapshot: u64,
    /// Of those, octets of other FPDUs that were kept because a part of them went out alone or was
    /// acknowledged, or because their request was flushed.
    pub(crate) payload_bytes_kept: u64,
    /// Octets of payload copied in user space from where they arrived: once to where they belong,
    /// and once more what had to be held because its FPDU was not whole.
    pub(crate) payload_bytes_copied_rx: u64,
    /// Octets placed in registered memory.
    pub(crate) bytes_placed: u64,
    /// Of those, placed before all earlier octets had arrived.
    pub(crate) bytes_placed_out_of_order: u64,
    /// Octets held because their FPDU was not whole.
    pub(crate) bytes_held: u64,
    /// FPDUs framed for sending.
    pub(crate) fpdus_sent: u64,
    /// FPDUs found in what arrived.
    pub(crate) fpdus_received: u64,
    /// Of those, with a wrong CRC.
    pub(crate) crc_bad: u64,
    /// Markers read.
    pub(crate) markers_received: u64,
    /// TCP segments with FPDUs that were sent, by our own TCP.
    pub(crate) segments_sent: u64,
    /// Of those, that begin and end with an FPDU.
    pub(crate) segments_aligned: u64,
    /// TCP segments received by our own TCP.
    pub(crate) segments_received: u64,
    /// Of those, ahead of octets still missing.
    pub(crate) segments_out_of_order: u64,
    /// Segments sent again.
    pub(crate) retransmissions: u64,
    /// Retransmission timeouts.
    pub(crate) rtos: u64,
    /// Frames sent by our own TCP, acknowledgments too.
    pub(crate) frames_sent: u64,
    /// Of those, super-frames: of more than one segment.
    pub(crate) super_frames_sent: u64,
}

macro_rules! in_order {
    ($($field:ident),* $(,)?) => {
        /// All fields, in the order in which they cross the wire.
        pub(crate) const fn fields(&self) -> [u64; FIELD_COUNT] {
            let Self { $($field),* } = *self;
            [$($field),*]
        }

        /// From all fields.
        pub(crate) const fn from_fields(fields: [u64; FIELD_COUNT]) -> Self {
            let [$($field),*] = fields;
            Self { $($field),* }
        }
    };
}

impl Counters {
    in_order! {
        payload_bytes_copied_tx, payload_bytes_snapshot, payload_bytes_kept,
        payload_bytes_copied_rx, bytes_placed, bytes_placed_out_of_order, bytes_held, fpdus_sent, fpdus_received, crc_bad, markers_received, segments_sent,
        segments_aligned, segments_received, segments_out_of_order, retransmissions, rtos,
        frames_sent, super_frames_sent,
    }

    /// What one connection counted on a device.
    pub(crate) const fn of(counters: &ConnectionCounters, device: &DeviceSpec) -> Self {
        let ConnectionCounters { tcp, alignment, fpdus_framed, mpa, rdma, rdma_tx, .. } = counters;
        let copied_by_device = if device.copies_to_send() { tcp.bytes_sent } else { 0 };
        Self {
            payload_bytes_copied_tx: copied_by_device
                + rdma_tx.bytes_snapshot
                + rdma_tx.bytes_kept
                + rdma_tx.bytes_staged,
            payload_bytes_snapshot: rdma_tx.bytes_snapshot,
            payload_bytes_kept: rdma_tx.bytes_kept,
            payload_bytes_copied_rx: rdma.bytes_placed + mpa.bytes_held,
            bytes_placed: rdma.bytes_placed,
            bytes_placed_out_of_order: rdma.bytes_placed_out_of_order,
            bytes_held: mpa.bytes_held,
            fpdus_sent: *fpdus_framed,
            fpdus_received: mpa.fpdus,
            crc_bad: mpa.crc_bad,
            markers_received: mpa.markers,
            segments_sent: alignment.segments,
            segments_aligned: alignment.segments_aligned,
            segments_received: tcp.segments_received,
            segments_out_of_order: tcp.out_of_order,
            retransmissions: tcp.retransmissions,
            rtos: tcp.rtos,
            frames_sent: counters.frames_sent,
            super_frames_sent: alignment.super_frames,
        }
    }

    /// The sum of two, field by field.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let (a, b) = (self.fields(), other.fields());
        Self::from_fields(std::array::from_fn(|i| a[i].saturating_add(b[i])))
    }
}
