//! The CRC instruction of x86-64, without folding: for short runs, and the rest of other kernels.

use std::arch::asm;

/// # Safety
/// The processor must have SSE4.2; `src` must be readable for `len` bytes.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn append(state: u32, src: *const u8, len: usize) -> u32 {
    let mut state = u64::from(state);
    // SAFETY: `left` counts down the readable bytes; each step loads at most that many.
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
            // From here on, only the low three bits of `left` matter: steps of 8 keep them.
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

/// Loads each byte once.
/// # Safety
/// As [`append`]; `dst` must be writable for `len` bytes, which do not overlap those at `src`.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn copy(state: u32, src: *const u8, dst: *mut u8, len: usize) -> u32 {
    let mut state = u64::from(state);
    // SAFETY: as in `append`; each byte loaded from `src + i` is stored to `dst + i`.
    unsafe {
        asm!(
            "sub {left}, 8",
            "jb 3f",
            "2:",
            "mov {word}, qword ptr [{src}]",
            "add {src}, 8",
            "mov qword ptr [{dst}], {word}",
            "add {dst}, 8",
            "crc32 {state}, {word}",
            "sub {left}, 8",
            "jae 2b",
            "3:",
            "test {left:l}, 4",
            "jz 4f",
            "mov {word:e}, dword ptr [{src}]",
            "add {src}, 4",
            "mov dword ptr [{dst}], {word:e}",
            "add {dst}, 4",
            "crc32 {state:e}, {word:e}",
            "4:",
            "test {left:l}, 2",
            "jz 5f",
            "movzx {word:e}, word ptr [{src}]",
            "add {src}, 2",
            "mov word ptr [{dst}], {word:x}",
            "add {dst}, 2",
            "crc32 {state:e}, {word:x}",
            "5:",
            "test {left:l}, 1",
            "jz 6f",
            "movzx {word:e}, byte ptr [{src}]",
            "mov byte ptr [{dst}], {word:l}",
            "crc32 {state:e}, {word:l}",
            "6:",
            state = inout(reg) state,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            left = inout(reg) len => _,
            word = out(reg) _,
            options(nostack)
        );
    }
    register(state)
}

/// The CRC instruction leaves the upper half of its 64-bit destination zero.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the upper half is zero")]
pub(super) const fn register(state: u64) -> u32 {
    state as u32
}
