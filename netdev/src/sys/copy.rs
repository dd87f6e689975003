//! The only copy between private memory and memory that others may access meanwhile. On every
//! target each byte is loaded and stored as by relaxed atomics, in no particular order, possibly
//! more than once: a racing byte has its old or its new value. [`reference`] expresses this in
//! Rust, for Miri and ThreadSanitizer, an order of magnitude slower than `memcpy`. On x86-64
//! assembly does the same; the memory model treats it as a black box of such accesses.
//! `ptr::copy_nonoverlapping` is undefined under a race. `benches/copy.rs` compares the two.
#![expect(unsafe_code, reason = "copies to and from memory that may change under it")]

/// Copies `bytes` to `dst`, which others may read and write meanwhile.
///
/// # Safety
/// `dst` must be valid for writes of `bytes.len()` bytes and must not overlap `bytes`. While this
/// runs, those bytes must be accessed only by atomics, through this module, or from outside the
/// process.
#[inline]
pub unsafe fn copy_in(bytes: &[u8], dst: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `bytes` is readable for its length; the caller guarantees `dst` and no overlap.
    unsafe {
        x86::copy(bytes.as_ptr(), dst, bytes.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the same contract.
    unsafe {
        reference::copy_in(bytes, dst);
    }
}

/// Copies `bytes.len()` bytes at `src`, which others may write meanwhile, to `bytes`.
///
/// # Safety
/// `src` must be valid for reads of `bytes.len()` bytes and must not overlap `bytes`. While this
/// runs, those bytes must be written only by atomics, through this module, or from outside the
/// process.
#[inline]
pub unsafe fn copy_out(src: *const u8, bytes: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `bytes` is writable for its length; the caller guarantees `src` and no overlap.
    unsafe {
        x86::copy(src, bytes.as_mut_ptr(), bytes.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the same contract.
    unsafe {
        reference::copy_out(src, bytes);
    }
}

/// Copies `len` bytes from `src` to `dst`. Others may read and write both meanwhile. If they
/// overlap, each byte of `dst` becomes one that `src` had there before or while this ran.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `len` bytes; other accesses meanwhile as
/// for [`copy_in`] and [`copy_out`].
#[inline]
pub unsafe fn copy_across(src: *const u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller guarantees both.
    unsafe {
        x86::copy(src, dst, len);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the same contract.
    unsafe {
        reference::copy_across(src, dst, len);
    }
}

/// Semantics of a copy, in Rust.
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
pub(super) mod reference {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// # Safety
    /// As [`copy_in`](super::copy_in).
    pub(in crate::sys) unsafe fn copy_in(bytes: &[u8], dst: *mut u8) {
        for (i, &octet) in bytes.iter().enumerate() {
            // SAFETY: `i < bytes.len()`, inside the bytes that the caller guarantees.
            let to = unsafe { dst.add(i) };
            // SAFETY: valid for reads and writes as the caller guarantees, `u8` needs no alignment,
            // and the caller rules out concurrent non-atomic accesses.
            unsafe { AtomicU8::from_ptr(to) }.store(octet, Relaxed);
        }
    }

    /// # Safety
    /// As [`copy_across`](super::copy_across).
    pub(in crate::sys) unsafe fn copy_across(src: *const u8, dst: *mut u8, len: usize) {
        let mut block = [0; 64];
        let mut at = 0;
        while at < len {
            let now = block.len().min(len - at);
            // SAFETY: `at < len`, inside the bytes that the caller guarantees.
            let from = unsafe { src.add(at) };
            // SAFETY: as above.
            let to = unsafe { dst.add(at) };
            // SAFETY: `now` bytes follow; the block is this function's own.
            unsafe { copy_out(from, &mut block[..now]) };
            // SAFETY: as above.
            unsafe { copy_in(&block[..now], to) };
            at += now;
        }
    }

    /// # Safety
    /// As [`copy_out`](super::copy_out).
    pub(in crate::sys) unsafe fn copy_out(src: *const u8, bytes: &mut [u8]) {
        for (i, octet) in bytes.iter_mut().enumerate() {
            // SAFETY: `i < bytes.len()`, inside the bytes that the caller guarantees.
            let from = unsafe { src.add(i) };
            // SAFETY: readable as the caller guarantees; the pointer is only used for loads, and
            // std allows relaxed one-byte loads from read-only memory on every target.
            *octet = unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Relaxed);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::{asm, is_x86_feature_detected};

    /// Above these lengths `rep movsb`, the processor's own copy, is used. In `benches/copy.rs`
    /// vectors are faster below, and at best equal above. Without AVX-512 (Zen 3), `rep movsb`
    /// takes 1.5 times as long as vectors up to 16 KiB unless source and destination are equally
    /// aligned, is never faster, and for some pairs of addresses is tens of times slower.
    const WIDE_VECTOR_LEN_MAX: usize = 16 * 1024;
    const VECTOR_LEN_MAX: usize = 256 * 1024;

    /// # Safety
    /// As [`copy_across`](super::copy_across); an overlap is nothing special for assembly.
    #[inline]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // Each branch covers its run by pieces from both ends that overlap in the middle, all
        // loaded before the first store.
        match len {
            // SAFETY: this function's contract and the length just matched.
            0..=3 => unsafe { copy_0_to_3(src, dst, len) },
            // SAFETY: as above.
            4..=7 => unsafe { copy_4_to_7(src, dst, len) },
            // SAFETY: as above.
            8..=15 => unsafe { copy_8_to_15(src, dst, len) },
            // SAFETY: as above.
            16..=32 => unsafe { copy_16_to_32(src, dst, len) },
            // SAFETY: as above.
            33..=128 => unsafe { copy_33_to_128(src, dst, len) },
            // SAFETY: as above.
            _ => unsafe { copy_long(src, dst, len) },
        }
    }

    /// # Safety
    /// As [`copy`], and `len <= 3`.
    #[inline]
    unsafe fn copy_0_to_3(src: *const u8, dst: *mut u8, len: usize) {
        // Copies two bytes in one piece: a word that is read afterwards must have been written as
        // one, or the processor stalls.
        if len >= 2 {
            // SAFETY: the first two bytes, inside the run as `len >= 2`.
            unsafe {
                asm!(
                    "movzx {word:e}, word ptr [{src}]",
                    "mov word ptr [{dst}], {word:x}",
                    src = in(reg) src,
                    dst = in(reg) dst,
                    word = out(reg) _,
                    options(nostack, preserves_flags)
                );
            }
        }
        if len % 2 == 1 {
            // SAFETY: the last byte, inside the run as `len >= 1`.
            unsafe {
                asm!(
                    "mov {last}, byte ptr [{src} + {len} - 1]",
                    "mov byte ptr [{dst} + {len} - 1], {last}",
                    src = in(reg) src,
                    dst = in(reg) dst,
                    len = in(reg) len,
                    last = out(reg_byte) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    }

    /// # Safety
    /// As [`copy`], and `4 <= len <= 7`.
    #[inline]
    unsafe fn copy_4_to_7(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the first and the last four bytes, inside the run as `len >= 4`.
        unsafe {
            asm!(
                "mov {a:e}, dword ptr [{src}]",
                "mov {b:e}, dword ptr [{src} + {len} - 4]",
                "mov dword ptr [{dst}], {a:e}",
                "mov dword ptr [{dst} + {len} - 4], {b:e}",
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                a = out(reg) _,
                b = out(reg) _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// As [`copy`], and `8 <= len <= 15`.
    #[inline]
    unsafe fn copy_8_to_15(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the first and the last eight bytes, inside the run as `len >= 8`.
        unsafe {
            asm!(
                "mov {a}, qword ptr [{src}]",
                "mov {b}, qword ptr [{src} + {len} - 8]",
                "mov qword ptr [{dst}], {a}",
                "mov qword ptr [{dst} + {len} - 8], {b}",
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                a = out(reg) _,
                b = out(reg) _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// As [`copy`], and `16 <= len <= 32`.
    #[inline]
    unsafe fn copy_16_to_32(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the first and the last 16 bytes, inside the run as `len >= 16`.
        unsafe {
            asm!(
                "movups {a}, [{src}]",
                "movups {b}, [{src} + {len} - 16]",
                "movups [{dst}], {a}",
                "movups [{dst} + {len} - 16], {b}",
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// As [`copy`], and `33 <= len <= 128`.
    #[inline]
    unsafe fn copy_33_to_128(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: 32 bytes from either end, inside the run as `len > 32`; the second 32 from
        // either end only when `len > 64`.
        unsafe {
            asm!(
                "movups {a}, [{src}]",
                "movups {b}, [{src} + 16]",
                "movups {y}, [{src} + {len} - 32]",
                "movups {z}, [{src} + {len} - 16]",
                "cmp {len}, 64",
                "jbe 2f",
                "movups {c}, [{src} + 32]",
                "movups {d}, [{src} + 48]",
                "movups {w}, [{src} + {len} - 64]",
                "movups {x}, [{src} + {len} - 48]",
                "movups [{dst} + 32], {c}",
                "movups [{dst} + 48], {d}",
                "movups [{dst} + {len} - 64], {w}",
                "movups [{dst} + {len} - 48], {x}",
                "2:",
                "movups [{dst}], {a}",
                "movups [{dst} + 16], {b}",
                "movups [{dst} + {len} - 32], {y}",
                "movups [{dst} + {len} - 16], {z}",
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                w = out(xmm_reg) _,
                x = out(xmm_reg) _,
                y = out(xmm_reg) _,
                z = out(xmm_reg) _,
                options(nostack)
            );
        }
    }

    /// # Safety
    /// As [`copy`], and `len > 128`.
    #[inline(never)]
    unsafe fn copy_long(src: *const u8, dst: *mut u8, len: usize) {
        // VBMI2 is a proxy: processors that have it do not slow down for 512-bit vectors.
        if len <= WIDE_VECTOR_LEN_MAX
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("avx512f")
        {
            // SAFETY: the caller's contract; the processor has AVX-512.
            unsafe { copy_wide_vectors(src, dst, len) }
        } else if len <= VECTOR_LEN_MAX && is_x86_feature_detected!("avx") {
            // SAFETY: the caller's contract; the processor has AVX.
            unsafe { copy_vectors(src, dst, len) }
        } else {
            // SAFETY: reads and writes exactly the caller's bytes; the direction flag is clear by
            // the ABI.
            unsafe {
                asm!(
                    "rep movsb",
                    inout("rcx") len => _,
                    inout("rsi") src => _,
                    inout("rdi") dst => _,
                    options(nostack, preserves_flags)
                );
            }
        }
    }

    /// # Safety
    /// As [`copy`], `len > 128`, and the processor must have AVX-512.
    #[inline]
    unsafe fn copy_wide_vectors(src: *const u8, dst: *mut u8, len: usize) {
        // The first 64 and the last 128 bytes are copied unaligned; the loop between them stores
        // whole aligned vectors, which is twice as fast if `dst` is odd. These registers need no
        // `vzeroupper`.
        //
        // SAFETY: the loop runs while `dst < last`, `last` being 128 before the end, and moves 128
        // bytes; the other accesses are the run's first 64 and last 128.
        unsafe {
            asm!(
                "vmovdqu64 zmm16, [{src}]",
                "vmovdqu64 zmm17, [{src} + {len} - 128]",
                "vmovdqu64 zmm18, [{src} + {len} - 64]",
                "lea {last}, [{dst} + {len} - 128]",
                "mov {first}, {dst}",
                "sub {src}, {dst}",
                "add {dst}, 64",
                "and {dst}, -64",
                "vmovdqu64 [{first}], zmm16",
                "cmp {dst}, {last}",
                "jae 3f",
                "2:",
                "vmovdqu64 zmm19, [{src} + {dst}]",
                "vmovdqu64 zmm20, [{src} + {dst} + 64]",
                "vmovdqa64 [{dst}], zmm19",
                "vmovdqa64 [{dst} + 64], zmm20",
                "sub {dst}, -128",
                "cmp {dst}, {last}",
                "jb 2b",
                "3:",
                "vmovdqu64 [{last}], zmm17",
                "vmovdqu64 [{last} + 64], zmm18",
                src = inout(reg) src => _,
                dst = inout(reg) dst => _,
                len = in(reg) len,
                last = out(reg) _,
                first = out(reg) _,
                out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _, out("xmm20") _,
                options(nostack)
            );
        }
    }

    /// # Safety
    /// As [`copy`], `len > 128`, and the processor must have AVX.
    #[inline]
    pub(super) unsafe fn copy_vectors(src: *const u8, dst: *mut u8, len: usize) {
        // As `copy_wide_vectors`, with half the width.
        //
        // SAFETY: the loop runs while `dst < last`, `last` being 128 before the end, and moves 128
        // bytes; the other accesses are the run's first 32 and last 128. `vzeroupper` changes the
        // upper halves of all 16 registers, all declared clobbered.
        unsafe {
            asm!(
                "vmovdqu ymm4, [{src}]",
                "vmovdqu ymm5, [{src} + {len} - 128]",
                "vmovdqu ymm6, [{src} + {len} - 96]",
                "vmovdqu ymm7, [{src} + {len} - 64]",
                "vmovdqu ymm8, [{src} + {len} - 32]",
                "lea {last}, [{dst} + {len} - 128]",
                "mov {first}, {dst}",
                "sub {src}, {dst}",
                "add {dst}, 32",
                "and {dst}, -32",
                "vmovdqu [{first}], ymm4",
                "cmp {dst}, {last}",
                "jae 3f",
                "2:",
                "vmovdqu ymm0, [{src} + {dst}]",
                "vmovdqu ymm1, [{src} + {dst} + 32]",
                "vmovdqu ymm2, [{src} + {dst} + 64]",
                "vmovdqu ymm3, [{src} + {dst} + 96]",
                "vmovdqa [{dst}], ymm0",
                "vmovdqa [{dst} + 32], ymm1",
                "vmovdqa [{dst} + 64], ymm2",
                "vmovdqa [{dst} + 96], ymm3",
                "sub {dst}, -128",
                "cmp {dst}, {last}",
                "jb 2b",
                "3:",
                "vmovdqu [{last}], ymm5",
                "vmovdqu [{last} + 32], ymm6",
                "vmovdqu [{last} + 64], ymm7",
                "vmovdqu [{last} + 96], ymm8",
                "vzeroupper",
                src = inout(reg) src => _,
                dst = inout(reg) dst => _,
                len = in(reg) len,
                last = out(reg) _,
                first = out(reg) _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack)
            );
        }
    }
}

#[cfg(test)]
mod tests;
