//! Writable slices without references: runs of memory that others may access at any moment.
#![expect(unsafe_code, reason = "reaches memory that may change under it")]

use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use urnic_netdev::{SharedSlice, shared_memory};

/// Written for a peer through a [`Grant`](super::Grant), for an application through its region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WritableSlice<'r> {
    ptr: *mut u8,
    len: usize,
    memory: PhantomData<&'r ()>,
}

impl WritableSlice<'_> {
    /// # Safety
    /// As [`SharedSlice::from_raw_parts`], and the bytes must be mapped writable.
    pub(super) const unsafe fn from_raw_parts(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Panics if the bytes do not fit: a bug of the caller, which a peer cannot cause.
    #[inline]
    pub(crate) fn copy_from(&self, offset: usize, from: SharedSlice<'_>) {
        let to = self.address(offset, from.len());
        // SAFETY: `from` is readable and `to` writable for `from.len()` bytes, as their constructors
        // vouched for; both are accessed only as `copy_across` allows.
        unsafe { shared_memory::copy_across(from.as_ptr(), to, from.len()) }
    }

    /// Panics if the bytes do not fit: a bug of the caller, which a peer cannot cause.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.address(offset, bytes.len());
        // SAFETY: `to` is writable for `bytes.len()` bytes and accessed only as `copy_in` allows;
        // `bytes` is a reference, and no reference exists to memory that may change under it.
        unsafe { shared_memory::copy_in(bytes, to) }
    }

    /// Replaces the eight bytes at `offset` by `f` of their value, atomically against every other
    /// such call, and on x86-64 against the processor's own atomics. Returns the previous value.
    /// Integers are in the byte order of this machine. `f` may be called several times. Panics
    /// outside the slice: a bug of the caller, which a peer cannot cause.
    pub(crate) fn fetch_update_u64(
        &self,
        offset: usize,
        mut f: impl FnMut(u64) -> u64,
    ) -> Result<u64, Misaligned> {
        let at = aligned(self.address(offset, 8))?;
        if !WORDS_ARE_ATOMIC {
            return Ok(self.update_octets(offset, at, f));
        }
        // SAFETY: readable and writable, as `address` has checked, and aligned. Byte-wise copies
        // that race with it are in assembly (`WORDS_ARE_ATOMIC`), outside the language's rules on
        // accesses of mixed size.
        let word = unsafe { AtomicU64::from_ptr(at) };
        let mut original = word.load(Relaxed);
        while let Err(now) = word.compare_exchange_weak(original, f(original), AcqRel, Relaxed) {
            original = now;
        }
        Ok(original)
    }

    fn update_octets(&self, offset: usize, at: *mut u64, f: impl FnOnce(u64) -> u64) -> u64 {
        // SAFETY: mapped, readable, in one allocation, and written only by atomics, by copies or
        // from outside, as this slice's constructor vouched for.
        let word = unsafe { SharedSlice::from_raw_parts(self.ptr, self.len) };
        let mut octets = [0; 8];
        let _exclusive = word_lock(at);
        word.copy_out(offset, &mut octets);
        let original = u64::from_ne_bytes(octets);
        self.copy_in(offset, &f(original).to_ne_bytes());
        original
    }

    fn address(&self, offset: usize, len: usize) -> *mut u8 {
        assert_inside(self.len, offset, len);
        // SAFETY: `offset <= self.len`, inside, or one past, the run that the constructor vouched
        // for.
        unsafe { self.ptr.add(offset) }
    }
}

/// Words are read and changed by the processor's 64-bit atomics. Concurrent copies are in assembly
/// on x86-64. Elsewhere they are byte-wise atomics, which must not race with atomics of another
/// size. There, words are also copied byte-wise, under a lock that makes the operations atomic
/// against each other, as RFC 7306 §5 requires, but not against the processor's atomics in other
/// code.
const WORDS_ARE_ATOMIC: bool = cfg!(all(target_arch = "x86_64", not(miri)));

static WORD_LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

fn word_lock(at: *mut u64) -> MutexGuard<'static, ()> {
    let lock = &WORD_LOCKS[at.addr() / 8 % WORD_LOCKS.len()];
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of an atomic operation is not a multiple of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address of an atomic operation is not 64-bit aligned")]
pub struct Misaligned;

fn aligned(ptr: *mut u8) -> Result<*mut u64, Misaligned> {
    let ptr = ptr.cast::<u64>();
    if ptr.is_aligned() { Ok(ptr) } else { Err(Misaligned) }
}

#[inline]
fn assert_inside(slice_len: usize, start: usize, len: usize) {
    assert!(start <= slice_len && len <= slice_len - start, "part outside its shared slice");
}

#[cfg(test)]
mod tests;
