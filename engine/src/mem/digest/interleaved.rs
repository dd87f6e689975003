//! Folding by carry-less products *beside* three lanes of the CRC instruction: both in one pass of
//! the loop (a *turn*) take no longer than one of them.
//!
//! ```text
//! head │ folded, 96 bytes a turn │ lane a, 32 a turn │ lane b │ lane c
//! ```
//!
//! The head has the bytes that whole turns leave over, at most 191. Folding uses three accumulators
//! of 256 bits, or six of 128. There are three lanes because the CRC instruction takes three cycles
//! and one can start every cycle.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi64_si128,
    _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_set_epi64x, _mm256_xor_si256,
};

use super::polynomial::{LANE_TURN_LEN, LANES_AHEAD, TURNS_MAX, fold_factors};
use super::quadwords::{self, register};

const FOLD_TURN_LEN: usize = 96;
const FOLD_TURN_BITS: u32 = 8 * 96;
/// Bytes of one turn: the shortest run that has a turn.
pub(super) const TURN_LEN: usize = FOLD_TURN_LEN + 3 * LANE_TURN_LEN;
/// From this length on, a copy stores whole aligned vectors.
const ALIGNED_COPY_LEN_MIN: usize = 2048;
const VECTOR_LEN: usize = 32;

macro_rules! step_lanes {
    ($base:literal, $at:literal) => {
        concat!(
            "crc32 {a}, qword ptr [{",
            $base,
            "} + ",
            $at,
            "]\n",
            "crc32 {b}, qword ptr [{",
            $base,
            "} + {lane_len} + ",
            $at,
            "]\n",
            "crc32 {c}, qword ptr [{",
            $base,
            "} + 2*{lane_len} + ",
            $at,
            "]",
        )
    };
}

pub(super) use step_lanes;

macro_rules! fold_256 {
    ($sum:literal, $at:literal) => {
        concat!(
            "vpclmulqdq {t0}, {",
            $sum,
            "}, {ahead}, 0x00\n",
            "vpclmulqdq {t1}, {",
            $sum,
            "}, {ahead}, 0x11\n",
            "vpxor {t0}, {t0}, [{src} + ",
            $at,
            "]\n",
            "vpxor {",
            $sum,
            "}, {t0}, {t1}",
        )
    };
}

macro_rules! fold_256_copying {
    ($sum:literal, $at:literal) => {
        concat!(
            "vmovdqu {t2}, [{src} + ",
            $at,
            "]\n",
            "vpclmulqdq {t0}, {",
            $sum,
            "}, {ahead}, 0x00\n",
            "vpclmulqdq {t1}, {",
            $sum,
            "}, {ahead}, 0x11\n",
            "vmovdqu [{dst} + ",
            $at,
            "], {t2}\n",
            "vpxor {t0}, {t0}, {t2}\n",
            "vpxor {",
            $sum,
            "}, {t0}, {t1}",
        )
    };
}

macro_rules! fold_128 {
    ($sum:literal, $at:literal) => {
        concat!(
            "movdqa {t0}, {",
            $sum,
            "}\n",
            "pclmulqdq {t0}, {ahead}, 0x00\n",
            "pclmulqdq {",
            $sum,
            "}, {ahead}, 0x11\n",
            "movdqu {t1}, [{src} + ",
            $at,
            "]\n",
            "pxor {t0}, {t1}\n",
            "pxor {",
            $sum,
            "}, {t0}",
        )
    };
}

/// Result of turns: the remainder of the folded bytes, 128 bits, and the lanes' registers.
struct Sums {
    folded: __m128i,
    lanes: [u64; 3],
}

/// # Safety
/// The processor must have the features; `src` must be readable for `len` bytes.
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
pub(super) unsafe fn append_256(mut state: u32, mut src: *const u8, mut len: usize) -> u32 {
    while len >= TURN_LEN {
        let (head, turns) = split(len, 0);
        // SAFETY: `head + turns * TURN_LEN <= len`.
        state = unsafe { quadwords::append(state, src, head) };
        // SAFETY: as above; `turns` is 1 or more.
        let sums = unsafe { turns_256(src.wrapping_add(head), turns) };
        state = join(state, &sums, turns);
        let done = head + turns * TURN_LEN;
        (src, len) = (src.wrapping_add(done), len - done);
    }
    // SAFETY: `len` bytes are left at `src`.
    unsafe { quadwords::append(state, src, len) }
}

/// # Safety
/// As [`append_256`].
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn append_128(mut state: u32, mut src: *const u8, mut len: usize) -> u32 {
    while len >= TURN_LEN {
        let (head, turns) = split(len, 0);
        // SAFETY: `head + turns * TURN_LEN <= len`.
        state = unsafe { quadwords::append(state, src, head) };
        // SAFETY: as above; `turns` is 1 or more.
        let sums = unsafe { turns_128(src.wrapping_add(head), turns) };
        state = join(state, &sums, turns);
        let done = head + turns * TURN_LEN;
        (src, len) = (src.wrapping_add(done), len - done);
    }
    // SAFETY: `len` bytes are left at `src`.
    unsafe { quadwords::append(state, src, len) }
}

/// Adds the resulting bytes of `dst` to the CRC.
/// # Safety
/// As [`append_256`]; `dst` must be writable for `len` bytes that do not overlap those at `src`.
/// Bytes that others write there meanwhile may enter the CRC.
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
pub(super) unsafe fn copy_256(
    mut state: u32,
    mut src: *const u8,
    mut dst: *mut u8,
    mut len: usize,
) -> u32 {
    while len >= TURN_LEN {
        // The turns of a long run begin at a whole vector, and the tail is less than a vector.
        let unaligned = if len < ALIGNED_COPY_LEN_MIN { 0 } else { to_whole_vector(dst) };
        let tail = if len < ALIGNED_COPY_LEN_MIN { 0 } else { (len - unaligned) % VECTOR_LEN };
        let (head, turns) = split(len - tail, unaligned);
        // SAFETY: `head + turns * TURN_LEN <= len`.
        state = unsafe { quadwords::copy(state, src, dst, head) };
        // SAFETY: as above; `turns` is 1 or more.
        let sums =
            unsafe { turns_256_copying(src.wrapping_add(head), dst.wrapping_add(head), turns) };
        state = join(state, &sums, turns);
        let done = head + turns * TURN_LEN;
        (src, dst, len) = (src.wrapping_add(done), dst.wrapping_add(done), len - done);
    }
    // SAFETY: `len` bytes are left at `src`, and room for them at `dst`.
    unsafe { quadwords::copy(state, src, dst, len) }
}

/// Length of the head, as short as possible, and number of turns, 1 to [`TURNS_MAX`].
#[inline]
const fn split(len: usize, head_min: usize) -> (usize, usize) {
    let turns = (len - head_min) / TURN_LEN;
    if turns > TURNS_MAX { (head_min, TURNS_MAX) } else { (len - turns * TURN_LEN, turns) }
}

#[inline]
fn to_whole_vector(ptr: *mut u8) -> usize {
    ptr.addr().wrapping_neg() % VECTOR_LEN
}

/// The register after all parts. `head` is the register after the head.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn join(head: u32, sums: &Sums, turns: usize) -> u32 {
    let [one, two, three, six] = LANES_AHEAD[turns];
    let Sums { folded, lanes: [a, b, c] } = *sums;
    let folded = crc_of_quadword(
        crc_of_quadword(0, _mm_cvtsi128_si64(folded)),
        _mm_extract_epi64::<1>(folded),
    );
    // The folded part is as long as three lanes.
    let near = _mm_xor_si128(product(register(b), one), product(register(a), two));
    let far = _mm_xor_si128(product(folded, three), product(head, six));
    register(c) ^ crc_of_quadword(0, _mm_cvtsi128_si64(_mm_xor_si128(near, far)))
}

/// The register after a part with the register `folded` and three lanes of `turns` turns after it.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn join_lanes(folded: u32, [a, b, c]: [u64; 3], turns: usize) -> u32 {
    let [one, two, three, _] = LANES_AHEAD[turns];
    let near = _mm_xor_si128(product(register(b), one), product(register(a), two));
    let all = _mm_xor_si128(near, product(folded, three));
    register(c) ^ crc_of_quadword(0, _mm_cvtsi128_si64(all))
}

/// # Safety
/// The processor must have the features; `src` must be readable for `turns * TURN_LEN` bytes, and
/// `turns` be 1 or more.
#[inline]
#[target_feature(enable = "sse4.2,avx2,vpclmulqdq")]
unsafe fn turns_256(src: *const u8, turns: usize) -> Sums {
    let ahead = twice(const { fold_factors(FOLD_TURN_BITS) });
    let (y0, y1, y2): (__m256i, __m256i, __m256i);
    let (mut a, mut b, mut c) = (0_u64, 0_u64, 0_u64);
    let lane = src.wrapping_add(turns * FOLD_TURN_LEN);
    // SAFETY: `src` runs over the folded part in steps of 96, `lane` over the first lane in steps
    // of 32; with the lane length added once and twice it stays inside the second and third.
    unsafe {
        asm!(
            "vpxor {y0}, {y0}, {y0}",
            "vpxor {y1}, {y1}, {y1}",
            "vpxor {y2}, {y2}, {y2}",
            "2:",
            fold_256!("y0", 0),
            step_lanes!("lane", 0),
            fold_256!("y1", 32),
            step_lanes!("lane", 8),
            step_lanes!("lane", 16),
            fold_256!("y2", 64),
            step_lanes!("lane", 24),
            "add {src}, 96",
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
            ahead = in(ymm_reg) ahead,
            y0 = out(ymm_reg) y0,
            y1 = out(ymm_reg) y1,
            y2 = out(ymm_reg) y2,
            t0 = out(ymm_reg) _,
            t1 = out(ymm_reg) _,
            options(nostack, readonly)
        );
    }
    Sums { folded: reduce_256([y0, y1, y2]), lanes: [a, b, c] }
}

/// The lanes are read from the copy: vectors take fewer stores than quadwords would, and the
/// processor forwards recent stores.
/// # Safety
/// As [`turns_256`]; `dst` must be writable for as many bytes, which do not overlap those at `src`.
#[inline]
#[target_feature(enable = "sse4.2,avx2,vpclmulqdq")]
unsafe fn turns_256_copying(src: *const u8, dst: *mut u8, turns: usize) -> Sums {
    let ahead = twice(const { fold_factors(FOLD_TURN_BITS) });
    let (y0, y1, y2): (__m256i, __m256i, __m256i);
    let (mut a, mut b, mut c) = (0_u64, 0_u64, 0_u64);
    let lanes_at = turns * FOLD_TURN_LEN;
    // SAFETY: as in `turns_256`; each byte is loaded once from `src + i` and stored to `dst + i`.
    unsafe {
        asm!(
            "vpxor {y0}, {y0}, {y0}",
            "vpxor {y1}, {y1}, {y1}",
            "vpxor {y2}, {y2}, {y2}",
            "2:",
            "vmovdqu {t0}, [{lane}]",
            "vmovdqu {t1}, [{lane} + {lane_len}]",
            "vmovdqu {t2}, [{lane} + 2*{lane_len}]",
            "vmovdqu [{copied}], {t0}",
            "vmovdqu [{copied} + {lane_len}], {t1}",
            "vmovdqu [{copied} + 2*{lane_len}], {t2}",
            fold_256_copying!("y0", 0),
            step_lanes!("copied", 0),
            step_lanes!("copied", 8),
            fold_256_copying!("y1", 32),
            step_lanes!("copied", 16),
            fold_256_copying!("y2", 64),
            step_lanes!("copied", 24),
            "add {src}, 96",
            "add {dst}, 96",
            "add {lane}, 32",
            "add {copied}, 32",
            "dec {turns}",
            "jnz 2b",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            lane = inout(reg) src.wrapping_add(lanes_at) => _,
            copied = inout(reg) dst.wrapping_add(lanes_at) => _,
            lane_len = in(reg) turns * LANE_TURN_LEN,
            turns = inout(reg) turns => _,
            a = inout(reg) a,
            b = inout(reg) b,
            c = inout(reg) c,
            ahead = in(ymm_reg) ahead,
            y0 = out(ymm_reg) y0,
            y1 = out(ymm_reg) y1,
            y2 = out(ymm_reg) y2,
            t0 = out(ymm_reg) _,
            t1 = out(ymm_reg) _,
            t2 = out(ymm_reg) _,
            options(nostack)
        );
    }
    Sums { folded: reduce_256([y0, y1, y2]), lanes: [a, b, c] }
}

/// # Safety
/// As [`turns_256`].
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
unsafe fn turns_128(src: *const u8, turns: usize) -> Sums {
    let ahead = pair(const { fold_factors(FOLD_TURN_BITS) });
    let (x0, x1, x2, x3, x4, x5): (__m128i, __m128i, __m128i, __m128i, __m128i, __m128i);
    let (mut a, mut b, mut c) = (0_u64, 0_u64, 0_u64);
    let lane = src.wrapping_add(turns * FOLD_TURN_LEN);
    // SAFETY: as in `turns_256`.
    unsafe {
        asm!(
            "pxor {x0}, {x0}",
            "pxor {x1}, {x1}",
            "pxor {x2}, {x2}",
            "pxor {x3}, {x3}",
            "pxor {x4}, {x4}",
            "pxor {x5}, {x5}",
            "2:",
            fold_128!("x0", 0),
            fold_128!("x1", 16),
            step_lanes!("lane", 0),
            fold_128!("x2", 32),
            step_lanes!("lane", 8),
            fold_128!("x3", 48),
            step_lanes!("lane", 16),
            fold_128!("x4", 64),
            fold_128!("x5", 80),
            step_lanes!("lane", 24),
            "add {src}, 96",
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
            ahead = in(xmm_reg) ahead,
            x0 = out(xmm_reg) x0,
            x1 = out(xmm_reg) x1,
            x2 = out(xmm_reg) x2,
            x3 = out(xmm_reg) x3,
            x4 = out(xmm_reg) x4,
            x5 = out(xmm_reg) x5,
            t0 = out(xmm_reg) _,
            t1 = out(xmm_reg) _,
            options(nostack, readonly)
        );
    }
    let low = [
        moved_128(x0, const { fold_factors(640) }),
        moved_128(x1, const { fold_factors(512) }),
        moved_128(x2, const { fold_factors(384) }),
    ];
    let high = [
        moved_128(x3, const { fold_factors(256) }),
        moved_128(x4, const { fold_factors(128) }),
        x5,
    ];
    let xor = |[a, b, c]: [__m128i; 3]| _mm_xor_si128(_mm_xor_si128(a, b), c);
    Sums { folded: _mm_xor_si128(xor(low), xor(high)), lanes: [a, b, c] }
}

/// The remainder of three consecutive accumulators, as 128 bits.
#[inline]
#[target_feature(enable = "pclmulqdq,avx2,vpclmulqdq")]
fn reduce_256([y0, y1, y2]: [__m256i; 3]) -> __m128i {
    let moved = _mm256_xor_si256(
        moved_256(y0, const { fold_factors(512) }),
        moved_256(y1, const { fold_factors(256) }),
    );
    let sum = _mm256_xor_si256(moved, y2);
    let (low, high) = (_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    _mm_xor_si128(moved_128(low, const { fold_factors(128) }), high)
}

#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn moved_256(sum: __m256i, factors: [i64; 2]) -> __m256i {
    let factors = twice(factors);
    _mm256_xor_si256(
        _mm256_clmulepi64_epi128::<0x00>(sum, factors),
        _mm256_clmulepi64_epi128::<0x11>(sum, factors),
    )
}

#[inline]
#[target_feature(enable = "pclmulqdq")]
fn moved_128(sum: __m128i, factors: [i64; 2]) -> __m128i {
    let factors = pair(factors);
    _mm_xor_si128(
        _mm_clmulepi64_si128::<0x00>(sum, factors),
        _mm_clmulepi64_si128::<0x11>(sum, factors),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn twice([low, high]: [i64; 2]) -> __m256i {
    _mm256_set_epi64x(high, low, high, low)
}

#[inline]
#[target_feature(enable = "sse2")]
fn pair([low, high]: [i64; 2]) -> __m128i {
    _mm_set_epi64x(high, low)
}

#[inline]
#[target_feature(enable = "pclmulqdq")]
fn product(register: u32, factor: u32) -> __m128i {
    let register = _mm_cvtsi64_si128(i64::from(register));
    _mm_clmulepi64_si128::<0>(register, _mm_cvtsi32_si128(factor.cast_signed()))
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn crc_of_quadword(state: u32, value: i64) -> u32 {
    register(_mm_crc32_u64(u64::from(state), value.cast_unsigned()))
}
