//! The payload of one frame while it is put together: no octet of registered memory is copied.

use arrayvec::ArrayVec;
use urnic_netdev::Fragment;

use crate::limits::{FRAGMENTS_MAX, FRAME_PAYLOAD_MAX};
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::{CRC_LEN, FPDU_HEADER_LEN as LENGTH_LEN};

/// The fragments of one frame, on the stack. Filled in place: it is too large to be returned.
pub type Fragments<'a> = ArrayVec<Fragment<'a>, FRAGMENTS_MAX>;

/// Where the inline octets of frames are written; one for all frames of a port.
#[derive(Debug)]
pub(crate) struct Scratch(Box<[u8]>);

impl Default for Scratch {
    fn default() -> Self {
        Self(vec![0; FRAME_PAYLOAD_MAX].into_boxed_slice())
    }
}

/// Puts a frame together: inline octets go into the scratch, runs of registered memory are only
/// referred to.
#[derive(Debug)]
pub(crate) struct FrameBuilder<'a, 'f> {
    /// Scratch not handed out. Its first `open_len` octets are written and continue to grow.
    scratch: &'a mut [u8],
    open_len: usize,
    fragments: &'f mut Fragments<'a>,
    len: usize,
    full: bool,
}

impl<'a, 'f> FrameBuilder<'a, 'f> {
    pub(crate) fn new(scratch: &'a mut Scratch, fragments: &'f mut Fragments<'a>) -> Self {
        Self { scratch: &mut scratch.0, open_len: 0, fragments, len: 0, full: false }
    }

    /// Octets that were not to be copied from registered memory: headers, markers, pads, CRCs.
    #[inline]
    pub(crate) fn push_inline(&mut self, octets: &[u8]) {
        let end = self.open_len + octets.len();
        match self.scratch.get_mut(self.open_len..end) {
            Some(room) if !self.full => {
                copy(room, octets);
                self.open_len = end;
            }
            _ => self.full = true,
        }
    }

    /// The same, of a length known beforehand: that is no call.
    #[inline]
    pub(crate) fn push_array<const N: usize>(&mut self, octets: &[u8; N]) {
        let free = self.scratch.get_mut(self.open_len..).and_then(<[u8]>::first_chunk_mut);
        match free {
            Some(room) if !self.full => {
                *room = *octets;
                self.open_len += N;
            }
            _ => self.full = true,
        }
    }

    /// A run of registered memory.
    #[inline]
    pub(crate) fn push_memory(&mut self, run: Fragment<'a>) {
        self.close_inline();
        self.push(run);
    }

    /// The frame is complete, or as much of it as there was room for; returns its octets.
    pub(crate) fn finish(mut self) -> usize {
        self.close_inline();
        self.len
    }

    #[inline]
    fn close_inline(&mut self) {
        if self.open_len > 0 {
            let (done, rest) = std::mem::take(&mut self.scratch).split_at_mut(self.open_len);
            self.scratch = rest;
            self.open_len = 0;
            self.push(Fragment::from_slice(done));
        }
    }

    #[inline]
    fn push(&mut self, fragment: Fragment<'a>) {
        let len = fragment.len();
        if self.full || self.fragments.try_push(fragment).is_err() {
            self.full = true;
        } else {
            self.len += len;
        }
    }
}

/// Octets of the length and header of a tagged FPDU.
const HEAD_LEN: usize = LENGTH_LEN + TaggedHeader::LEN;

/// Copies equal lengths. For the usual ones, a head and a marker or CRC, that is no call.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    if let Ok(head) = <&[u8; HEAD_LEN]>::try_from(from) {
        to.copy_from_slice(head);
    } else if let Ok(word) = <&[u8; CRC_LEN]>::try_from(from) {
        to.copy_from_slice(word);
    } else {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets(fragments: &Fragments<'_>) -> Vec<u8> {
        let mut all = Vec::new();
        for fragment in fragments {
            let at = all.len();
            all.resize(at + fragment.len(), 0);
            fragment.copy_to(&mut all[at..]);
        }
        all
    }

    #[test]
    fn adjacent_inline_octets_are_one_fragment() {
        let mut scratch = Scratch::default();
        let mut fragments = Fragments::new();
        let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
        frame.push_inline(b"ab");
        frame.push_inline(b"c");
        frame.push_memory(Fragment::from_slice(b"DEF"));
        frame.push_inline(b"g");
        assert_eq!(frame.finish(), 7);
        assert_eq!(fragments.len(), 3);
        assert_eq!(octets(&fragments), b"abcDEFg");
    }

    #[test]
    fn a_frame_with_too_many_fragments_keeps_its_first_octets() {
        let mut scratch = Scratch::default();
        let mut fragments = Fragments::new();
        let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
        for _ in 0..FRAGMENTS_MAX {
            frame.push_inline(b"i");
            frame.push_memory(Fragment::from_slice(b"m"));
        }
        assert_eq!(frame.finish(), FRAGMENTS_MAX);
        assert!(octets(&fragments).starts_with(b"imimim"));
    }
}
