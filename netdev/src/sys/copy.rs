//! The copy out of memory that somebody else may write meanwhile.
//!
//! A copy in assembly is outside the language's memory model: for it a concurrent store is what it
//! is for the processor, an octet that arrives old or new. `ptr::copy_nonoverlapping` would make
//! the same race undefined. Short copies have a path of their own because `rep movsb` takes some
//! 30 cycles to start; each length from 2 to 64 is two moves that overlap in the middle.
#![allow(unsafe_code, reason = "reads memory that may change under it")]

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use x86_64::copy_octets;

#[cfg(any(not(target_arch = "x86_64"), miri))]
pub(super) use portable::copy_octets;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::asm;

    /// Copies `len` octets that may change meanwhile.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` octets, and they must not overlap.
    #[inline]
    pub(in crate::sys) unsafe fn copy_octets(src: *const u8, dst: *mut u8, len: usize) {
        match len {
            0 => {}
            // SAFETY: one octet, which the caller vouched for.
            1 => unsafe { copy_one(src, dst) },
            // SAFETY: the caller's promise, and `len` is at least the width.
            2..4 => unsafe { copy_ends_2(src, dst, len) },
            // SAFETY: as above.
            4..8 => unsafe { copy_ends_4(src, dst, len) },
            // SAFETY: as above.
            8..16 => unsafe { copy_ends_8(src, dst, len) },
            // SAFETY: as above.
            16..=32 => unsafe { copy_ends_16(src, dst, len) },
            // SAFETY: as above; two moves of 32 cover up to 64.
            33..=64 => unsafe { copy_ends_32(src, dst, len) },
            // SAFETY: the caller's promise, and `len` is above 64.
            65..REP_LEN_MIN => unsafe { copy_blocks(src, dst, len) },
            // SAFETY: the caller's promise.
            _ => unsafe { copy_long(src, dst, len) },
        }
    }

    /// Copies one octet.
    ///
    /// # Safety
    /// It must be readable at `src` and writable at `dst`.
    #[inline]
    unsafe fn copy_one(src: *const u8, dst: *mut u8) {
        // SAFETY: reads one octet at `src` and writes it at `dst`, as the caller allowed.
        unsafe {
            asm!(
                "mov {a}, [{src}]",
                "mov [{dst}], {a}",
                a = out(reg_byte) _,
                src = in(reg) src,
                dst = in(reg) dst,
                options(nostack, preserves_flags)
            );
        }
    }

    /// A function that copies the first and the last `width` octets, which may overlap.
    macro_rules! copy_ends {
        ($name:ident, $width:literal, $class:ident, $mov:literal, $size:literal) => {
            /// Copies `len` octets, at least the width and at most twice as many.
            ///
            /// # Safety
            /// `src` must be readable and `dst` writable for `len` octets, they must not overlap,
            /// and `len` must be at least the width.
            #[inline]
            unsafe fn $name(src: *const u8, dst: *mut u8, len: usize) {
                // SAFETY: both moves are inside the `len` octets that the caller vouched for,
                // because the width is not above `len`.
                unsafe {
                    asm!(
                        concat!($mov, " {a:", $size, "}, [{src}]"),
                        concat!($mov, " {b:", $size, "}, [{src} + {len} - ", $width, "]"),
                        concat!($mov, " [{dst}], {a:", $size, "}"),
                        concat!($mov, " [{dst} + {len} - ", $width, "], {b:", $size, "}"),
                        a = out($class) _,
                        b = out($class) _,
                        src = in(reg) src,
                        dst = in(reg) dst,
                        len = in(reg) len,
                        options(nostack, preserves_flags)
                    );
                }
            }
        };
    }

    copy_ends!(copy_ends_2, "2", reg, "mov", "x");
    copy_ends!(copy_ends_4, "4", reg, "mov", "e");
    copy_ends!(copy_ends_8, "8", reg, "mov", "r");
    copy_ends!(copy_ends_16, "16", xmm_reg, "movdqu", "x");

    /// Copies 32 to 64 octets: the first 32 and the last 32.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` octets, they must not overlap, and
    /// `len` must be at least 32.
    #[inline]
    unsafe fn copy_ends_32(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: all moves are inside the `len` octets that the caller vouched for, because
        // `len` is at least 32.
        unsafe {
            asm!(
                "movdqu {a}, [{src}]",
                "movdqu {b}, [{src} + 16]",
                "movdqu {c}, [{src} + {len} - 32]",
                "movdqu {d}, [{src} + {len} - 16]",
                "movdqu [{dst}], {a}",
                "movdqu [{dst} + 16], {b}",
                "movdqu [{dst} + {len} - 32], {c}",
                "movdqu [{dst} + {len} - 16], {d}",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                src = in(reg) src,
                dst = in(reg) dst,
                len = in(reg) len,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Copies more than 64 octets: blocks of 64, then the last 64, which overlap the last block.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` octets, they must not overlap, and
    /// `len` must be above 64.
    #[inline]
    unsafe fn copy_blocks(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: with `left` octets to go besides 64, a block is copied while `left > 0`, so it
        // stays inside; then `left` is in -63..=0, and the 64 octets at `src + left` are the last.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{src}]",
                "movdqu {b}, [{src} + 16]",
                "movdqu {c}, [{src} + 32]",
                "movdqu {d}, [{src} + 48]",
                "movdqu [{dst}], {a}",
                "movdqu [{dst} + 16], {b}",
                "movdqu [{dst} + 32], {c}",
                "movdqu [{dst} + 48], {d}",
                "add {src}, 64",
                "add {dst}, 64",
                "sub {left}, 64",
                "jg 2b",
                "movdqu {a}, [{src} + {left}]",
                "movdqu {b}, [{src} + {left} + 16]",
                "movdqu {c}, [{src} + {left} + 32]",
                "movdqu {d}, [{src} + {left} + 48]",
                "movdqu [{dst} + {left}], {a}",
                "movdqu [{dst} + {left} + 16], {b}",
                "movdqu [{dst} + {left} + 32], {c}",
                "movdqu [{dst} + {left} + 48], {d}",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                src = inout(reg) src => _,
                dst = inout(reg) dst => _,
                left = inout(reg) len - 64 => _,
                options(nostack)
            );
        }
    }

    /// Copies any number of octets, best many.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` octets, and they must not overlap.
    #[inline]
    unsafe fn copy_long(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: `rep movsb` reads `len` octets at `src` and writes them at `dst`, which the
        // caller vouched for; the direction flag is clear by the ABI.
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

    /// From this length on `rep movsb` wins.
    const REP_LEN_MIN: usize = 1152;

    #[cfg(test)]
    mod tests {
        /// Not a test: prints which path wins at which length, to choose `REP_LEN_MIN` by.
        #[test]
        #[ignore = "a measurement"]
        #[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement")]
        fn measure() {
            let src = vec![1_u8; 1 << 16];
            let mut dst = vec![0_u8; 1 << 16];
            for len in [16, 32, 65, 96, 128, 200, 256, 384, 512, 768, 1024, 1440, 2048, 4096, 8940]
            {
                let mut nanoseconds = [0.0; 3];
                for (path, slot) in nanoseconds.iter_mut().enumerate() {
                    let start = std::time::Instant::now();
                    for k in 0..1_000_000_usize {
                        let at = (k * 72) & 0x3fff;
                        let (src, dst) = (src[at..].as_ptr(), dst[at..].as_mut_ptr());
                        match path {
                            // SAFETY: `at + len` is inside both buffers.
                            0 => unsafe { super::copy_octets(src, dst, len) },
                            // SAFETY: as above, and `len` is above 64.
                            1 if len > 64 => unsafe { super::copy_blocks(src, dst, len) },
                            // SAFETY: as above.
                            _ => unsafe { super::copy_long(src, dst, len) },
                        }
                    }
                    *slot = start.elapsed().as_secs_f64() * 1e3;
                }
                let [chosen, blocks, rep] = nanoseconds;
                println!(
                    "{len:5}: chosen {chosen:6.1} ns, blocks {blocks:6.1} ns, rep {rep:6.1} ns"
                );
            }
        }
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
mod portable {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// Copies `len` octets that may change meanwhile.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` octets, and they must not overlap.
    pub(in crate::sys) unsafe fn copy_octets(src: *const u8, dst: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: `i < len`, inside the octets the caller vouched for.
            let from = unsafe { src.add(i) };
            // SAFETY: readable as above; an atomic load tolerates concurrent atomic stores, and
            // the pointer is only read through.
            let octet = unsafe { AtomicU8::from_ptr(from.cast_mut()) }.load(Relaxed);
            // SAFETY: `i < len`, inside the octets the caller vouched for.
            let to = unsafe { dst.add(i) };
            // SAFETY: writable as the caller vouched for, and `u8` needs no alignment.
            unsafe { to.write(octet) };
        }
    }
}
