//! Writes a frame as runs of bytes: by reference in published memory, or copied.

use crate::SharedSlice;
use crate::published::readable::Readable;

/// Shortest fragment that is sent by reference. Copying a shorter one takes less time than the
/// reader needs to fetch one more descriptor and cache lines.
pub(crate) const REFERRED_LEN_MIN: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<N> {
    /// Region of the bytes. The memory of copied bytes counts as a region.
    pub(crate) region: N,
    pub(crate) len: u32,
    pub(crate) offset: u64,
}

pub(crate) trait RunMemory {
    type Name: Copy + PartialEq;

    /// Returns the region and the offset of copied byte `at`.
    fn place(&self, at: usize) -> (Self::Name, u64);
    /// Copies bytes to copied byte `at`.
    fn copy(&self, at: usize, octets: SharedSlice<'_>);
    /// Writes the run `index`. `has_next` is true if another run follows.
    fn write(&self, index: usize, run: Run<Self::Name>, has_next: bool);
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) runs: usize,
    pub(crate) copied: usize,
    /// Bytes that the peer reads in place.
    pub(crate) referred: usize,
}

/// Writer of the runs of one frame. Bytes that follow a run directly extend it.
pub(crate) struct RunWriter<'a, M: RunMemory> {
    pub(crate) memory: M,
    readable: &'a mut Readable<M::Name>,
    runs_max: usize,
    open: Option<Run<M::Name>>,
    written: Written,
}

impl<'a, M: RunMemory> RunWriter<'a, M> {
    #[inline]
    pub(crate) const fn new(
        memory: M,
        readable: &'a mut Readable<M::Name>,
        runs_max: usize,
    ) -> Self {
        let written = Written { runs: 0, copied: 0, referred: 0 };
        Self { memory, readable, runs_max, open: None, written }
    }

    /// Appends bytes, by reference if they are in published memory.
    #[inline]
    pub(crate) fn put(&mut self, octets: SharedSlice<'_>) {
        match self.find(octets) {
            Some(place) => self.refer(place, octets.len()),
            None => self.copy(octets),
        }
    }

    /// Returns region and offset of bytes that can be sent by reference: not if they are few or not
    /// in published memory, or no run would be left for the rest of the frame.
    #[inline]
    pub(crate) fn find(&mut self, octets: SharedSlice<'_>) -> Option<(M::Name, u64)> {
        // The open run is not counted yet, and one run is for all copied bytes behind this one.
        let refers = octets.len() >= REFERRED_LEN_MIN && self.written.runs + 3 <= self.runs_max;
        refers.then(|| self.readable.find(octets)).flatten()
    }

    /// `place` is what [`find`](Self::find) has returned.
    #[inline]
    pub(crate) fn refer(&mut self, place: (M::Name, u64), len: usize) {
        self.push(place, len);
        self.written.referred += len;
    }

    #[inline]
    pub(crate) fn copy(&mut self, octets: SharedSlice<'_>) {
        let at = self.reserve(octets.len());
        self.memory.copy(at, octets);
    }

    /// The caller copies the `len` bytes behind the offset returned.
    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> usize {
        let at = self.written.copied;
        self.written.copied += len;
        self.push(self.memory.place(at), len);
        at
    }

    #[inline]
    fn push(&mut self, (region, offset): (M::Name, u64), len: usize) {
        if len == 0 {
            return;
        }
        let len = u32::try_from(len).expect("no more than a frame");
        if let Some(open) = &mut self.open
            && open.region == region
            && open.offset + u64::from(open.len) == offset
        {
            open.len += len;
            return;
        }
        self.close(true);
        self.open = Some(Run { region, len, offset });
    }

    #[inline]
    fn close(&mut self, has_next: bool) {
        if let Some(open) = self.open.take() {
            self.memory.write(self.written.runs, open, has_next);
            self.written.runs += 1;
        }
    }

    #[inline]
    pub(crate) fn finish(mut self) -> Written {
        self.close(false);
        self.written
    }
}
