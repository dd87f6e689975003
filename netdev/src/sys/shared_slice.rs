//! Slices without references: runs of memory that others may access at any moment.
#![allow(unsafe_code, reason = "reads memory that may change under it")]

use std::marker::PhantomData;

use super::copy::copy_out;
use super::sum::ones_complement_sum;

/// A run of readable memory that other threads, other processes or a peer's data may change at any
/// moment.
///
/// A slice is a pair of address and length whose lifetime is bound to the mapping. It is never a
/// `&[u8]`: its bytes can only be copied out, or its address handed to the kernel. If bytes change
/// during a read, each byte is read either old or new.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'r> {
    ptr: *const u8,
    len: usize,
    memory: PhantomData<&'r ()>,
}

impl<'r> SharedSlice<'r> {
    /// A shared slice over ordinary memory, which does not change: inline data, frame bytes.
    #[must_use]
    pub const fn from_bytes(bytes: &'r [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), memory: PhantomData }
    }

    /// A shared slice over `len` bytes at `ptr`.
    ///
    /// # Safety
    /// For all of `'r`, the `len` bytes at `ptr` must be mapped, readable and inside one
    /// allocation, `len` must not exceed `isize::MAX`, and they must be written only by atomics, by
    /// the copies of [`shared_memory`](crate::shared_memory), or from outside the process.
    #[must_use]
    pub const unsafe fn from_raw_parts(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the slice has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for devices that hand it to the kernel.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The `len` bytes from `start` on.
    ///
    /// # Panics
    /// If they are not inside the slice: a bug of the caller, which a peer cannot cause.
    #[inline]
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Self {
        let is_inside = start <= self.len && len <= self.len - start;
        assert!(is_inside, "part outside its shared slice");
        // SAFETY: `start <= self.len`, so this is inside, or one past, the run that the
        // constructor vouched for.
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

    /// Copies `bytes.len()` bytes from `offset` on to `bytes`.
    ///
    /// # Panics
    /// If they are not inside the slice: a bug of the caller, which a peer cannot cause.
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.part(offset, bytes.len());
        // SAFETY: `from` is readable for `bytes.len()` bytes and written only as `copy_out`
        // allows; `bytes` is borrowed mutably, so it cannot overlap what other code may access.
        unsafe { copy_out(from.ptr, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_equals_the_sum_of_rfc_1071() {
        let octets: Vec<u8> = (0..=255).cycle().take(1600).collect();
        for len in [0, 1, 2, 511, 512, 513, 1023, 1024, 1025, 1600] {
            // RFC 1071 §1: adjacent bytes paired to words, carries added at the end.
            let words = octets[..len].chunks(2);
            let sum: u64 = words
                .map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0)))
                .sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            let found = SharedSlice::from_bytes(&octets[..len]).ones_complement_sum();
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
                SharedSlice::from_bytes(&source[from..from + len])
                    .copy_out(0, &mut destination[to..to + len]);
                assert_eq!(destination[to..to + len], source[from..from + len], "{len} octets");
                assert!(destination[..to].iter().all(|&octet| octet == 0xee), "before {len}");
                assert!(destination[to + len..].iter().all(|&octet| octet == 0xee), "after {len}");
            }
        }
    }

    #[test]
    fn part_has_the_requested_address_and_length() {
        let bytes: Vec<u8> = (0..100).collect();
        let slice = SharedSlice::from_bytes(&bytes);
        let part = slice.part(10, 50).part(5, 3);
        let mut out = [0; 3];
        part.copy_out(0, &mut out);
        assert_eq!(out, [15, 16, 17]);
        assert_eq!(part.len(), 3);
        assert!(slice.part(100, 0).is_empty());
    }

    #[test]
    #[should_panic(expected = "part outside its shared slice")]
    fn a_part_beyond_the_end_is_a_bug() {
        assert!(SharedSlice::from_bytes(&[0; 8]).part(4, 5).is_empty());
    }

    #[test]
    #[should_panic(expected = "part outside its shared slice")]
    fn a_part_that_wraps_is_a_bug() {
        assert!(SharedSlice::from_bytes(&[0; 8]).part(4, usize::MAX).is_empty());
    }

    #[test]
    #[should_panic(expected = "part outside its shared slice")]
    fn a_copy_beyond_the_end_is_a_bug() {
        SharedSlice::from_bytes(&[1, 2, 3]).copy_out(0, &mut [0; 4]);
    }
}
