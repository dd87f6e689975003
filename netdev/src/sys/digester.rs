//! Digest computed in the copying pass, by code of the layer above.
#![expect(unsafe_code, reason = "calls code that copies between places given by address")]

use super::shared_slice::SharedSlice;

/// Copies `len` bytes from the first address to the second and adds them, as stored or as they are
/// there afterwards, to a digest's register, which it returns.
///
/// # Safety
/// The first address must be readable and the second writable for `len` bytes, without overlap;
/// others may access both meanwhile as for [`copy_across`](crate::shared_memory::copy_across).
pub type CopyAndDigest = unsafe fn(register: u32, from: *const u8, to: *mut u8, len: usize) -> u32;

/// Adds `len` bytes at an address to a digest's register, which it returns.
///
/// # Safety
/// The address must be readable for `len` bytes; others may access them meanwhile.
pub type AppendToDigest = unsafe fn(register: u32, from: *const u8, len: usize) -> u32;

/// Functions that compute a digest with a register of 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct Digester {
    copy: CopyAndDigest,
    append: AppendToDigest,
}

impl Digester {
    /// Combines two functions.
    ///
    /// # Safety
    /// Both functions must keep the contracts of [`CopyAndDigest`] and [`AppendToDigest`]: they
    /// access only the given bytes, and allow for accesses of others meanwhile, as relaxed atomics
    /// do.
    #[must_use]
    pub const unsafe fn new(copy: CopyAndDigest, append: AppendToDigest) -> Self {
        Self { copy, append }
    }

    /// Panics if the lengths differ.
    #[inline]
    pub(crate) fn copy(&self, register: u32, from: SharedSlice<'_>, to: &mut [u8]) -> u32 {
        assert_eq!(from.len(), to.len(), "a copy is as long as its source");
        // SAFETY: a fragment is readable for its length; `to` has the same length and, being
        // `&mut`, does not overlap with anything that others access.
        unsafe { self.copy_raw(register, from, to.as_mut_ptr()) }
    }

    /// # Safety
    /// The address must be writable for the fragment's length, without overlap with the fragment;
    /// others may access it meanwhile.
    #[inline]
    pub(super) unsafe fn copy_raw(&self, register: u32, from: SharedSlice<'_>, to: *mut u8) -> u32 {
        // SAFETY: a fragment is readable for its length, the caller guarantees `to`, and the
        // constructor's caller the function.
        unsafe { (self.copy)(register, from.as_ptr(), to, from.len()) }
    }

    #[inline]
    pub(crate) fn append(&self, register: u32, octets: SharedSlice<'_>) -> u32 {
        // SAFETY: a fragment is readable for its length; the constructor's caller guarantees the
        // function.
        unsafe { (self.append)(register, octets.as_ptr(), octets.len()) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sys::copy::copy_across;

    /// Adds a byte to a register that depends on the order of the bytes.
    fn add(register: u32, octet: u8) -> u32 {
        register.rotate_left(5) ^ u32::from(octet).wrapping_mul(0x9e37_79b1)
    }

    unsafe fn append(register: u32, from: *const u8, len: usize) -> u32 {
        // SAFETY: the caller's contract, and nothing changes in a test.
        let octets = unsafe { std::slice::from_raw_parts(from, len) };
        octets.iter().fold(register, |register, octet| add(register, *octet))
    }

    unsafe fn copy(register: u32, from: *const u8, to: *mut u8, len: usize) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { copy_across(from, to, len) };
        // SAFETY: as above.
        unsafe { append(register, from, len) }
    }

    // SAFETY: both access only the given bytes, in tests in which nothing changes meanwhile.
    pub(crate) static ADDER: Digester = unsafe { Digester::new(copy, append) };

    /// Returns the field of a digest over `octets`.
    pub(crate) fn field(register: u32, octets: &[u8]) -> [u8; 4] {
        (!octets.iter().fold(register, |register, octet| add(register, *octet))).to_le_bytes()
    }
}
