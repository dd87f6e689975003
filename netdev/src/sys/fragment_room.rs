//! Room for the fragments of one frame after the other.
#![expect(unsafe_code, reason = "the room crosses threads, fragments do not")]

use std::fmt;

use crate::Fragment;

/// A list of fragments that keeps its allocation between frames.
pub(crate) struct FragmentRoom {
    /// Empty between uses.
    room: Vec<Fragment<'static>>,
}

// SAFETY: between uses the list is empty, so no address crosses to another thread with it.
unsafe impl Send for FragmentRoom {}

impl FragmentRoom {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { room: Vec::with_capacity(capacity) }
    }

    /// Lends an empty list to `user`.
    #[inline]
    pub(crate) fn lend<'a, R>(&mut self, user: impl FnOnce(&mut Vec<Fragment<'a>>) -> R) -> R {
        let mut list: Vec<Fragment<'a>> = std::mem::take(&mut self.room);
        let result = user(&mut list);
        list.clear();
        // Of no fragment, into the same allocation: that is what std does with a list that becomes one
        // of elements of the same size, and a test holds it to that.
        self.room = list.into_iter().map(|_| Fragment::from_slice(&[])).collect();
        result
    }
}

impl fmt::Debug for FragmentRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FragmentRoom").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocation_is_kept() {
        let mut room = FragmentRoom::new(100);
        let at = room.room.as_ptr();
        for _ in 0..3 {
            let octets = [7; 10];
            let fragment = Fragment::from_slice(&octets);
            room.lend(|list| {
                assert!(list.is_empty());
                list.extend([fragment; 100]);
            });
            assert_eq!((room.room.as_ptr(), room.room.capacity(), room.room.len()), (at, 100, 0));
        }
    }
}
