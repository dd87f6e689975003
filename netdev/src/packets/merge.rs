//! Merges packets to transmit into super-frames.

use std::num::NonZeroU16;

use crate::segment::{self, CWR, FIN, Layout, PSH, TCP_CHECKSUM, TCP_FLAGS};
use crate::{Medium, SharedSlice, TransmitError, TxChecksum, TxFrame};

/// Consecutive packets of one flow, sent as one super-frame. Invariant: segmented at every `size`
/// bytes of payload, the segments are the merged packets, byte for byte.
#[derive(Debug, Default)]
pub(super) struct Train {
    /// First packet unchanged, then the payload of the others.
    bytes: Vec<u8>,
    layout: Option<Layout>,
    count: u16,
    /// Payload bytes of each packet except the last, which may have fewer.
    size: usize,
    /// The last packet is shorter, or has a flag that only last packets have.
    is_closed: bool,
    scratch: Vec<u8>,
}

impl Train {
    /// Begins a train with a packet. Returns false if no other packet may follow this one.
    pub(super) fn begin(&mut self, frame: &TxFrame<'_>, medium: Medium) -> bool {
        debug_assert!(self.layout.is_none(), "the train before has departed");
        let packet = in_one_place(frame, &mut self.scratch);
        let Some(layout) = wagon(packet, medium) else { return false };
        if packet[layout.tcp_at + TCP_FLAGS] & (PSH | FIN) != 0 {
            return false;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(packet);
        (self.layout, self.count, self.is_closed) = (Some(layout), 1, false);
        self.size = layout.payload_len();
        true
    }

    /// Returns true if the packet continues the train and the payload stays within
    /// `payload_len_max`.
    pub(super) fn couple(
        &mut self,
        frame: &TxFrame<'_>,
        medium: Medium,
        payload_len_max: usize,
    ) -> bool {
        let Self { bytes, layout: Some(first), count, size, is_closed, scratch } = self else {
            return false;
        };
        let packet = in_one_place(frame, scratch);
        let Some(layout) = wagon(packet, medium) else { return false };
        let payload_len = layout.payload_len();
        let fits = payload_len <= *size
            && first.payload_len() + payload_len <= payload_len_max
            && first.end - first.ip_at + payload_len <= usize::from(u16::MAX);
        let id = segment::identification(bytes, first).map(|id| id.wrapping_add(*count));
        if *is_closed
            || !fits
            || segment::identification(packet, &layout) != id
            || !segment::continues(bytes, first, packet, &layout)
        {
            return false;
        }
        let flags = packet[layout.tcp_at + TCP_FLAGS];
        bytes.extend_from_slice(&packet[layout.payload_at..]);
        bytes[first.tcp_at + TCP_FLAGS] |= flags;
        first.end = bytes.len();
        *count += 1;
        *is_closed = payload_len < *size || flags & (PSH | FIN) != 0;
        true
    }

    /// Hands the train to `transmit`, if there is one. Returns the number of refused packets.
    pub(super) fn depart(
        &mut self,
        transmit: impl FnOnce(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> u64 {
        let Some(layout) = self.layout.take() else { return 0 };
        let result = if self.count == 1 {
            transmit(&TxFrame::whole(&self.bytes))
        } else {
            segment::finish_partial(&mut self.bytes, layout);
            let (head, payload) = self.bytes.split_at(layout.payload_at);
            let position = |at: usize| u16::try_from(at).expect("in the headers of one packet");
            transmit(&TxFrame {
                head,
                payload: &[SharedSlice::from_bytes(payload)],
                checksum: TxChecksum::Partial {
                    start: position(layout.tcp_at),
                    offset: position(TCP_CHECKSUM),
                },
                segment_size: u16::try_from(self.size).ok().and_then(NonZeroU16::new),
                digests: None,
            })
        };
        if result.is_ok() { 0 } else { u64::from(self.count) }
    }
}

/// A packet that cutting could produce: a valid data segment without padding, and without CWR,
/// which only a first piece keeps.
fn wagon(packet: &[u8], medium: Medium) -> Option<Layout> {
    let layout = segment::parse(packet, medium)?;
    let is_data = layout.payload_len() > 0 && layout.end == packet.len();
    let flags = packet[layout.tcp_at + TCP_FLAGS];
    (is_data && flags & CWR == 0 && segment::has_computed_checksums(packet, &layout))
        .then_some(layout)
}

/// Copied to `scratch` if the packet is not contiguous.
fn in_one_place<'a>(frame: &TxFrame<'a>, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    if frame.payload.iter().all(SharedSlice::is_empty) {
        return frame.head;
    }
    scratch.resize(frame.len(), 0);
    frame.gather(scratch);
    scratch
}
