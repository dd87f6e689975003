//! Feature bits of network devices (Virtio 1.2 §5.1.3), and the header in front of each frame.

use std::num::NonZeroUsize;

use crate::{Capabilities, Medium, RxChecksum, RxFrame, SharedSlice, TransmitError, TxFrame, vnet};

/// Length of the header (Virtio 1.2 §5.1.6). With `VERSION_1` it always contains the buffer count.
pub(crate) const HEADER_LEN: usize = vnet::HEADER_LEN + 2;

const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
/// A frame may span several buffers.
pub(crate) const MRG_RXBUF: u64 = 1 << 15;
/// More than one virtqueue pair.
pub(crate) const MQ: u64 = 1 << 22;
/// A buffer may be a descriptor table.
pub(crate) const INDIRECT: u64 = 1 << 28;
/// Event indices replace flags for notification.
pub(crate) const EVENT_INDEX: u64 = 1 << 29;
/// The vhost-user protocol features can be negotiated.
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Virtio 1.0 or later.
pub(crate) const VERSION_1: u64 = 1 << 32;

pub(crate) const OFFLOADS: u64 =
    CSUM | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | HOST_TSO4 | HOST_TSO6 | HOST_ECN;

/// Longest payload of a super-frame, which still fits with the longest headers.
const SEGMENTATION_LEN_MAX: usize = vnet::SUPER_FRAME_LEN_MAX - vnet::HEADERS_LEN_MAX;

/// Flag in `gso_type`: the first segment has CWR.
const GSO_ECN: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Device: uses the features that the driver declared for reception.
    Backend,
    /// Driver: uses the features that the device declared for reception.
    Frontend,
}

/// Returns the transmit capabilities of an end under the negotiated features.
pub(crate) fn capabilities(end: End, features: u64, mtu: usize) -> Capabilities {
    let (checksum, segmentation) = match end {
        End::Backend => (GUEST_CSUM, GUEST_TSO4 | GUEST_TSO6),
        End::Frontend => (CSUM, HOST_TSO4 | HOST_TSO6),
    };
    let tx_checksum = features & checksum != 0;
    let cuts = tx_checksum && features & segmentation == segmentation;
    Capabilities {
        medium: Medium::Ethernet,
        mtu,
        segmentation_len_max: NonZeroUsize::new(SEGMENTATION_LEN_MAX).filter(|_| cuts),
        tx_checksum,
        // Each fragment is copied.
        fragments_max: usize::MAX,
        gather_len_min: 0,
        tx_digest: true,
    }
}

/// Removes features whose prerequisite is missing (Virtio 1.2 §5.1.3.1).
pub(crate) const fn consistent(features: u64) -> u64 {
    let mut left = features;
    if left & CSUM == 0 {
        left &= !(HOST_TSO4 | HOST_TSO6);
    }
    if left & (HOST_TSO4 | HOST_TSO6) == 0 {
        left &= !HOST_ECN;
    }
    if left & GUEST_CSUM == 0 {
        left &= !(GUEST_TSO4 | GUEST_TSO6);
    }
    if left & (GUEST_TSO4 | GUEST_TSO6) == 0 {
        left &= !GUEST_ECN;
    }
    left
}

/// With a buffer count of 0. Errors: as [`vnet::encode`].
#[inline]
pub(crate) fn encode(
    end: End,
    features: u64,
    frame: &TxFrame<'_>,
) -> Result<[u8; HEADER_LEN], TransmitError> {
    let mut header = [0; HEADER_LEN];
    header[..vnet::HEADER_LEN].copy_from_slice(&little_endian(vnet::encode(frame)?));
    let ecn = if end == End::Backend { GUEST_ECN } else { HOST_ECN };
    if features & ecn == 0 {
        header[1] &= !GSO_ECN;
    }
    Ok(header)
}

#[inline]
pub(crate) fn decode(header: [u8; HEADER_LEN], bytes: &mut [u8]) -> RxFrame<'_> {
    vnet::decode(front(header), bytes)
}

/// `None` if the checksum must be verified or completed, which needs a contiguous frame.
#[inline]
pub(crate) fn decode_scattered<'a>(
    header: [u8; HEADER_LEN],
    head: &'a [u8],
    payload: &'a [SharedSlice<'a>],
) -> Option<RxFrame<'a>> {
    let (checksum, segment_size) = vnet::verdict(front(header), head)?;
    let frame = RxFrame { head, payload, checksum, segment_size };
    (checksum == RxChecksum::Valid).then_some(frame)
}

/// Without the buffer count, in the machine's byte order.
fn front(header: [u8; HEADER_LEN]) -> [u8; vnet::HEADER_LEN] {
    let mut front = [0; vnet::HEADER_LEN];
    front.copy_from_slice(&header[..vnet::HEADER_LEN]);
    little_endian(front)
}

pub(crate) const fn buffer_count(header: [u8; HEADER_LEN]) -> u16 {
    u16::from_le_bytes([header[HEADER_LEN - 2], header[HEADER_LEN - 1]])
}

/// Converts between the machine's byte order and Virtio's.
fn little_endian(mut header: [u8; vnet::HEADER_LEN]) -> [u8; vnet::HEADER_LEN] {
    if cfg!(target_endian = "big") {
        for word in header[2..].chunks_exact_mut(2) {
            word.swap(0, 1);
        }
    }
    header
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::TxChecksum;
    use crate::segment::CWR;
    use crate::segment::tests::Segment;

    /// Virtio 1.2 §5.1.6.2: only a driver that has agreed gets a super-frame with CWR.
    #[test]
    fn a_super_frame_with_cwr_says_so_where_that_was_agreed() {
        let bytes = Segment { flags: 0x10 | CWR, ..Segment::new(1, &[7; 300]) }.frame();
        let payload = [SharedSlice::from_bytes(&bytes[54..])];
        let frame = TxFrame {
            head: &bytes[..54],
            payload: &payload,
            checksum: TxChecksum::Partial { start: 34, offset: 16 },
            segment_size: NonZeroU16::new(100),
            digests: None,
        };
        for (end, own, others) in
            [(End::Backend, GUEST_ECN, HOST_ECN), (End::Frontend, HOST_ECN, GUEST_ECN)]
        {
            let is_told = |features| encode(end, features, &frame).unwrap()[1] & GSO_ECN != 0;
            assert!(is_told(OFFLOADS) && is_told(own), "{end:?}");
            assert!(!is_told(others) && !is_told(0), "{end:?}");
        }
    }
}
