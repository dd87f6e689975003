//! Counters of one end, as reported and as sent in control messages.

use serde::ser::{Serialize, SerializeMap, Serializer};
use urnic::ConnectionCounters;

use crate::device::DeviceSpec;

/// Fields of [`Counters`].
pub(crate) const FIELD_COUNT: usize = 19;

/// Counters of the connections of a session, at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Bytes copied in user space for sending. For Writes and Sends the engine copies only FPDUs
    /// that were cut (`tests/copies.rs` checks this): frames and vectored writes refer to
    /// registered memory, unless `--send-path` stages it. Read Responses are copied once. An AF_XDP
    /// socket can send only from its packet memory, so there all bytes are copied once more, with
    /// their headers.
    pub(crate) payload_bytes_copied_tx: u64,
    /// Bytes of Read Responses among these: snapshots of memory, taken when they were framed.
    pub(crate) payload_bytes_snapshot: u64,
    /// Bytes among these of other FPDUs that were kept because a part of them was sent alone or was
    /// acknowledged, or because their request was flushed.
    pub(crate) payload_bytes_kept: u64,
    /// Bytes of payload copied in user space from the receive buffer: once to registered memory,
    /// and once more if their FPDU was incomplete and had to be held.
    pub(crate) payload_bytes_copied_rx: u64,
    /// Bytes placed in registered memory.
    pub(crate) bytes_placed: u64,
    /// Bytes among these that were placed before all earlier bytes had arrived.
    pub(crate) bytes_placed_out_of_order: u64,
    /// Bytes held because their FPDU was incomplete.
    pub(crate) bytes_held: u64,
    /// FPDUs framed for sending.
    pub(crate) fpdus_sent: u64,
    /// FPDUs found in received data.
    pub(crate) fpdus_received: u64,
    /// FPDUs among these with a wrong CRC.
    pub(crate) crc_bad: u64,
    /// Markers read.
    pub(crate) markers_received: u64,
    /// TCP segments with FPDUs sent by urnic's own TCP.
    pub(crate) segments_sent: u64,
    /// Segments among these that begin and end with an FPDU.
    pub(crate) segments_aligned: u64,
    /// TCP segments received by urnic's own TCP.
    pub(crate) segments_received: u64,
    /// Segments among these that were ahead of missing bytes.
    pub(crate) segments_out_of_order: u64,
    /// Segments retransmitted.
    pub(crate) retransmissions: u64,
    /// Retransmission timeouts.
    pub(crate) rtos: u64,
    /// Frames sent by urnic's own TCP, including acknowledgments.
    pub(crate) frames_sent: u64,
    /// Super-frames among these: frames of more than one segment.
    pub(crate) super_frames_sent: u64,
}

macro_rules! in_order {
    ($($field:ident),* $(,)?) => {
        /// All fields, in the order of the control message.
        pub(crate) const fn fields(&self) -> [u64; FIELD_COUNT] {
            let Self { $($field),* } = *self;
            [$($field),*]
        }

        /// Builds the counters from all fields.
        pub(crate) const fn from_fields(fields: [u64; FIELD_COUNT]) -> Self {
            let [$($field),*] = fields;
            Self { $($field),* }
        }

        /// Names, in the same order.
        const NAMES: [&str; FIELD_COUNT] = [$(stringify!($field)),*];
    };
}

impl Counters {
    in_order! {
        payload_bytes_copied_tx, payload_bytes_snapshot, payload_bytes_kept,
        payload_bytes_copied_rx, bytes_placed, bytes_placed_out_of_order, bytes_held, fpdus_sent, fpdus_received, crc_bad, markers_received, segments_sent,
        segments_aligned, segments_received, segments_out_of_order, retransmissions, rtos,
        frames_sent, super_frames_sent,
    }

    /// Returns true if the end has a TCP of its own: only this TCP counts segments and frames. An
    /// end with an open connection has received at least one segment.
    pub(crate) const fn knows_segments(&self) -> bool {
        self.segments_received > 0 || self.frames_sent > 0
    }

    /// Count of segments or frames; `None` over the kernel's TCP.
    pub(crate) fn of_tcp(&self, count: u64) -> Option<u64> {
        self.knows_segments().then_some(count)
    }

    /// Counters of one connection on a device.
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

    /// Returns the sum, field by field.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let (a, b) = (self.fields(), other.fields());
        Self::from_fields(std::array::from_fn(|i| a[i].saturating_add(b[i])))
    }
}

/// Counts of segments and frames are null over the kernel's TCP: unknown is not zero.
impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(FIELD_COUNT))?;
        for (name, count) in Self::NAMES.into_iter().zip(self.fields()) {
            if OF_TCP.contains(&name) {
                map.serialize_entry(name, &self.of_tcp(count))?;
            } else {
                map.serialize_entry(name, &count)?;
            }
        }
        map.end()
    }
}

/// Counters that only a TCP of urnic's own has.
pub(crate) const OF_TCP: [&str; 8] = [
    "segments_sent",
    "segments_aligned",
    "segments_received",
    "segments_out_of_order",
    "retransmissions",
    "rtos",
    "frames_sent",
    "super_frames_sent",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_the_kernel_are_not_known_and_those_of_our_own_may_be_none() {
        let kernel = Counters { fpdus_sent: 7, bytes_placed: 9, ..Counters::default() };
        let shown = serde_json::to_value(kernel).unwrap();
        assert_eq!((&shown["fpdus_sent"], &shown["bytes_placed"]), (&7.into(), &9.into()));
        assert_eq!(shown.as_object().unwrap().len(), FIELD_COUNT);
        assert!(OF_TCP.iter().all(|name| shown[*name].is_null()), "{shown}");
        for own in
            [Counters { segments_received: 1, ..kernel }, Counters { frames_sent: 1, ..kernel }]
        {
            let shown = serde_json::to_value(own).unwrap();
            assert!(OF_TCP.iter().all(|name| shown[*name].is_u64()), "{shown}");
            assert_eq!((&shown["rtos"], own.of_tcp(0)), (&0.into(), Some(0)));
        }
    }

    /// The counter of every layer has its own field; copies are summed.
    #[test]
    fn counters_are_those_of_the_layers() {
        let mut of = ConnectionCounters { frames_sent: 1, fpdus_framed: 2, ..Default::default() };
        (of.tcp.segments_received, of.tcp.out_of_order, of.tcp.retransmissions, of.tcp.rtos) =
            (3, 4, 5, 6);
        (of.alignment.segments, of.alignment.segments_aligned, of.alignment.super_frames) =
            (7, 8, 9);
        (of.mpa.fpdus, of.mpa.crc_bad, of.mpa.markers, of.mpa.bytes_held) = (10, 11, 12, 13);
        (of.rdma.bytes_placed, of.rdma.bytes_placed_out_of_order) = (1000, 15);
        (of.rdma_tx.bytes_snapshot, of.rdma_tx.bytes_kept, of.rdma_tx.bytes_staged) = (100, 20, 3);
        let counters = Counters::of(&of, &"kernel".parse().unwrap());
        assert_eq!(
            counters.fields(),
            [123, 100, 20, 1013, 1000, 15, 13, 2, 10, 11, 12, 7, 8, 3, 4, 5, 6, 1, 9]
        );
    }

    #[test]
    fn fields_cross_the_wire_and_add_up_by_name() {
        let fields: [u64; FIELD_COUNT] = std::array::from_fn(|index| 100 + index as u64);
        let one = Counters::from_fields(fields);
        assert_eq!(one.fields(), fields);
        let two = one.plus(&Counters { rtos: u64::MAX, ..Counters::default() });
        assert_eq!((two.rtos, two.frames_sent), (u64::MAX, one.frames_sent));
        let shown = serde_json::to_value(one).unwrap();
        for (name, count) in Counters::NAMES.into_iter().zip(fields) {
            assert_eq!(shown[name], count, "{name}");
        }
    }
}
