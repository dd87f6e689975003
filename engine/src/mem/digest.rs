//! CRC32c over memory that may change meanwhile, alone and together with a copy. The transmit path
//! reads each payload byte once for the CRC, and the device gathers it: if bytes change between,
//! the FPDU has a wrong CRC. Memory that may change at any time, the source of a Read Response, is
//! copied in the same pass (`copy_and_digest`). The loads are in assembly, for the reason given in
//! `copy` of the devices. **Copies are always out of shared memory.** RFC 5044 §6 passes a ULPDU up
//! only if its CRC is good, and the same CRC covers the header, which says where the payload goes.
//! So reception first digests and then places, while the bytes are in the nearest cache.
#![allow(unsafe_code, reason = "reads memory that may change under it")]

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fold512;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod interleaved;
mod kernel;
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod lanes;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod polynomial;
mod portable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod quadwords;

pub use kernel::Kernel;

use urnic_netdev::{Digester, SharedSlice};

/// Adds `slice` to the raw register `state`: all ones at the start; the CRC is its complement at
/// the end (RFC 5044 §4.4, RFC 3720 §12.1). Bytes that change meanwhile count as old or new.
#[inline]
#[must_use]
pub(crate) fn crc32c_append_shared(state: u32, slice: SharedSlice<'_>) -> u32 {
    Kernel::chosen().append(state, slice)
}

/// Copies `from` to `to` and adds the copied bytes to a running CRC32c: the bytes that `to` has
/// afterwards, even if `from` changes meanwhile.
///
/// # Panics
/// If the lengths differ: a bug of the caller.
#[inline]
#[must_use]
pub(crate) fn copy_and_digest(state: u32, from: SharedSlice<'_>, to: &mut [u8]) -> u32 {
    Kernel::chosen().copy(state, from, to)
}

// SAFETY: both functions access only the bytes that they are given, and tolerate access by others.
pub(crate) static CRC32C: Digester = unsafe { Digester::new(copy_raw, append_raw) };

/// # Safety
/// As [`CopyAndDigest`](urnic_netdev::frame::CopyAndDigest) says.
unsafe fn copy_raw(state: u32, from: *const u8, to: *mut u8, len: usize) -> u32 {
    // SAFETY: the caller vouches for the bytes, for as long as this call.
    let from = unsafe { SharedSlice::from_raw_parts(from, len) };
    // SAFETY: the caller vouches for `len` writable bytes at `to`.
    unsafe { Kernel::chosen().copy_far(state, from, to) }
}

/// # Safety
/// As [`AppendToDigest`](urnic_netdev::frame::AppendToDigest) says.
unsafe fn append_raw(state: u32, from: *const u8, len: usize) -> u32 {
    // SAFETY: the caller vouches for the bytes, for as long as this call.
    crc32c_append_shared(state, unsafe { SharedSlice::from_raw_parts(from, len) })
}

#[cfg(test)]
mod tests;
