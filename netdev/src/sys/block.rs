//! Mapping divided into blocks that are ordinary memory to their owners.
#![expect(unsafe_code, reason = "slices of a mapping")]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::sys::shared_mapping::SharedMapping;

/// A block of a mapping that no other process writes.
#[derive(Debug)]
pub(crate) struct Block {
    mapping: Arc<SharedMapping>,
    /// Offset in the mapping.
    at: usize,
    len: usize,
}

impl Block {
    /// Divides a mapping into blocks of `len` bytes. The mapping must be of a file that other
    /// processes can map only for reading.
    pub(crate) fn all_of(mapping: SharedMapping, len: usize) -> impl Iterator<Item = Self> {
        let mapping = Arc::new(mapping);
        let count = mapping.len().checked_div(len).unwrap_or(0);
        (0..count).map(move |index| Self { mapping: Arc::clone(&mapping), at: index * len, len })
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: `all_of` created only blocks that are inside the mapping.
        unsafe { self.mapping.as_ptr().add(self.at) }
    }
}

impl Deref for Block {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // The mapping belongs to the blocks of `all_of` alone, which do not overlap, and other
        // processes can map the file only for reading: a block is written through `&mut self` only.
        //
        // SAFETY: `len` bytes from there on are mapped, readable and initialised (a new file is all
        // zero) for as long as `self` is borrowed, and nothing writes them meanwhile.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable, and `self` is borrowed mutably. Other
        // processes only read the memory behind it.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}
