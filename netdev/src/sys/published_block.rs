//! Parts of published memory that are ordinary memory to this process.
#![expect(unsafe_code, reason = "slices of a mapping")]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::published::PublishedMemory;

/// A run of [published](crate::published) memory that its owner alone writes, and that peers may read.
///
/// What it is for is what is written once and then sent: it is a slice like any other. No process that has
/// the memory's descriptor can write it, so nothing changes behind the slice.
#[derive(Debug)]
pub struct PublishedBlock {
    memory: Arc<PublishedMemory>,
    /// Where it begins in the memory.
    at: usize,
    len: usize,
}

impl PublishedBlock {
    /// All blocks of `len` octets that `memory` has.
    pub(crate) fn of(memory: PublishedMemory, len: usize) -> Vec<Self> {
        let memory = Arc::new(memory);
        let block = |index: usize| Self { memory: Arc::clone(&memory), at: index * len, len };
        (0..memory.len() / len).map(block).collect()
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: `of` has made only blocks that are inside the memory.
        unsafe { self.memory.as_ptr().add(self.at) }
    }
}

impl Deref for PublishedBlock {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` octets from there on are mapped, readable and initialised (a new file is all
        // zero) for as long as `self` is borrowed. Nothing writes them meanwhile: the mapping belongs to
        // the blocks of `of` alone, which do not overlap, each is written through `&mut self` only, and
        // other processes can map the file only to read it.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for PublishedBlock {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable, and `self` is borrowed mutably. That other
        // processes read the memory behind it is nothing that happens in this program.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}
