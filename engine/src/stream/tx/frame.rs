//! Assembly of one frame's payload. Runs of registered memory are referenced in place, or copied if
//! that is faster. CRCs are computed here, or left to a device that computes them while copying.

use arrayvec::ArrayVec;
use urnic_netdev::Digest;

use crate::limits::{FRAGMENTS_MAX, FRAME_PAYLOAD_MAX};
use crate::mem::{SharedSlice, copy_and_digest};
use crate::stream::tx::send_path::SendPath;
use crate::wire::crc32c::Crc32c;
use crate::wire::ddp::TaggedHeader;
use crate::wire::mpa::{CRC_LEN, FPDU_HEADER_LEN as LENGTH_LEN};

/// Fragments of one frame, on the stack. Filled in place, since it is too large to be returned.
pub type Fragments<'a> = ArrayVec<SharedSlice<'a>, FRAGMENTS_MAX>;

/// CRCs that the device computes; each needs a fragment of payload and one before it.
pub(crate) type Digests = ArrayVec<Digest, { FRAGMENTS_MAX / 2 + 1 }>;

/// Memory for copied bytes of frames, for all frames of a port or of a thread.
#[derive(Debug)]
pub struct Scratch {
    octets: Box<[u8]>,
    /// Runs of at least this length are referenced in place; shorter runs are copied.
    gather_len_min: usize,
    /// Payload that markers cut into runs is copied, however long the runs are, if it has a CRC.
    stages_marked: bool,
    /// CRCs of payload that is referenced in place are left to the device.
    leaves_digests: bool,
}

impl Scratch {
    /// Scratch for frames that follow `path`, on a device that gathers runs of at least
    /// `device_gather_len_min` bytes faster than it accepts a copy.
    #[must_use]
    pub fn new(path: SendPath, device_gather_len_min: usize) -> Self {
        let stages_marked = path.stages_marked();
        Self { stages_marked, ..Self::referring_from(path.gather_len_min(device_gather_len_min)) }
    }

    fn referring_from(gather_len_min: usize) -> Self {
        let octets = vec![0; FRAME_PAYLOAD_MAX].into_boxed_slice();
        Self { octets, gather_len_min, stages_marked: false, leaves_digests: false }
    }

    /// Sets whether the device computes digests
    /// ([`Capabilities::tx_digest`](urnic_netdev::Capabilities::tx_digest)).
    pub(crate) const fn leave_digests(&mut self, leaves: bool) {
        self.leaves_digests = leaves;
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new(SendPath::Gather, 0)
    }
}

#[derive(Debug)]
pub(crate) struct FrameBuilder<'a, 'f> {
    /// Unused part of the scratch. Its first `open_len` bytes are written and still grow.
    scratch: &'a mut [u8],
    open_len: usize,
    fragments: &'f mut Fragments<'a>,
    digests: Option<&'f mut Digests>,
    len: usize,
    full: bool,
    gather_len_min: usize,
    stages_marked: bool,
    staged: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) len: usize,
    /// Bytes among `len` that were copied from registered memory.
    pub(crate) staged: usize,
}

impl<'a, 'f> FrameBuilder<'a, 'f> {
    pub(crate) fn new(scratch: &'a mut Scratch, fragments: &'f mut Fragments<'a>) -> Self {
        let &mut Scratch { ref mut octets, gather_len_min, stages_marked, .. } = scratch;
        Self {
            scratch: octets,
            open_len: 0,
            fragments,
            digests: None,
            len: 0,
            full: false,
            gather_len_min,
            stages_marked,
            staged: 0,
        }
    }

    /// Builder that records the digests left to the device in `digests`.
    #[inline]
    pub(crate) fn with_digests(
        scratch: &'a mut Scratch,
        fragments: &'f mut Fragments<'a>,
        digests: &'f mut Digests,
    ) -> Self {
        let leaves_digests = scratch.leaves_digests;
        Self { digests: leaves_digests.then_some(digests), ..Self::new(scratch, fragments) }
    }

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

    /// The length known at compile time avoids a call.
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

    /// Returns true if payload in runs of `run_len` bytes is copied into the frame.
    #[inline]
    pub(crate) const fn stages(&self, run_len: usize) -> bool {
        run_len < self.gather_len_min
    }

    /// Like [`stages`](Self::stages), for `len` bytes that markers may cut into runs of `run_len`.
    #[inline]
    pub(crate) const fn stages_run(&self, len: usize, run_len: usize, crc: bool) -> bool {
        self.stages(run_len) || (run_len < len && crc && self.stages_marked)
    }

    #[inline]
    pub(crate) fn stage(&mut self, run: SharedSlice<'_>) {
        let end = self.open_len + run.len();
        match self.scratch.get_mut(self.open_len..end) {
            Some(room) if !self.full => {
                run.copy_out(0, room);
                self.open_len = end;
                self.staged += run.len();
            }
            _ => self.full = true,
        }
    }

    /// Lets `write` fill the next `len` bytes, `staged` of them from registered memory.
    #[inline]
    pub(crate) fn write_copied(
        &mut self,
        len: usize,
        staged: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let end = self.open_len + len;
        match self.scratch.get_mut(self.open_len..end) {
            Some(room) if !self.full => {
                write(room);
                self.open_len = end;
                self.staged += staged;
            }
            _ => self.full = true,
        }
    }

    #[inline]
    pub(crate) fn leaves_digests(&self) -> bool {
        self.digests.as_ref().is_some_and(|digests| !digests.is_full())
    }

    #[inline]
    pub(crate) fn position(&self) -> u32 {
        u32::try_from(self.len + self.open_len).unwrap_or(u32::MAX)
    }

    /// Appends a CRC that is [left to the device](Self::leaves_digests), over the bytes since
    /// `from` and the state of `crc`.
    #[inline]
    pub(crate) fn push_digest(&mut self, from: u32, crc: Crc32c, is_scattered: bool) {
        let at = self.position();
        self.push_array(&[0; Digest::LEN]);
        let digest = Digest { from, at, register: crc.state(), is_scattered };
        let noted = self.digests.as_mut().is_some_and(|digests| digests.try_push(digest).is_ok());
        self.full |= !noted;
    }

    /// The CRC covers the copied bytes, even if the memory changes.
    #[inline]
    pub(crate) fn stage_and_digest(&mut self, run: SharedSlice<'_>, crc: &mut Crc32c) {
        let end = self.open_len + run.len();
        match self.scratch.get_mut(self.open_len..end) {
            Some(room) if !self.full => {
                *crc = Crc32c::from_state(copy_and_digest(crc.state(), run, room));
                self.open_len = end;
                self.staged += run.len();
            }
            _ => self.full = true,
        }
    }

    #[inline]
    pub(crate) const fn mark(&self) -> Mark {
        Mark(self.open_len)
    }

    /// CRC of the bytes copied since the mark. No memory may have been referenced since then.
    #[inline]
    pub(crate) fn digest_from(&self, mark: Mark) -> Crc32c {
        let mut crc = Crc32c::new();
        crc.update(&self.scratch[mark.0..self.open_len]);
        crc
    }

    #[inline]
    pub(crate) fn push_memory(&mut self, run: SharedSlice<'a>) {
        if !self.full {
            self.close_inline();
            self.push(run);
        }
    }

    /// Completes the frame. Bytes for which there was no room are missing at its end.
    pub(crate) fn finish(mut self) -> Finished {
        self.close_inline();
        Finished { len: self.len, staged: self.staged }
    }

    #[inline]
    fn close_inline(&mut self) {
        if self.open_len > 0 {
            let (done, rest) = std::mem::take(&mut self.scratch).split_at_mut(self.open_len);
            self.scratch = rest;
            self.open_len = 0;
            self.push(SharedSlice::from_bytes(done));
        }
    }

    #[inline]
    fn push(&mut self, fragment: SharedSlice<'a>) {
        let len = fragment.len();
        if self.fragments.try_push(fragment).is_ok() {
            self.len += len;
        } else {
            self.full = true;
        }
    }
}

/// Bytes of the length and header of a tagged FPDU.
const HEAD_LEN: usize = LENGTH_LEN + TaggedHeader::LEN;

/// For the usual lengths, of a head and of a marker or CRC, the compiler generates moves, no call.
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
    use crate::wire::crc32c::crc32c;

    fn octets(fragments: &Fragments<'_>) -> Vec<u8> {
        let mut all = Vec::new();
        for fragment in fragments {
            let at = all.len();
            all.resize(at + fragment.len(), 0);
            fragment.copy_out(0, &mut all[at..]);
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
        frame.push_memory(SharedSlice::from_bytes(b"DEF"));
        frame.push_inline(b"g");
        assert_eq!(frame.finish(), Finished { len: 7, staged: 0 });
        assert_eq!(fragments.len(), 3);
        assert_eq!(octets(&fragments), b"abcDEFg");
    }

    #[test]
    fn copied_run_and_adjacent_headers_are_one_fragment() {
        let memory: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let mut scratch = Scratch::referring_from(500);
        let mut fragments = Fragments::new();
        let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
        assert!(frame.stages(499) && !frame.stages(500));
        frame.push_inline(b"before");
        let mark = frame.mark();
        frame.push_inline(b"head");
        frame.stage(SharedSlice::from_bytes(&memory[..499]));
        frame.push_inline(b"mark");
        frame.stage(SharedSlice::from_bytes(&memory[499..]));
        let covered = [b"head", &memory[..499], b"mark", &memory[499..]].concat();
        assert_eq!(frame.digest_from(mark).finish(), crc32c(&covered));
        frame.push_inline(b"tail");
        let len = covered.len() + 10;
        assert_eq!(frame.finish(), Finished { len, staged: 1000 });
        assert_eq!(fragments.len(), 1);
        assert_eq!(octets(&fragments), [b"before", &covered[..], b"tail"].concat());
    }

    #[test]
    fn send_path_decides_if_marker_cut_payload_is_copied() {
        for (path, stages) in
            [(SendPath::Auto, true), (SendPath::Gather, false), (SendPath::Stage, false)]
        {
            let (mut scratch, mut fragments) = (Scratch::new(path, 0), Fragments::new());
            let frame = FrameBuilder::new(&mut scratch, &mut fragments);
            let notice = path == SendPath::Stage;
            assert_eq!(frame.stages_run(509, 508, true), stages || notice, "{path:?}");
            assert_eq!(frame.stages_run(509, 508, false), notice, "{path:?}");
            assert_eq!(frame.stages_run(508, 508, true), notice, "{path:?}");
            // `SendPath::Stage` copies all payload anyway.
            assert_eq!(frame.stages(508), notice, "{path:?}");
        }
    }

    #[test]
    fn a_frame_with_too_many_fragments_keeps_its_first_octets() {
        let mut scratch = Scratch::default();
        let mut fragments = Fragments::new();
        let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
        for _ in 0..FRAGMENTS_MAX {
            frame.push_inline(b"i");
            frame.push_memory(SharedSlice::from_bytes(b"m"));
        }
        assert_eq!(frame.finish().len, FRAGMENTS_MAX);
        assert!(octets(&fragments).starts_with(b"imimim"));
    }

    #[test]
    fn copied_payload_beyond_the_scratch_ends_the_frame() {
        let memory = vec![7; FRAME_PAYLOAD_MAX];
        let mut scratch = Scratch::new(SendPath::Stage, 0);
        let mut fragments = Fragments::new();
        let mut frame = FrameBuilder::new(&mut scratch, &mut fragments);
        frame.stage(SharedSlice::from_bytes(&memory[1..]));
        frame.stage(SharedSlice::from_bytes(&memory[..2]));
        frame.push_inline(b"i");
        let staged = FRAME_PAYLOAD_MAX - 1;
        assert_eq!(frame.finish(), Finished { len: staged, staged });
    }
}
