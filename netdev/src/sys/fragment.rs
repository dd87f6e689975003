//! Readable memory that other threads or processes may write at any moment.
#![allow(unsafe_code, reason = "reads memory that may change under it")]

use std::marker::PhantomData;

use super::copy::copy_out;
use super::sum::ones_complement_sum;

/// Run of readable memory that may change while it is read.
///
/// A fragment usually points into memory registered for remote access: the engine thread may place
/// a peer's data there, and application threads may store into it, while a device gathers it. So a
/// fragment is never a `&[u8]`: its bytes can only be copied out, or its address handed to the
/// kernel.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    ptr: *const u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> Fragment<'a> {
    /// Creates a fragment of ordinary memory that does not change.
    #[must_use]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), memory: PhantomData }
    }

    /// Creates a fragment of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// For all of `'a`, the `len` bytes at `ptr` must be mapped and readable, and `len` must not
    /// exceed `isize::MAX`. Other threads may write them.
    #[must_use]
    pub const unsafe fn from_raw_parts(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the fragment has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte, for devices that hand it to the kernel.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Returns `len` bytes of the fragment from `start` on.
    ///
    /// # Panics
    /// If they are not inside the fragment.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Self {
        assert!(start <= self.len && len <= self.len - start, "part outside its fragment");
        // SAFETY: `start <= self.len`, so the result is inside (or one past) the allocation that
        // the caller of `from_raw_parts`, or `from_slice`, guaranteed.
        let ptr = unsafe { self.ptr.add(start) };
        Self { ptr, len, memory: PhantomData }
    }

    /// Returns the internet checksum's ones' complement sum of the bytes as big-endian 16-bit
    /// words, an odd last byte padded with zero; folded, not inverted (RFC 1071).
    #[must_use]
    #[inline]
    pub fn ones_complement_sum(&self) -> u16 {
        // SAFETY: the constructor's caller guaranteed `self.len` readable bytes at `self.ptr`.
        unsafe { ones_complement_sum(self.ptr, self.len) }
    }

    /// Copies the fragment into `dst`.
    ///
    /// Each byte that changes meanwhile is copied with its old or its new value; there is no other
    /// effect.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_to(&self, dst: &mut [u8]) {
        assert_eq!(self.len, dst.len(), "fragment copied to a buffer of another length");
        // SAFETY: the constructor's caller guaranteed `self.len` readable bytes at `self.ptr`;
        // `dst` has the same length and, being `&mut`, cannot overlap them.
        unsafe { copy_out(self.ptr, dst) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragment_sum_equals_the_sum_of_rfc_1071() {
        let octets: Vec<u8> = (0..=255).cycle().take(1600).collect();
        for len in [0, 1, 2, 511, 512, 513, 1023, 1024, 1025, 1600] {
            // RFC 1071 §1: adjacent bytes paired to words, carries added at the end.
            let words = octets[..len].chunks(2);
            let sum: u64 = words
                .map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0)))
                .sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            let found = Fragment::from_slice(&octets[..len]).ones_complement_sum();
            assert_eq!(u64::from(found), sum, "{len} octets");
        }
    }

    #[test]
    fn every_length_is_copied_exactly_at_any_alignment() {
        let source: Vec<u8> =
            (0..1300).map(|i: u32| i.wrapping_mul(167).to_le_bytes()[0]).collect();
        for len in (0..=600).chain([1024, 1151, 1152, 1153, 1255]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (7, 2), (16, 9), (31, 33)] {
                let mut destination = vec![0xee; to + len + 8];
                Fragment::from_slice(&source[from..from + len])
                    .copy_to(&mut destination[to..to + len]);
                assert_eq!(destination[to..to + len], source[from..from + len], "{len} octets");
                assert!(destination[..to].iter().all(|&octet| octet == 0xee), "before {len}");
                assert!(destination[to + len..].iter().all(|&octet| octet == 0xee), "after {len}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "another length")]
    fn a_copy_to_another_length_is_refused() {
        Fragment::from_slice(&[1, 2, 3]).copy_to(&mut [0; 4]);
    }

    #[test]
    #[should_panic(expected = "outside its fragment")]
    fn a_part_outside_its_fragment_is_refused() {
        let part = Fragment::from_slice(&[1, 2, 3]).part(2, usize::MAX);
        assert!(part.is_empty(), "not reached");
    }

    #[test]
    fn a_part_is_where_it_should_be() {
        let mut octets = [0; 2];
        Fragment::from_slice(&[1, 2, 3, 4]).part(1, 2).copy_to(&mut octets);
        assert_eq!(octets, [2, 3]);
    }
}
