//! What stands in front of a tagged FPDU's payload: its length and the DDP header.

use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::FPDU_HEADER_LEN;

/// A head as two words: written and read in the same portions, for a processor that reads what it has
/// just written in others waits for it.
pub(super) struct TaggedHead {
    pub(super) halves: [[u8; Self::LEN / 2]; 2],
}

impl TaggedHead {
    /// Bytes of a head.
    pub(super) const LEN: usize = FPDU_HEADER_LEN + TaggedHeader::LEN;

    #[inline]
    pub(super) fn new(length: u16, header: &TaggedHeader) -> Self {
        let [a, b] = length.to_be_bytes();
        let [c, d, e, f, g, h, to @ ..] = header.to_bytes();
        Self { halves: [[a, b, c, d, e, f, g, h], to] }
    }
}
