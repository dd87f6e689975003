//! Writes a tagged FPDU with markers among its bytes into a buffer of exactly its length, in one
//! pass. Fast path of [`tagged`](super::tagged); `tx/tests.rs` and the test below compare it with
//! [`Fpdu::emit`](crate::mpa::tx::Fpdu).

use crate::mem::SharedSlice;
use crate::mpa::marker::SPACING;
use crate::stream::tx::message::TaggedHead;
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::{Marker, pad_len};

/// Writes `head`, `payload`, the pad and the markers (all that the CRC covers) into `room`, which
/// has exactly their length. The first marker is at `marker_at`.
#[inline]
pub(super) fn write(
    marker_at: usize,
    head: &TaggedHead,
    payload: SharedSlice<'_>,
    room: &mut [u8],
) {
    let mut wire = Wire { room, at: 0, marker_at, header_at: 0 };
    wire.put_marker_if_due();
    wire.header_at = wire.at;
    let before = wire.until_marker();
    if before >= TaggedHead::LEN {
        wire.put(&head.halves[0]);
        wire.put(&head.halves[1]);
    } else {
        // The head is far shorter than the distance between markers, so it contains at most one.
        let (front, back) = head.halves.as_flattened().split_at(before);
        wire.put(front);
        wire.put_marker_if_due();
        wire.put(back);
    }
    let mut done = 0;
    while done < payload.len() {
        wire.put_marker_if_due();
        let len = wire.until_marker().min(payload.len() - done);
        let run = wire.at..wire.at + len;
        payload.part(done, len).copy_out(0, &mut wire.room[run]);
        (done, wire.at) = (done + len, wire.at + len);
    }
    // The pad ends 4-aligned, so a marker can fall before the CRC but not inside the pad.
    let pad = pad_len(TaggedHeader::LEN + payload.len());
    if pad > 0 {
        wire.put(&[0; 3][..pad]);
    }
    wire.put_marker_if_due();
    debug_assert_eq!(wire.at, wire.room.len(), "as much as there is room for");
}

struct Wire<'r> {
    room: &'r mut [u8],
    at: usize,
    marker_at: usize,
    header_at: usize,
}

impl Wire<'_> {
    #[inline]
    const fn until_marker(&self) -> usize {
        self.marker_at - self.at
    }

    #[inline]
    fn put(&mut self, octets: &[u8]) {
        self.room[self.at..self.at + octets.len()].copy_from_slice(octets);
        self.at += octets.len();
    }

    #[inline]
    fn put_marker_if_due(&mut self) {
        if self.at == self.marker_at {
            // RFC 5044 §4.3: bytes from the ULPDU_Length field; 0 for a marker before that field.
            let fpduptr = u16::try_from(self.at - self.header_at);
            let marker = Marker { fpduptr: fpduptr.expect("an FPDU is at most 65288 bytes") };
            self.put(&marker.to_bytes());
            self.marker_at += SPACING;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpa::marker::MarkerGrid;
    use crate::mpa::tx::{Fpdu, RunSink};
    use crate::types::{Stag, StreamOffset, TaggedOffset};
    use crate::wire::ProtocolVersion;
    use crate::wire::mpa::CRC_LEN;

    /// Reference: collects the bytes that MPA emits, run by run.
    struct Octets<'p> {
        payload: &'p [u8],
        octets: Vec<u8>,
    }

    impl RunSink for Octets<'_> {
        fn inline(&mut self, octets: &[u8]) {
            self.octets.extend_from_slice(octets);
        }
        fn payload(&mut self, offset: usize, len: usize) {
            self.octets.extend_from_slice(&self.payload[offset..offset + len]);
        }
        fn crc(&mut self) {}
    }

    #[test]
    fn marked_fpdu_has_the_octets_of_mpa_at_every_marker_phase() {
        let memory: Vec<u8> = (0..3000_u32).map(|i| (i * 7 + (i >> 8)).to_le_bytes()[0]).collect();
        let header = TaggedHeader {
            last: true,
            version: ProtocolVersion::IETF,
            rsvd_ulp: 0x40,
            stag: Stag(0x0102_0304),
            to: TaggedOffset(0x1112_1314_1516_1718),
        };
        let grid = MarkerGrid::new(StreamOffset(0), true);
        for start in (0..512).step_by(4).map(StreamOffset) {
            for len in [1, 2, 3, 4, 480, 484, 485, 488, 492, 499, 500, 508, 1000, 1428, 2999] {
                let octets = header.to_bytes();
                let fpdu = Fpdu::new(grid, start, &octets, len);
                let mut expected = Octets { payload: &memory, octets: Vec::new() };
                fpdu.emit(&mut expected);
                let mut written = vec![0xEE; fpdu.wire_len() - CRC_LEN];
                let marker_at = grid.layout(start, fpdu.ulpdu_len()).marker_at(0);
                let head = TaggedHead::new(u16::try_from(fpdu.ulpdu_len()).unwrap(), &header);
                let payload = SharedSlice::from_bytes(&memory[..len]);
                write(marker_at, &head, payload, &mut written);
                assert!(written == expected.octets, "{start} {len}");
            }
        }
    }
}
