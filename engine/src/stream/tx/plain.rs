//! Writes the FPDUs that nearly all of a long message are cut into: tagged, without markers, and
//! with their payload in one run of memory. The same octets as [`Fpdu::emit`](crate::mpa::tx::Fpdu)
//! writes, without asking for each FPDU what is known of all.

use std::ops::Range;

use crate::ddp::tx::Target;
use crate::limits::ULPDU_LEN_MAX;
use crate::mem::SharedSlice;
use crate::stream::tx::fpdus::FpduRun;
use crate::stream::tx::frame::FrameBuilder;
use crate::stream::tx::gather::{crc_field, digest};
use crate::types::TaggedOffset;
use crate::wire::crc32c::Crc32c;
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::{CRC_LEN, FPDU_HEADER_LEN, pad_len};

/// Octets of a head: length and tagged DDP header.
const HEAD_LEN: usize = FPDU_HEADER_LEN + TaggedHeader::LEN;
const PAD_LEN_MAX: usize = 3;

/// A head as two words: written and read in the same portions, for a processor that reads what it has
/// just written in others waits for it.
struct Head {
    halves: [[u8; HEAD_LEN / 2]; 2],
}

impl Head {
    #[inline]
    fn new(length: u16, header: &TaggedHeader) -> Self {
        let [a, b] = length.to_be_bytes();
        let [c, d, e, f, g, h, to @ ..] = header.to_bytes();
        Self { halves: [[a, b, c, d, e, f, g, h], to] }
    }
}

impl FpduRun {
    /// Adds those of the FPDUs with these numbers to `frame`; `payload` is theirs, all of it. Returns
    /// whether they are of the kind that this is for. The stream has no markers.
    #[inline]
    pub(super) fn gather_plain<'a>(
        &self,
        numbers: Range<u32>,
        payload: SharedSlice<'a>,
        crc: bool,
        frame: &mut FrameBuilder<'a, '_>,
    ) -> bool {
        let Target::Tagged { stag, to } = self.head.target else { return false };
        let len = self.len as usize;
        let ulpdu_len = TaggedHeader::LEN + len;
        if !self.head.inline.is_empty() || len == 0 || ulpdu_len > ULPDU_LEN_MAX {
            return false;
        }
        // RFC 5044 §4.1: ULPDU_Length counts the contained ULPDU only.
        let length = u16::try_from(ulpdu_len).expect("checked against ULPDU_LEN_MAX");
        let pad = pad_len(ulpdu_len);
        let (version, rsvd_ulp) = (self.head.version, self.head.control);
        let stages = frame.stages(len);
        let last_of_all = if self.last { self.count - 1 } else { u32::MAX };
        let (mut offset, mut at) = (self.offset + numbers.start * self.len, 0);
        for number in numbers {
            let last = number == last_of_all;
            // RFC 5041 §5.2: the segment's TO is the message's plus the offset of its payload.
            let to = TaggedOffset(to.0.wrapping_add(u64::from(offset)));
            let header = TaggedHeader { last, version, rsvd_ulp, stag, to };
            let head = Head::new(length, &header);
            let octets = payload.part(at, len);
            let padding = &[0; PAD_LEN_MAX][..pad];
            for half in &head.halves {
                frame.push_array(half);
            }
            // RFC 5044 §4.4: the CRC covers everything of the FPDU before it, the pad too.
            let mut sum = Crc32c::new();
            if crc {
                sum.update(head.halves.as_flattened());
            }
            if crc && !stages && frame.leaves_digests() {
                let from = frame.position();
                frame.push_memory(octets.fragment());
                if pad > 0 {
                    frame.push_inline(padding);
                }
                frame.push_digest(from, sum, false);
            } else {
                match (stages, crc) {
                    (true, true) => frame.stage_and_digest(octets, &mut sum),
                    (true, false) => frame.stage(octets),
                    (false, _) => frame.push_memory(octets.fragment()),
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
            (offset, at) = (offset.wrapping_add(self.len), at + len);
        }
        true
    }
}
