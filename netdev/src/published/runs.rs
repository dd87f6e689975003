//! Writes a frame as runs of bytes: by reference in published memory, or copied.

use crate::SharedSlice;
use crate::published::readable::Readable;

/// Shortest fragment that is sent by reference. Copying a shorter one takes less time than the
/// reader needs to fetch one more descriptor and the cache lines that it refers to.
pub(crate) const REFERRED_LEN_MIN: usize = 256;

/// Contiguous bytes of a frame, for the peer to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<N> {
    /// Region of the bytes. The memory of copied bytes counts as a region.
    pub(crate) region: N,
    pub(crate) len: u32,
    /// Offset in the region, in bytes.
    pub(crate) offset: u64,
}

/// Memory for the runs and the copied bytes of one frame.
pub(crate) trait RunMemory {
    /// Name of a region.
    type Name: Copy + PartialEq;

    /// Returns the region and the offset of copied byte `at`.
    fn place(&self, at: usize) -> (Self::Name, u64);
    /// Copies bytes to copied byte `at`.
    fn copy(&self, at: usize, octets: SharedSlice<'_>);
    /// Writes the run `index`. `has_next` is true if another run follows.
    fn write(&self, index: usize, run: Run<Self::Name>, has_next: bool);
}

/// Result of writing a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) runs: usize,
    /// Bytes copied.
    pub(crate) copied: usize,
    /// Bytes that the peer reads in place.
    pub(crate) referred: usize,
}

/// Writer of the runs of one frame. Bytes that follow a run directly extend it.
pub(crate) struct RunWriter<'a, M: RunMemory> {
    pub(crate) memory: M,
    /// Current for as long as the frame is written.
    readable: &'a mut Readable<M::Name>,
    runs_max: usize,
    /// Last run, not written yet.
    open: Option<Run<M::Name>>,
    written: Written,
}

impl<'a, M: RunMemory> RunWriter<'a, M> {
    /// Creates a writer of at most `runs_max` runs, at least 1.
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

    /// Returns region and offset of bytes that can be sent by reference. `None` if the bytes must
    /// be copied: they are few, they are not in published memory, or there would be no run left for
    /// the rest of the frame.
    #[inline]
    pub(crate) fn find(&mut self, octets: SharedSlice<'_>) -> Option<(M::Name, u64)> {
        // The open run is not counted yet, and one run is for all copied bytes behind this one.
        let refers = octets.len() >= REFERRED_LEN_MIN && self.written.runs + 3 <= self.runs_max;
        refers.then(|| self.readable.find(octets)).flatten()
    }

    /// Appends bytes by reference to the place that [`find`](Self::find) has returned.
    #[inline]
    pub(crate) fn refer(&mut self, place: (M::Name, u64), len: usize) {
        self.push(place, len);
        self.written.referred += len;
    }

    /// Appends bytes, copied.
    #[inline]
    pub(crate) fn copy(&mut self, octets: SharedSlice<'_>) {
        let at = self.reserve(octets.len());
        self.memory.copy(at, octets);
    }

    /// Appends `len` bytes that the caller copies into the memory. Returns the number of copied
    /// bytes before them.
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

    /// Writes the last run.
    #[inline]
    pub(crate) fn finish(mut self) -> Written {
        self.close(false);
        self.written
    }
}
