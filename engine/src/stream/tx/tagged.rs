//! Fast path that writes the FPDUs of a long message, with the bytes of
//! [`Fpdu::emit`](crate::mpa::tx::Fpdu), and evaluates once what all FPDUs of the run share.
//! Requires a tagged message with payload in one run of memory; with markers also that payload is
//! copied (by [`marked`](super::marked)). All else falls back to `gather_each`. `tx/tests.rs`
//! compares both with `Fpdu::emit`.

use std::ops::Range;

use crate::ddp::tx::Target;
use crate::limits::ULPDU_LEN_MAX;
use crate::mem::SharedSlice;
use crate::mpa::marker::MarkerGrid;
use crate::stream::tx::fpdus::FpduRun;
use crate::stream::tx::frame::FrameBuilder;
use crate::stream::tx::gather::{crc_field, digest};
use crate::stream::tx::marked;
use crate::stream::tx::message::TaggedHead;
use crate::types::{Stag, TaggedOffset};
use crate::wire::crc32c::Crc32c;
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::{CRC_LEN, pad_len};

const PAD_LEN_MAX: usize = 3;
const PAYLOAD_LEN_MAX: usize = ULPDU_LEN_MAX - TaggedHeader::LEN;

pub(super) struct TaggedRun<'a> {
    run: &'a FpduRun,
    stag: Stag,
    to: TaggedOffset,
    last: Option<u32>,
    pub(super) crc: bool,
}

impl TaggedRun<'_> {
    /// The payload of FPDU `number` begins `offset` bytes into the message and has `len` bytes.
    #[inline]
    pub(super) fn head(&self, number: u32, offset: u32, len: u32) -> TaggedHead {
        // RFC 5044 §4.1: ULPDU_Length counts the contained ULPDU only.
        let ulpdu_len = TaggedHeader::LEN + len as usize;
        let length = u16::try_from(ulpdu_len).expect("checked against ULPDU_LEN_MAX");
        // RFC 5041 §5.2: the segment's TO is the message's plus the offset of its payload.
        let to = TaggedOffset(self.to.0.wrapping_add(u64::from(offset)));
        let (version, rsvd_ulp) = (self.run.head.version, self.run.head.control);
        let last = self.last == Some(number);
        TaggedHead::new(length, &TaggedHeader { last, version, rsvd_ulp, stag: self.stag, to })
    }
}

impl FpduRun {
    /// `payload` is that of all FPDUs. Returns false, with no effect, without a fast path.
    #[inline]
    pub(super) fn gather_tagged<'a>(
        &self,
        grid: MarkerGrid,
        numbers: Range<u32>,
        payload: SharedSlice<'a>,
        crc: bool,
        frame: &mut FrameBuilder<'a, '_>,
    ) -> bool {
        let Target::Tagged { stag, to } = self.head.target else { return false };
        let first_len = self.lengths.payload_len(numbers.start) as usize;
        if !self.head.inline.is_empty() || first_len == 0 || first_len > PAYLOAD_LEN_MAX {
            return false;
        }
        let last = self.last.then_some(self.count - 1);
        let tagged = TaggedRun { run: self, stag, to, last, crc };
        match self.lengths.unmarked_len() {
            Some(len) => tagged.gather_plain(len, numbers, payload, frame),
            None if frame.stages_run(first_len, grid.run_len(first_len), crc) => {
                tagged.gather_marked(numbers, payload, frame);
            }
            None => return false,
        }
        true
    }
}

impl TaggedRun<'_> {
    #[inline]
    fn gather_plain<'a>(
        &self,
        len: u32,
        numbers: Range<u32>,
        payload: SharedSlice<'a>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let crc = self.crc;
        let pad = pad_len(TaggedHeader::LEN + len as usize);
        let stages = frame.stages(len as usize);
        let (mut offset, mut at) = (self.run.offset_of(numbers.start), 0);
        for number in numbers {
            let head = self.head(number, offset, len);
            let octets = payload.part(at, len as usize);
            let padding = &[0; PAD_LEN_MAX][..pad];
            for half in &head.halves {
                frame.push_array(half);
            }
            // RFC 5044 §4.4: the CRC covers everything of the FPDU before it, the pad included.
            let mut sum = Crc32c::new();
            if crc {
                sum.update(head.halves.as_flattened());
            }
            if crc && !stages && frame.leaves_digests() {
                let from = frame.position();
                frame.push_memory(octets);
                if pad > 0 {
                    frame.push_inline(padding);
                }
                frame.push_digest(from, sum, false);
            } else {
                match (stages, crc) {
                    (true, true) => frame.stage_and_digest(octets, &mut sum),
                    (true, false) => frame.stage(octets),
                    (false, _) => frame.push_memory(octets),
                }
                if crc && !stages {
                    digest(octets, &mut sum);
                }
                if pad > 0 {
                    frame.push_inline(padding);
                    if crc {
                        sum.update(padding);
                    }
                }
                let field: [u8; CRC_LEN] = crc_field(crc.then_some(sum));
                frame.push_array(&field);
            }
            (offset, at) = (offset.wrapping_add(len), at + len as usize);
        }
    }

    fn gather_marked<'a>(
        &self,
        numbers: Range<u32>,
        payload: SharedSlice<'a>,
        frame: &mut FrameBuilder<'a, '_>,
    ) {
        let fpdu = self.run.fpdu(numbers.start);
        let (mut offset, mut at) = (fpdu.offset(), 0);
        let covered_len = self.run.wire_len() as usize - CRC_LEN;
        let mut lengths = self.run.lengths.without_first(numbers.start);
        for number in numbers {
            let len = lengths.first_len();
            let head = self.head(number, offset, len);
            let octets = payload.part(at, len as usize);
            let (from, mark) = (frame.position(), frame.mark());
            frame.write_copied(covered_len, len as usize, |room| {
                marked::write(lengths.first_marker_at(), &head, octets, room);
            });
            // RFC 5044 §4.4: the CRC covers everything of the FPDU before it, markers included.
            if self.crc && frame.leaves_digests() {
                frame.push_digest(from, Crc32c::new(), false);
            } else {
                frame.push_array(&crc_field(self.crc.then(|| frame.digest_from(mark))));
            }
            (offset, at) = (offset.wrapping_add(len), at + len as usize);
            lengths = lengths.without_first(1);
        }
    }
}
