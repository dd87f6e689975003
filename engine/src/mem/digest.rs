//! CRC32c over memory that may change meanwhile, without a copy of it.
//!
//! The transmit path reads each payload octet once for the CRC and lets the device gather it. The
//! loads are in assembly, for the reason given in `copy`; the arithmetic is intrinsics.
//! Should the octets change between this read and the device's, the FPDU on the wire has a wrong
//! CRC. So memory of posted requests has to be left alone until they complete, and what may change at
//! any time, the source of a Read Response, is copied first (`copy_and_digest`).
//!
//! Three tiers, chosen once by what the processor has: folding by 512-bit carry-less products, the
//! CRC instruction in three interleaved lanes, and the `crc32c` crate over a bounce block.
#![allow(unsafe_code, reason = "reads memory that may change under it; the x86-64 tiers only")]

use super::shared::SharedSlice;

/// Adds `slice` to a running CRC32c.
///
/// `state` is the raw register: all ones at the start, and the CRC is its complement at the end
/// (RFC 5044 §4.4, RFC 3720 §12.1). Octets that change meanwhile count as old or new.
#[must_use]
pub(crate) fn crc32c_append_shared(state: u32, slice: SharedSlice<'_>) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        x86::append(state, slice)
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        append_by_bounce(state, slice)
    }
}

impl SharedSlice<'_> {
    /// Adds the slice to a running CRC32c; see the [module](self).
    #[must_use]
    pub fn digest(&self, state: u32) -> u32 {
        crc32c_append_shared(state, *self)
    }
}

/// Copies `from` to `to` and adds what was copied to a running CRC32c: the octets that `to` has
/// afterwards, whatever happens to `from` meanwhile.
///
/// Memory that changes is read once, so copy and digest agree. Both are done block by block, while
/// the copy is in the nearest cache.
///
/// # Panics
/// When the lengths differ: a caller's bug.
#[must_use]
pub(crate) fn copy_and_digest(mut state: u32, from: SharedSlice<'_>, to: &mut [u8]) -> u32 {
    /// A small part of the smallest first-level caches.
    const BLOCK_LEN: usize = 4096;
    assert_eq!(from.len(), to.len(), "a copy is as long as its source");
    for (index, block) in to.chunks_mut(BLOCK_LEN).enumerate() {
        from.copy_out(index * BLOCK_LEN, block);
        state = crc32c_append_shared(state, SharedSlice::from_bytes(block));
    }
    state
}

/// Copies block by block to the stack and lets the `crc32c` crate do the sum.
fn append_by_bounce(mut state: u32, slice: SharedSlice<'_>) -> u32 {
    const BLOCK_LEN: usize = 256;
    let mut block = [0; BLOCK_LEN];
    for at in (0..slice.len()).step_by(BLOCK_LEN) {
        let block = &mut block[..BLOCK_LEN.min(slice.len() - at)];
        slice.copy_out(at, block);
        // The crate's state is a finished CRC, ours a raw register: each other's complement.
        state = !crc32c::crc32c_append(!state, block);
    }
    state
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128,
        _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128, _mm256_castsi256_si128,
        _mm256_extracti128_si256, _mm256_xor_si256, _mm512_castsi512_si256,
        _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_mask_mov_epi64,
        _mm512_maskz_expand_epi8, _mm512_maskz_set1_epi32, _mm512_set_epi64, _mm512_setzero_si512,
        _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };
    use std::arch::{asm, is_x86_feature_detected};
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::append_by_bounce;
    use crate::mem::polynomial::{LANE_SHIFTS, LANE_SHIFTS_LEN, fold_factors};
    use crate::mem::shared::SharedSlice;

    /// Runs shorter than this go through the plain CRC instruction.
    pub(super) const FOLD_LEN_MIN: usize = 128;
    /// Runs shorter than this are not worth three lanes.
    pub(super) const LANES_LEN_MIN: usize = 192;
    /// Longest lane: the first lane's register moves ahead by two of them.
    const LANE_LEN_MAX: usize = LANE_SHIFTS_LEN / 2 * 8;

    const AHEAD_2048: [i64; 8] = lane_factors([2048; 4]);
    const AHEAD_1536: [i64; 8] = lane_factors([1536; 4]);
    const AHEAD_1024: [i64; 8] = lane_factors([1024; 4]);
    const AHEAD_512: [i64; 8] = lane_factors([512; 4]);
    /// The last lane stays where it is; its product is not used.
    const ONTO_LAST_LANE: [i64; 8] = lane_factors([384, 256, 128, 128]);

    /// The factors that move 128-bit lane `i` ahead by `bits[i]`.
    const fn lane_factors(bits: [u32; 4]) -> [i64; 8] {
        let [a, b, c, d] = [
            fold_factors(bits[0]),
            fold_factors(bits[1]),
            fold_factors(bits[2]),
            fold_factors(bits[3]),
        ];
        [
            a[0] as i64,
            a[1] as i64,
            b[0] as i64,
            b[1] as i64,
            c[0] as i64,
            c[1] as i64,
            d[0] as i64,
            d[1] as i64,
        ]
    }

    /// What this processor can do. Zero: not looked yet.
    static TIER: AtomicU8 = AtomicU8::new(0);
    const BOUNCE: u8 = 1;
    const LANES: u8 = 2;
    const FOLD: u8 = 3;

    /// As [`crc32c_append_shared`](super::crc32c_append_shared).
    #[inline]
    pub(super) fn append(state: u32, slice: SharedSlice<'_>) -> u32 {
        let tier = match TIER.load(Relaxed) {
            0 => detect(),
            tier => tier,
        };
        let (src, len) = (slice.as_ptr(), slice.len());
        match tier {
            // SAFETY: `detect` found the features; the slice vouches for its octets.
            FOLD if len >= FOLD_LEN_MIN => unsafe { append_by_folding(state, src, len) },
            // SAFETY: as above.
            FOLD | LANES => unsafe { append_by_lanes(state, src, len) },
            _ => append_by_bounce(state, slice),
        }
    }

    #[cold]
    fn detect() -> u8 {
        let tier = if has_lanes() && has_fold() {
            FOLD
        } else if has_lanes() {
            LANES
        } else {
            BOUNCE
        };
        TIER.store(tier, Relaxed);
        tier
    }

    pub(super) fn has_lanes() -> bool {
        is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
    }

    pub(super) fn has_fold() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("vpclmulqdq")
    }

    /// Three runs of equal length at once, because the CRC instruction takes three cycles but one
    /// can start every cycle.
    ///
    /// # Safety
    /// The processor must have the features; `src` must be readable for `len` octets.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(super) unsafe fn append_by_lanes(
        mut state: u32,
        mut src: *const u8,
        mut len: usize,
    ) -> u32 {
        while len >= LANES_LEN_MIN {
            let lane_len = (len / 24 * 8).min(LANE_LEN_MAX);
            // SAFETY: `3 * lane_len <= len`.
            let [a, b, c] = unsafe { three_lanes(state, src, lane_len) };
            let moved = _mm_xor_si128(
                carryless_product(a, LANE_SHIFTS[lane_len / 8 * 2]),
                carryless_product(b, LANE_SHIFTS[lane_len / 8]),
            );
            state = c ^ crc_of_quadword(0, low_quadword(moved));
            // SAFETY: `3 * lane_len <= len`, so this is inside the run or one past it.
            src = unsafe { src.add(3 * lane_len) };
            len -= 3 * lane_len;
        }
        // SAFETY: `len` octets are left at `src`.
        unsafe { append_by_quadwords(state, src, len) }
    }

    /// # Safety
    /// The processor must have SSE4.2; `src` must be readable for `3 * lane_len` octets, and
    /// `lane_len` be a positive multiple of 8.
    #[target_feature(enable = "sse4.2")]
    unsafe fn three_lanes(state: u32, src: *const u8, lane_len: usize) -> [u32; 3] {
        let mut a = u64::from(state);
        let mut b = 0_u64;
        let mut c = 0_u64;
        // SAFETY: `src` runs to the end of the first lane in steps of 8; with the lane length
        // added once and twice it stays inside the second and third.
        unsafe {
            asm!(
                "2:",
                "crc32 {a}, qword ptr [{src}]",
                "crc32 {b}, qword ptr [{src} + {lane_len}]",
                "crc32 {c}, qword ptr [{src} + 2*{lane_len}]",
                "add {src}, 8",
                "cmp {src}, {end}",
                "jb 2b",
                a = inout(reg) a,
                b = inout(reg) b,
                c = inout(reg) c,
                src = inout(reg) src => _,
                end = in(reg) src.wrapping_add(lane_len),
                lane_len = in(reg) lane_len,
                options(nostack, readonly)
            );
        }
        [register(a), register(b), register(c)]
    }

    /// # Safety
    /// The processor must have SSE4.2; `src` must be readable for `len` octets.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    unsafe fn append_by_quadwords(state: u32, src: *const u8, len: usize) -> u32 {
        let mut state = u64::from(state);
        // SAFETY: `left` counts down the readable octets; each step loads at most that many.
        unsafe {
            asm!(
                "sub {left}, 8",
                "jb 3f",
                "2:",
                "crc32 {state}, qword ptr [{src}]",
                "add {src}, 8",
                "sub {left}, 8",
                "jae 2b",
                "3:",
                // Only the low three bits of `left`, unchanged by steps of 8, matter from here.
                "test {left:l}, 4",
                "jz 4f",
                "crc32 {state:e}, dword ptr [{src}]",
                "add {src}, 4",
                "4:",
                "test {left:l}, 2",
                "jz 5f",
                "crc32 {state:e}, word ptr [{src}]",
                "add {src}, 2",
                "5:",
                "test {left:l}, 1",
                "jz 6f",
                "crc32 {state:e}, byte ptr [{src}]",
                "6:",
                state = inout(reg) state,
                src = inout(reg) src => _,
                left = inout(reg) len => _,
                options(nostack, readonly)
            );
        }
        register(state)
    }

    /// Four 64-octet accumulators, each moved ahead by 256 octets per step and added to what is
    /// there; at the end all are moved onto the last and that is reduced.
    ///
    /// Zeros ahead of a message do not change its remainder. So the odd octets come first, at the
    /// end of a block of zeros, and everything after is whole blocks: there is no tail.
    ///
    /// # Safety
    /// The processor must have the features; `src` must be readable for `len` octets, and `len` be
    /// at least 64.
    #[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vbmi2,vpclmulqdq")]
    pub(super) unsafe fn append_by_folding(state: u32, src: *const u8, len: usize) -> u32 {
        let end = src.wrapping_add(len);
        let odd = len % 64;
        let (first, mut src) = if odd < 4 {
            // SAFETY: `odd <= len`.
            let state = unsafe { append_by_quadwords(state, src, odd) };
            let src = src.wrapping_add(odd);
            // SAFETY: `len - odd` is a positive multiple of 64.
            let block = unsafe { load(src) };
            (_mm512_xor_si512(block, low_doubleword(state)), src.wrapping_add(64))
        } else {
            let low_octets = (1_u64 << odd) - 1;
            // SAFETY: `odd <= len`, and the mask has `odd` bits.
            let octets = unsafe { load_masked(src, low_octets) };
            let octets = _mm512_xor_si512(octets, low_doubleword(state));
            let block = _mm512_maskz_expand_epi8(low_octets << (64 - odd), octets);
            (block, src.wrapping_add(odd))
        };
        let zero = _mm512_setzero_si512();
        let mut sums = [zero, zero, zero, first];
        while !(end.addr() - src.addr()).is_multiple_of(256) {
            // SAFETY: a positive multiple of 64 octets is left.
            let block = unsafe { load(src) };
            sums = [sums[1], sums[2], sums[3], block];
            src = src.wrapping_add(64);
        }
        let ahead = factors(&AHEAD_2048);
        while src < end {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: a positive multiple of 256 octets is left, and `i < 4`.
                let block = unsafe { load(src.wrapping_add(64 * i)) };
                *sum = fold(*sum, ahead, block);
            }
            src = src.wrapping_add(256);
        }
        let sum = fold(sums[0], factors(&AHEAD_1536), sums[3]);
        let sum = fold(sums[1], factors(&AHEAD_1024), sum);
        let sum = fold(sums[2], factors(&AHEAD_512), sum);
        reduce(sum)
    }

    /// The remainder of 64 octets, as a CRC register.
    #[inline]
    #[target_feature(enable = "sse4.2,avx512f,vpclmulqdq")]
    fn reduce(sum: __m512i) -> u32 {
        // The first three 128-bit lanes move onto the last, which stays.
        let moved = fold(sum, factors(&ONTO_LAST_LANE), _mm512_setzero_si512());
        let lanes = _mm512_mask_mov_epi64(moved, 0b1100_0000, sum);
        let half =
            _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        let lane = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
        let state = crc_of_quadword(0, low_quadword(lane));
        crc_of_quadword(state, _mm_extract_epi64::<1>(lane).cast_unsigned())
    }

    /// `sum` moved ahead, plus `block`.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(sum: __m512i, factors: __m512i, block: __m512i) -> __m512i {
        /// Of three inputs, the exclusive or.
        const XOR: i32 = 0x96;
        let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
        let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
        _mm512_ternarylogic_epi64::<XOR>(low, high, block)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn factors(lanes: &[i64; 8]) -> __m512i {
        let [a, b, c, d, e, f, g, h] = *lanes;
        _mm512_set_epi64(h, g, f, e, d, c, b, a)
    }

    /// # Safety
    /// `src` must be readable for 64 octets.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(src: *const u8) -> __m512i {
        let block;
        // SAFETY: loads the 64 octets the caller vouched for.
        unsafe {
            asm!(
                "vmovdqu64 {block}, [{src}]",
                block = out(zmm_reg) block,
                src = in(reg) src,
                options(nostack, preserves_flags, readonly)
            );
        }
        block
    }

    /// Octets at `src` where `mask` has a one, zeros elsewhere.
    ///
    /// # Safety
    /// `src + i` must be readable for each bit `i` of the mask.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn load_masked(src: *const u8, mask: u64) -> __m512i {
        let block;
        // SAFETY: masked-out octets are not accessed, and the caller vouched for the others.
        unsafe {
            asm!(
                "vmovdqu8 {block}{{{mask}}}{{z}}, [{src}]",
                block = out(zmm_reg) block,
                mask = in(kreg) mask,
                src = in(reg) src,
                options(nostack, preserves_flags, readonly)
            );
        }
        block
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn low_doubleword(value: u32) -> __m512i {
        _mm512_maskz_set1_epi32(1, value.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn carryless_product(a: u32, b: u32) -> __m128i {
        let (a, b) = (_mm_cvtsi32_si128(a.cast_signed()), _mm_cvtsi32_si128(b.cast_signed()));
        _mm_clmulepi64_si128::<0>(a, b)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn low_quadword(value: __m128i) -> u64 {
        _mm_cvtsi128_si64(value).cast_unsigned()
    }

    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn crc_of_quadword(state: u32, value: u64) -> u32 {
        register(_mm_crc32_u64(u64::from(state), value))
    }

    /// The CRC instruction leaves the upper half of its 64-bit destination zero.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the upper half is zero")]
    const fn register(state: u64) -> u32 {
        state as u32
    }
}

#[cfg(test)]
mod tests;
