//! A payload in fragments, taken piece by piece.

use crate::SharedSlice;

/// The rest of a payload that is taken front to back, a number of bytes at a time.
#[derive(Debug)]
pub struct Cursor<'p, 'a> {
    /// The rest of a fragment.
    part: Option<SharedSlice<'a>>,
    fragments: std::slice::Iter<'p, SharedSlice<'a>>,
}

impl<'p, 'a> Cursor<'p, 'a> {
    /// Creates a cursor over a whole payload.
    #[must_use]
    #[inline]
    pub fn of(payload: &'p [SharedSlice<'a>]) -> Self {
        Self { part: None, fragments: payload.iter() }
    }

    /// Calls `each` with the runs of the next `len` bytes, or of the rest if it is shorter.
    #[inline]
    pub fn take(&mut self, len: usize, mut each: impl FnMut(SharedSlice<'a>)) {
        let mut left = len;
        while left > 0
            && let Some(fragment) = self.part.take().or_else(|| self.fragments.next().copied())
        {
            let taken = fragment.len().min(left);
            if taken < fragment.len() {
                self.part = Some(fragment.part(taken, fragment.len() - taken));
            }
            each(fragment.part(0, taken));
            left -= taken;
        }
    }
}
