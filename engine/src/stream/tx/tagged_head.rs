//! The bytes before a tagged FPDU's payload: its length and the DDP header.

use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::FPDU_HEADER_LEN;

/// A head as two words. Each word is written and read as a whole, so that the processor can forward
/// the store to the load.
pub(super) struct TaggedHead {
    pub(super) halves: [[u8; Self::LEN / 2]; 2],
}

impl TaggedHead {
    /// Length of a head.
    pub(super) const LEN: usize = FPDU_HEADER_LEN + TaggedHeader::LEN;

    #[inline]
    pub(super) fn new(length: u16, header: &TaggedHeader) -> Self {
        let [a, b] = length.to_be_bytes();
        let [c, d, e, f, g, h, to @ ..] = header.to_bytes();
        Self { halves: [[a, b, c, d, e, f, g, h], to] }
    }
}
