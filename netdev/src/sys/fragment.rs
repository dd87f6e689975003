//! Readable memory that somebody else may write at any moment.
#![allow(unsafe_code, reason = "reads memory that may change under it; see STYLE of the project")]

use std::marker::PhantomData;

/// A run of readable memory that may change while it is read.
///
/// A fragment usually points into memory registered for remote access: the engine thread may place
/// a peer's data there, and application threads may store into it, while a device gathers it. It
/// is therefore never a `&[u8]`: its octets can only be copied out, or its address handed to the
/// kernel.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    ptr: *const u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> Fragment<'a> {
    /// A fragment over ordinary memory that does not change.
    #[must_use]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Self { ptr: bytes.as_ptr(), len: bytes.len(), memory: PhantomData }
    }

    /// A fragment over `len` octets at `ptr`.
    ///
    /// # Safety
    /// For all of `'a`, the `len` octets at `ptr` must be mapped and readable, and `len` must not
    /// exceed `isize::MAX`. Other threads may write them.
    #[must_use]
    pub const unsafe fn from_raw_parts(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len, memory: PhantomData }
    }

    /// Octets in the fragment.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the fragment has no octets.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first octet, for devices that hand it to the kernel.
    #[must_use]
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The part of the fragment that starts at `start` and has `len` octets.
    ///
    /// # Panics
    /// When the part is not inside the fragment.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Self {
        assert!(start <= self.len && len <= self.len - start, "part outside its fragment");
        // SAFETY: `start <= self.len`, so the result stays inside (or one past) the allocation
        // that `from_raw_parts` or `from_slice` vouched for.
        let ptr = unsafe { self.ptr.add(start) };
        Self { ptr, len, memory: PhantomData }
    }

    /// Copies the fragment into `dst`.
    ///
    /// Octets that change meanwhile arrive old or new, one by one; nothing else can go wrong.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_to(&self, dst: &mut [u8]) {
        assert_eq!(self.len, dst.len(), "fragment copied to a buffer of another length");
        // SAFETY: the constructor's caller vouched for `self.len` readable octets at `self.ptr`,
        // `dst` is as long and, being `&mut`, cannot overlap them.
        unsafe { copy_octets(self.ptr, dst.as_mut_ptr(), self.len) }
    }
}

/// Copies `len` octets that may change meanwhile.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` octets, and they must not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_octets(src: *const u8, dst: *mut u8, len: usize) {
    // A copy in assembly is outside the language's memory model: for it a concurrent store is what
    // it is for the processor, an octet that arrives old or new. `ptr::copy_nonoverlapping` would
    // make the same race undefined.
    // SAFETY: `rep movsb` reads `len` octets at `src` and writes them at `dst`, which the caller
    // vouched for; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies `len` octets that may change meanwhile.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` octets, and they must not overlap.
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn copy_octets(src: *const u8, dst: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
    for i in 0..len {
        // SAFETY: `i < len`, inside the octets the caller vouched for.
        let from = unsafe { src.add(i) };
        // SAFETY: readable as above; an atomic load tolerates concurrent atomic stores, and the
        // pointer is only read through.
        let octet = unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Relaxed);
        // SAFETY: `i < len`, inside the octets the caller vouched for.
        let to = unsafe { dst.add(i) };
        // SAFETY: writable as the caller vouched for, and `u8` needs no alignment.
        unsafe { to.write(octet) };
    }
}
