//! Three lanes of the CRC instructions of aarch64, joined by carry-less products. The head before
//! them has the bytes that whole turns leave over, at most 95.

use std::arch::aarch64::{__crc32cd, vmull_p64};
use std::arch::asm;

use super::polynomial::{LANE_TURN_LEN, LANES_AHEAD, TURNS_MAX};

const TURN_LEN: usize = 3 * LANE_TURN_LEN;
/// Shorter runs are not worth three lanes.
const LANES_LEN_MIN: usize = 192;

/// # Safety
/// The processor must have the features; `src` must be readable for `len` bytes.
#[target_feature(enable = "crc,neon,aes")]
pub(super) unsafe fn append(mut state: u32, mut src: *const u8, mut len: usize) -> u32 {
    while len >= LANES_LEN_MIN {
        let turns = (len / TURN_LEN).min(TURNS_MAX);
        let head = if turns == TURNS_MAX { 0 } else { len - turns * TURN_LEN };
        // SAFETY: `head + turns * TURN_LEN <= len`.
        let head_state = unsafe { append_quadwords(state, src, head) };
        // SAFETY: as above; `turns` is 1 or more.
        let lanes = unsafe { three_lanes(src.wrapping_add(head), turns) };
        state = join(head_state, lanes, turns);
        let done = head + turns * TURN_LEN;
        (src, len) = (src.wrapping_add(done), len - done);
    }
    // SAFETY: `len` bytes are left at `src`.
    unsafe { append_quadwords(state, src, len) }
}

/// The register after all parts. `head` is the register after the head.
#[inline]
#[target_feature(enable = "crc,neon,aes")]
fn join(head: u32, [a, b, c]: [u32; 3], turns: usize) -> u32 {
    let [one, two, three, _] = LANES_AHEAD[turns];
    c ^ __crc32cd(0, product(b, one) ^ product(a, two) ^ product(head, three))
}

#[inline]
#[target_feature(enable = "neon,aes")]
#[expect(clippy::cast_possible_truncation, reason = "a product of 32-bit factors has 63 bits")]
fn product(register: u32, factor: u32) -> u64 {
    vmull_p64(u64::from(register), u64::from(factor)) as u64
}

/// # Safety
/// The processor must have the CRC instructions; `src` must be readable for `turns * TURN_LEN`
/// bytes, and `turns` be 1 or more.
#[inline]
#[target_feature(enable = "crc")]
unsafe fn three_lanes(src: *const u8, turns: usize) -> [u32; 3] {
    let (mut a, mut b, mut c) = (0_u32, 0_u32, 0_u32);
    let lane_len = turns * LANE_TURN_LEN;
    // SAFETY: each pointer runs over its lane in steps of 32.
    unsafe {
        asm!(
            "2:",
            "ldp {t}, {u}, [{pa}], 16",
            "ldp {v}, {w}, [{pb}], 16",
            "ldp {x}, {y}, [{pc}], 16",
            "crc32cx {a:w}, {a:w}, {t}",
            "crc32cx {b:w}, {b:w}, {v}",
            "crc32cx {c:w}, {c:w}, {x}",
            "crc32cx {a:w}, {a:w}, {u}",
            "crc32cx {b:w}, {b:w}, {w}",
            "crc32cx {c:w}, {c:w}, {y}",
            "ldp {t}, {u}, [{pa}], 16",
            "ldp {v}, {w}, [{pb}], 16",
            "ldp {x}, {y}, [{pc}], 16",
            "crc32cx {a:w}, {a:w}, {t}",
            "crc32cx {b:w}, {b:w}, {v}",
            "crc32cx {c:w}, {c:w}, {x}",
            "crc32cx {a:w}, {a:w}, {u}",
            "crc32cx {b:w}, {b:w}, {w}",
            "crc32cx {c:w}, {c:w}, {y}",
            "subs {turns}, {turns}, 1",
            "b.ne 2b",
            pa = inout(reg) src => _,
            pb = inout(reg) src.wrapping_add(lane_len) => _,
            pc = inout(reg) src.wrapping_add(2 * lane_len) => _,
            turns = inout(reg) turns => _,
            a = inout(reg) a,
            b = inout(reg) b,
            c = inout(reg) c,
            t = out(reg) _,
            u = out(reg) _,
            v = out(reg) _,
            w = out(reg) _,
            x = out(reg) _,
            y = out(reg) _,
            options(nostack, readonly)
        );
    }
    [a, b, c]
}

/// # Safety
/// The processor must have the CRC instructions; `src` must be readable for `len` bytes.
#[inline]
#[target_feature(enable = "crc")]
unsafe fn append_quadwords(mut state: u32, src: *const u8, len: usize) -> u32 {
    // SAFETY: `left` counts down the readable bytes; each step loads at most that many.
    unsafe {
        asm!(
            "subs {left}, {left}, 8",
            "b.lo 3f",
            "2:",
            "ldr {word}, [{src}], 8",
            "crc32cx {state:w}, {state:w}, {word}",
            "subs {left}, {left}, 8",
            "b.hs 2b",
            "3:",
            // From here on, only the low three bits of `left` matter: steps of 8 keep them.
            "tbz {left}, 2, 4f",
            "ldr {word:w}, [{src}], 4",
            "crc32cw {state:w}, {state:w}, {word:w}",
            "4:",
            "tbz {left}, 1, 5f",
            "ldrh {word:w}, [{src}], 2",
            "crc32ch {state:w}, {state:w}, {word:w}",
            "5:",
            "tbz {left}, 0, 6f",
            "ldrb {word:w}, [{src}]",
            "crc32cb {state:w}, {state:w}, {word:w}",
            "6:",
            state = inout(reg) state,
            src = inout(reg) src => _,
            left = inout(reg) len => _,
            word = out(reg) _,
            options(nostack, readonly)
        );
    }
    state
}
