//! Folding by 512-bit carry-less products of AVX-512; in longer runs beside three lanes of the CRC
//! instruction, which uses another unit of the processor (see [`interleaved`](super::interleaved)):
//!
//! ```text
//! odd bytes and whole blocks │ folded, 192 bytes a turn │ lane a, 32 a turn │ lane b │ lane c
//! ```

use std::arch::asm;
use std::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_xor_si256, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_mask_mov_epi64,
    _mm512_maskz_expand_epi8, _mm512_maskz_set1_epi32, _mm512_set_epi64, _mm512_setzero_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};
use std::ptr;

use super::interleaved::{join_lanes, step_lanes};
use super::polynomial::{LANE_TURN_LEN, TURNS_MAX, fold_factors};
use super::quadwords::{self, register};

const BLOCK_LEN: usize = 64;
const FOLD_TURN_LEN: usize = 192;
/// Twelve cycles: a product starts every second cycle (six a turn), a CRC instruction every cycle.
const TURN_LEN: usize = FOLD_TURN_LEN + 3 * LANE_TURN_LEN;
/// Runs with fewer turns are faster with folding alone.
const TURNS_MIN: usize = 3;

/// Runs shorter than this use only the CRC instruction.
pub(super) const FOLD_LEN_MIN: usize = 128;

const AHEAD_2048: [i64; 8] = lane_factors([2048; 4]);
const AHEAD_1536: [i64; 8] = lane_factors([1536; 4]);
const AHEAD_1024: [i64; 8] = lane_factors([1024; 4]);
const AHEAD_512: [i64; 8] = lane_factors([512; 4]);
/// They move the first three lanes onto the last. The fourth product is not used.
const ONTO_LAST_LANE: [i64; 8] = lane_factors([384, 256, 128, 128]);

const fn lane_factors(bits: [u32; 4]) -> [i64; 8] {
    let [[a, b], [c, d], [e, f], [g, h]] = [
        fold_factors(bits[0]),
        fold_factors(bits[1]),
        fold_factors(bits[2]),
        fold_factors(bits[3]),
    ];
    [a, b, c, d, e, f, g, h]
}

/// # Safety
/// The processor must have the features; `src` must be readable for `len` bytes, and `len` be at
/// least 64.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
pub(super) unsafe fn append(state: u32, src: *const u8, len: usize) -> u32 {
    // SAFETY: the caller's promise; nothing is stored.
    unsafe { all::<false>(state, src, ptr::null_mut(), len) }
}

/// Loads each byte once.
/// # Safety
/// As [`append`]; `dst` must be writable for `len` bytes, which do not overlap those at `src`.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
pub(super) unsafe fn copy(state: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { all::<true>(state, src, dst, len) }
}

/// Like [`copy`], but stores whole vectors in order: for memory that another core used last. The
/// eight-byte stores of the lanes would wait for its cache lines longer than the CRC takes.
/// # Safety
/// As [`copy`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
pub(super) unsafe fn copy_far(state: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { run::<true>(state, src, dst, len) }
}

/// # Safety
/// As [`append`], and as [`copy`] if `COPY`.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
unsafe fn all<const COPY: bool>(
    mut state: u32,
    mut src: *const u8,
    mut dst: *mut u8,
    mut len: usize,
) -> u32 {
    // A longer copy exceeds the nearest cache: the caches are then the bottleneck.
    if COPY && len / TURN_LEN > TURNS_MAX {
        // SAFETY: the caller's promise.
        return unsafe { run::<COPY>(state, src, dst, len) };
    }
    while len / TURN_LEN > TURNS_MAX {
        // Leaves room for the block that receives the register.
        let part = TURNS_MAX * TURN_LEN + BLOCK_LEN;
        // SAFETY: more bytes than `part` are there.
        state = unsafe { run_beside_lanes::<COPY>(state, src, dst, part, TURNS_MAX) };
        (src, dst, len) = (src.wrapping_add(part), dst.wrapping_add(part), len - part);
    }
    // The register goes into the bytes before the turns: at least four.
    let turns = (len - size_of::<u32>()) / TURN_LEN;
    if turns < TURNS_MIN {
        // SAFETY: the caller's promise, and of a long run more than 64 bytes are left.
        unsafe { run::<COPY>(state, src, dst, len) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { run_beside_lanes::<COPY>(state, src, dst, len, turns) }
    }
}

/// Four 64-byte accumulators, each moved ahead by 256 bytes per step. At the end all are moved onto
/// the last one. Zeros ahead of a message do not change its remainder: the odd bytes come first, at
/// the end of a block of zeros, so no tail remains.
/// # Safety
/// As [`append`], and as [`copy`] if `COPY`.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
unsafe fn run<const COPY: bool>(state: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    // SAFETY: the caller's promise.
    let (first, mut at) = unsafe { begin::<COPY>(state, src, dst, len) };
    let zero = _mm512_setzero_si512();
    let mut sums = [zero, zero, zero, first];
    while !(len - at).is_multiple_of(256) {
        // SAFETY: a positive multiple of 64 bytes is left.
        let block = unsafe { take::<COPY>(src, dst, at) };
        sums = [sums[1], sums[2], sums[3], block];
        at += 64;
    }
    let ahead = factors(&AHEAD_2048);
    while at < len {
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: a positive multiple of 256 bytes is left, and `i < 4`.
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

/// The first block with the register added, and the next one's offset: whole blocks are left.
/// # Safety
/// As [`run`].
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
unsafe fn begin<const COPY: bool>(
    state: u32,
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> (__m512i, usize) {
    let odd = len % 64;
    if odd < 4 {
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
    }
}

macro_rules! fold_512 {
    ($sum:literal, $at:literal) => {
        concat!(
            "vpclmulqdq {t}, {",
            $sum,
            "}, {ahead}, 0x00\n",
            "vpclmulqdq {",
            $sum,
            "}, {",
            $sum,
            "}, {ahead}, 0x11\n",
            "vpternlogq {",
            $sum,
            "}, {t}, zmmword ptr [{src} + ",
            $at,
            "], 0x96",
        )
    };
}

/// Like `fold_512`, and copies the bytes to `dst + at`.
macro_rules! fold_512_copying {
    ($sum:literal, $at:literal) => {
        concat!(
            "vmovdqu64 {u}, zmmword ptr [{src} + ",
            $at,
            "]\n",
            "vpclmulqdq {t}, {",
            $sum,
            "}, {ahead}, 0x00\n",
            "vpclmulqdq {",
            $sum,
            "}, {",
            $sum,
            "}, {ahead}, 0x11\n",
            "vmovdqu64 zmmword ptr [{dst} + ",
            $at,
            "], {u}\n",
            "vpternlogq {",
            $sum,
            "}, {t}, {u}, 0x96",
        )
    };
}

/// Moves each lane ahead by the eight bytes at `lane + at`, and copies them to `copied + at`.
macro_rules! copy_lanes {
    ($at:literal) => {
        concat!(
            "mov {o}, qword ptr [{lane} + ",
            $at,
            "]\n",
            "mov qword ptr [{copied} + ",
            $at,
            "], {o}\n",
            "crc32 {a}, {o}\n",
            "mov {o}, qword ptr [{lane} + {lane_len} + ",
            $at,
            "]\n",
            "mov qword ptr [{copied} + {lane_len} + ",
            $at,
            "], {o}\n",
            "crc32 {b}, {o}\n",
            "mov {o}, qword ptr [{lane} + 2*{lane_len} + ",
            $at,
            "]\n",
            "mov qword ptr [{copied} + 2*{lane_len} + ",
            $at,
            "], {o}\n",
            "crc32 {c}, {o}",
        )
    };
}

/// Three accumulators beside three lanes of the CRC instruction, for `turns` turns at the end of
/// the run. The bytes before the turns are folded alone.
/// # Safety
/// As [`append`], and as [`copy`] if `COPY`; `turns` must be at least 1 and at most [`TURNS_MAX`],
/// and `len` at least four bytes more than `turns * TURN_LEN`.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
unsafe fn run_beside_lanes<const COPY: bool>(
    state: u32,
    src: *const u8,
    dst: *mut u8,
    len: usize,
    turns: usize,
) -> u32 {
    let folded_len = len - turns * 3 * LANE_TURN_LEN;
    let ahead = factors(&AHEAD_1536);
    // SAFETY: the folded part has at least 192 bytes.
    let (first, mut at) = unsafe { begin::<COPY>(state, src, dst, folded_len) };
    let zero = _mm512_setzero_si512();
    let mut sums = [zero, zero, first];
    let turns_at = folded_len - turns * FOLD_TURN_LEN;
    while at < turns_at {
        // SAFETY: a positive multiple of 64 bytes is left.
        let block = unsafe { take::<COPY>(src, dst, at) };
        sums = [sums[1], sums[2], fold(sums[0], ahead, block)];
        at += 64;
    }
    let from = [src.wrapping_add(at), src.wrapping_add(folded_len)];
    let lanes = if COPY {
        let to = [dst.wrapping_add(at), dst.wrapping_add(folded_len)];
        // SAFETY: of each, `turns` turns are left.
        unsafe { turn_copying(&mut sums, from, to, turns) }
    } else {
        // SAFETY: as above.
        unsafe { turn(&mut sums, from, turns) }
    };
    let [z0, z1, z2] = sums;
    let sum = fold(z0, factors(&AHEAD_1024), z2);
    let sum = fold(z1, factors(&AHEAD_512), sum);
    join_lanes(reduce(sum), lanes, turns)
}

/// Folds from the first address, and runs the lanes from the second, for `turns` turns.
/// # Safety
/// The processor must have the features; at the first address `turns * FOLD_TURN_LEN` bytes must be
/// readable, at the second three times `turns * LANE_TURN_LEN`, and `turns` be 1 or more.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
unsafe fn turn(sums: &mut [__m512i; 3], [src, lane]: [*const u8; 2], turns: usize) -> [u64; 3] {
    let [mut z0, mut z1, mut z2] = *sums;
    let (mut a, mut b, mut c) = (0_u64, 0_u64, 0_u64);
    let ahead = factors(&AHEAD_1536);
    // SAFETY: `src` runs over the folded part in steps of 192, `lane` over the first lane in steps
    // of 32; with the lane length added once and twice it stays inside the second and third.
    unsafe {
        asm!(
            "2:",
            fold_512!("z0", 0),
            step_lanes!("lane", 0),
            fold_512!("z1", 64),
            step_lanes!("lane", 8),
            step_lanes!("lane", 16),
            fold_512!("z2", 128),
            step_lanes!("lane", 24),
            "add {src}, 192",
            "add {lane}, 32",
            "dec {turns}",
            "jnz 2b",
            src = inout(reg) src => _,
            lane = inout(reg) lane => _,
            lane_len = in(reg) turns * LANE_TURN_LEN,
            turns = inout(reg) turns => _,
            a = inout(reg) a,
            b = inout(reg) b,
            c = inout(reg) c,
            ahead = in(zmm_reg) ahead,
            z0 = inout(zmm_reg) z0,
            z1 = inout(zmm_reg) z1,
            z2 = inout(zmm_reg) z2,
            t = out(zmm_reg) _,
            options(nostack, readonly)
        );
    }
    *sums = [z0, z1, z2];
    [a, b, c]
}

/// Like [`turn`], and copies the digested bytes, loading each byte once.
/// # Safety
/// As [`turn`]; at `dst` and `copied`, as many bytes must be writable as are read, and they must
/// not overlap the bytes that are read.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,vpclmulqdq")]
unsafe fn turn_copying(
    sums: &mut [__m512i; 3],
    [src, lane]: [*const u8; 2],
    [dst, copied]: [*mut u8; 2],
    turns: usize,
) -> [u64; 3] {
    let [mut z0, mut z1, mut z2] = *sums;
    let (mut a, mut b, mut c) = (0_u64, 0_u64, 0_u64);
    let ahead = factors(&AHEAD_1536);
    // SAFETY: as in `turn`; each byte is loaded once from `src + i` and stored to `dst + i`.
    unsafe {
        asm!(
            "2:",
            fold_512_copying!("z0", 0),
            copy_lanes!( 0),
            fold_512_copying!("z1", 64),
            copy_lanes!( 8),
            copy_lanes!( 16),
            fold_512_copying!("z2", 128),
            copy_lanes!( 24),
            "add {src}, 192",
            "add {dst}, 192",
            "add {lane}, 32",
            "add {copied}, 32",
            "dec {turns}",
            "jnz 2b",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            lane = inout(reg) lane => _,
            copied = inout(reg) copied => _,
            lane_len = in(reg) turns * LANE_TURN_LEN,
            turns = inout(reg) turns => _,
            a = inout(reg) a,
            b = inout(reg) b,
            c = inout(reg) c,
            ahead = in(zmm_reg) ahead,
            z0 = inout(zmm_reg) z0,
            z1 = inout(zmm_reg) z1,
            z2 = inout(zmm_reg) z2,
            t = out(zmm_reg) _,
            u = out(zmm_reg) _,
            o = out(reg) _,
            options(nostack)
        );
    }
    *sums = [z0, z1, z2];
    [a, b, c]
}

/// # Safety
/// The 64 bytes at `src + at` must be readable and, if `COPY`, those at `dst + at` writable.
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

/// The remainder of 64 bytes, as a CRC register.
#[inline]
#[target_feature(enable = "sse4.2,avx512f,vpclmulqdq")]
fn reduce(sum: __m512i) -> u32 {
    // The first three 128-bit lanes move onto the last, which does not move.
    let moved = fold(sum, factors(&ONTO_LAST_LANE), _mm512_setzero_si512());
    let lanes = _mm512_mask_mov_epi64(moved, 0b1100_0000, sum);
    let half =
        _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
    let lane = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    let state = crc_of_quadword(0, _mm_cvtsi128_si64(lane));
    crc_of_quadword(state, _mm_extract_epi64::<1>(lane))
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(sum: __m512i, factors: __m512i, block: __m512i) -> __m512i {
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
/// `src` must be readable for 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(src: *const u8) -> __m512i {
    let block;
    // SAFETY: loads the 64 bytes the caller vouched for.
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

/// Loads the bytes whose bit of the mask is set, and zeros elsewhere.
/// # Safety
/// `src + i` must be readable for each bit `i` of the mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_masked(src: *const u8, mask: u64) -> __m512i {
    let block;
    // SAFETY: masked-out bytes are not accessed, and the caller vouched for the others.
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
/// `dst` must be writable for 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(dst: *mut u8, block: __m512i) {
    // SAFETY: stores the 64 bytes the caller vouched for.
    unsafe {
        asm!(
            "vmovdqu64 [{dst}], {block}",
            block = in(zmm_reg) block,
            dst = in(reg) dst,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// `dst + i` must be writable for each bit `i` of the mask.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_masked(dst: *mut u8, mask: u64, block: __m512i) {
    // SAFETY: masked-out bytes are not accessed, and the caller vouched for the others.
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
