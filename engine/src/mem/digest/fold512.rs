//! Folding by 512-bit carry-less products, of AVX-512.

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_xor_si256, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_mask_mov_epi64,
    _mm512_maskz_expand_epi8, _mm512_maskz_set1_epi32, _mm512_set_epi64, _mm512_setzero_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};
use std::ptr;

use super::polynomial::fold_factors;
use super::quadwords::{self, register};

/// Runs shorter than this go through the plain CRC instruction.
pub(super) const FOLD_LEN_MIN: usize = 128;

const AHEAD_2048: [i64; 8] = lane_factors([2048; 4]);
const AHEAD_1536: [i64; 8] = lane_factors([1536; 4]);
const AHEAD_1024: [i64; 8] = lane_factors([1024; 4]);
const AHEAD_512: [i64; 8] = lane_factors([512; 4]);
/// The last lane stays where it is; its product is not used.
const ONTO_LAST_LANE: [i64; 8] = lane_factors([384, 256, 128, 128]);

/// The factors that move 128-bit lane `i` ahead by `bits[i]`.
const fn lane_factors(bits: [u32; 4]) -> [i64; 8] {
    let [[a, b], [c, d], [e, f], [g, h]] = [
        fold_factors(bits[0]),
        fold_factors(bits[1]),
        fold_factors(bits[2]),
        fold_factors(bits[3]),
    ];
    [a, b, c, d, e, f, g, h]
}

/// Adds `len` octets at `src` to a running CRC32c.
///
/// # Safety
/// The processor must have the features; `src` must be readable for `len` octets, and `len` be
/// at least 64.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vbmi2,vpclmulqdq")]
pub(super) unsafe fn append(state: u32, src: *const u8, len: usize) -> u32 {
    // SAFETY: the caller's promise; nothing is stored.
    unsafe { run::<false>(state, src, ptr::null_mut(), len) }
}

/// Copies `len` octets from `src` to `dst` and adds them to a running CRC32c, loading each once.
///
/// # Safety
/// As [`append`]; `dst` must be writable for `len` octets, which do not overlap those at `src`.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vbmi2,vpclmulqdq")]
pub(super) unsafe fn copy(state: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { run::<true>(state, src, dst, len) }
}

/// Four 64-octet accumulators, each moved ahead by 256 octets per step and added to what is
/// there; at the end all are moved onto the last and that is reduced.
///
/// Zeros ahead of a message do not change its remainder. So the odd octets come first, at the
/// end of a block of zeros, and everything after is whole blocks: there is no tail.
///
/// # Safety
/// As [`append`], and as [`copy`] if `COPY`.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vbmi2,vpclmulqdq")]
unsafe fn run<const COPY: bool>(state: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    let odd = len % 64;
    let (first, mut at) = if odd < 4 {
        let state = if COPY {
            // SAFETY: `odd <= len`.
            unsafe { quadwords::copy(state, src, dst, odd) }
        } else {
            // SAFETY: as above.
            unsafe { quadwords::append(state, src, odd) }
        };
        // SAFETY: `len - odd` is a positive multiple of 64.
        let block = unsafe { take::<COPY>(src, dst, odd) };
        (_mm512_xor_si512(block, low_doubleword(state)), odd + 64)
    } else {
        let low_octets = (1_u64 << odd) - 1;
        // SAFETY: `odd <= len`, and the mask has `odd` bits.
        let octets = unsafe { load_masked(src, low_octets) };
        if COPY {
            // SAFETY: as above.
            unsafe { store_masked(dst, low_octets, octets) };
        }
        let octets = _mm512_xor_si512(octets, low_doubleword(state));
        (_mm512_maskz_expand_epi8(low_octets << (64 - odd), octets), odd)
    };
    let zero = _mm512_setzero_si512();
    let mut sums = [zero, zero, zero, first];
    while !(len - at).is_multiple_of(256) {
        // SAFETY: a positive multiple of 64 octets is left.
        let block = unsafe { take::<COPY>(src, dst, at) };
        sums = [sums[1], sums[2], sums[3], block];
        at += 64;
    }
    let ahead = factors(&AHEAD_2048);
    while at < len {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a positive multiple of 256 octets is left, and `i < 4`.
            let block = unsafe { take::<COPY>(src, dst, at + 64 * i) };
            *sum = fold(*sum, ahead, block);
        }
        at += 256;
    }
    let sum = fold(sums[0], factors(&AHEAD_1536), sums[3]);
    let sum = fold(sums[1], factors(&AHEAD_1024), sum);
    let sum = fold(sums[2], factors(&AHEAD_512), sum);
    reduce(sum)
}

/// The 64 octets at `src + at`; copies them to `dst + at` if `COPY`.
///
/// # Safety
/// They must be readable, and if `COPY` their place at `dst` writable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn take<const COPY: bool>(src: *const u8, dst: *mut u8, at: usize) -> __m512i {
    // SAFETY: the caller's promise.
    let block = unsafe { load(src.wrapping_add(at)) };
    if COPY {
        // SAFETY: the caller's promise.
        unsafe { store(dst.wrapping_add(at), block) };
    }
    block
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
    let state = crc_of_quadword(0, _mm_cvtsi128_si64(lane));
    crc_of_quadword(state, _mm_extract_epi64::<1>(lane))
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

/// # Safety
/// `dst` must be writable for 64 octets.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(dst: *mut u8, block: __m512i) {
    // SAFETY: stores the 64 octets the caller vouched for.
    unsafe {
        asm!(
            "vmovdqu64 [{dst}], {block}",
            block = in(zmm_reg) block,
            dst = in(reg) dst,
            options(nostack, preserves_flags)
        );
    }
}

/// Stores the octets for which `mask` has a one.
///
/// # Safety
/// `dst + i` must be writable for each bit `i` of the mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_masked(dst: *mut u8, mask: u64, block: __m512i) {
    // SAFETY: masked-out octets are not accessed, and the caller vouched for the others.
    unsafe {
        asm!(
            "vmovdqu8 [{dst}]{{{mask}}}, {block}",
            block = in(zmm_reg) block,
            mask = in(kreg) mask,
            dst = in(reg) dst,
            options(nostack, preserves_flags)
        );
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn low_doubleword(value: u32) -> __m512i {
    _mm512_maskz_set1_epi32(1, value.cast_signed())
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn crc_of_quadword(state: u32, value: i64) -> u32 {
    register(_mm_crc32_u64(u64::from(state), value.cast_unsigned()))
}
