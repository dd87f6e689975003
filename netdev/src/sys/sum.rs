//! The internet checksum's sum over bytes that may change meanwhile: the third pass over each
//! payload byte after CRC and copy, so it uses vectors. Loads are in assembly, for the reason given
//! in [`copy`](super::copy).
#![allow(unsafe_code, reason = "reads memory that may change under it")]

use super::copy::copy_out;

const BLOCK_LEN: usize = 64;
/// Blocks that 32-bit lanes can sum without overflow: each adds two 16-bit words to a lane.
const BLOCKS_MAX: usize = 1 << 14;

/// Ones' complement sum of `len` bytes as big-endian 16-bit words, an odd last byte padded with
/// zero; folded, not inverted (RFC 1071).
/// # Safety
/// `ptr` must be readable for `len` bytes. Others may write them meanwhile.
pub(crate) unsafe fn ones_complement_sum(ptr: *const u8, len: usize) -> u16 {
    // RFC 1071 §2 (B): the sum is independent of byte order, except for its own bytes. So words are
    // added in the machine's order, and the result is swapped at the end.
    let mut sum = 0u64;
    let blocks = len / BLOCK_LEN;
    let mut done = 0;
    while done < blocks {
        let now = (blocks - done).min(BLOCKS_MAX);
        // SAFETY: `done` blocks are inside the bytes that the caller guarantees.
        let at = unsafe { ptr.add(done * BLOCK_LEN) };
        // SAFETY: so are the `now` blocks that follow.
        sum += unsafe { sum_blocks(at, now) };
        done += now;
    }
    let tail_len = len % BLOCK_LEN;
    let mut tail = [0; BLOCK_LEN];
    // SAFETY: the bytes behind the blocks are inside the bytes that the caller guarantees.
    let at = unsafe { ptr.add(blocks * BLOCK_LEN) };
    // SAFETY: `tail_len` of them are left; `tail` is this function's own.
    unsafe { copy_out(at, &mut tail[..tail_len]) };
    sum += sum_words(&tail);
    fold(sum).to_be()
}

fn sum_words(block: &[u8; BLOCK_LEN]) -> u64 {
    block.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
}

/// RFC 1071 §2 (C): 2¹⁶ counts as 1, so wider sums fold to 16 bits.
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    u16::try_from(sum).expect("folded to 16 bits")
}

/// In the machine's byte order.
/// # Safety
/// `ptr` must be readable for `blocks` blocks.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn sum_blocks(ptr: *const u8, blocks: usize) -> u64 {
    if blocks >= 2 && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's contract, and the processor has AVX2.
        unsafe { sum_blocks_avx2(ptr, blocks) }
    } else {
        // SAFETY: the caller's contract.
        unsafe { sum_blocks_through_copy(ptr, blocks) }
    }
}

/// # Safety
/// `ptr` must be readable for `blocks` blocks.
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn sum_blocks(ptr: *const u8, blocks: usize) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { sum_blocks_through_copy(ptr, blocks) }
}

/// # Safety
/// `ptr` must be readable for `blocks` blocks.
unsafe fn sum_blocks_through_copy(ptr: *const u8, blocks: usize) -> u64 {
    let mut sum = 0;
    for block in 0..blocks {
        let mut octets = [0; BLOCK_LEN];
        // SAFETY: inside the blocks that the caller guarantees.
        let at = unsafe { ptr.add(block * BLOCK_LEN) };
        // SAFETY: a whole block is there; `octets` is this function's own.
        unsafe { copy_out(at, &mut octets) };
        sum += sum_words(&octets);
    }
    sum
}

/// # Safety
/// `ptr` must be readable for `blocks` blocks, from 1 to [`BLOCKS_MAX`]; the processor must have
/// AVX2.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
unsafe fn sum_blocks_avx2(ptr: *const u8, blocks: usize) -> u64 {
    let mut lanes = [0u32; 8];
    // SAFETY: loads `blocks` times 64 bytes from `ptr`, which the caller guarantees, and stores 32
    // bytes to `lanes`; `blocks` is not 0. Low and high words of each 32-bit word are added to
    // separate lanes, which cannot overflow within BLOCKS_MAX.
    unsafe {
        std::arch::asm!(
            "vpxor ymm0, ymm0, ymm0",
            "vpxor ymm1, ymm1, ymm1",
            "vpcmpeqd ymm2, ymm2, ymm2",
            "vpsrld ymm2, ymm2, 16",
            "2:",
            "vmovdqu ymm3, [{ptr}]",
            "vmovdqu ymm4, [{ptr} + 32]",
            "vpand ymm5, ymm3, ymm2",
            "vpand ymm6, ymm4, ymm2",
            "vpsrld ymm3, ymm3, 16",
            "vpsrld ymm4, ymm4, 16",
            "vpaddd ymm0, ymm0, ymm5",
            "vpaddd ymm1, ymm1, ymm3",
            "vpaddd ymm0, ymm0, ymm6",
            "vpaddd ymm1, ymm1, ymm4",
            "add {ptr}, 64",
            "dec {blocks}",
            "jnz 2b",
            "vpaddd ymm0, ymm0, ymm1",
            "vmovdqu [{lanes}], ymm0",
            "vzeroupper",
            ptr = inout(reg) ptr => _,
            blocks = inout(reg) blocks => _,
            lanes = in(reg) lanes.as_mut_ptr(),
            // VZEROUPPER clears the upper half of all sixteen registers.
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack)
        );
    }
    lanes.iter().map(|lane| u64::from(*lane)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(octets: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in octets.chunks(2) {
            let word = [pair[0], *pair.get(1).unwrap_or(&0)];
            sum += u64::from(u16::from_be_bytes(word));
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        u16::try_from(sum).unwrap()
    }

    fn sum(octets: &[u8]) -> u16 {
        // SAFETY: a slice is readable for its length.
        unsafe { ones_complement_sum(octets.as_ptr(), octets.len()) }
    }

    #[test]
    fn every_length_and_alignment_sums_as_the_rfc_says() {
        let octets: Vec<u8> =
            (0..1200u32).map(|i| (i * 89 + i / 7).to_le_bytes()[0] | 0x80).collect();
        for offset in 0..5 {
            for len in 0..600 {
                let part = &octets[offset..offset + len];
                assert_eq!(sum(part), reference(part), "{len} octets at {offset}");
            }
        }
    }

    #[test]
    fn lanes_do_not_overflow_in_the_largest_sums() {
        let octets = vec![0xff; (BLOCKS_MAX + 3) * BLOCK_LEN + 5];
        assert_eq!(sum(&octets), reference(&octets));
    }

    #[test]
    fn general_path_gives_the_same_sum() {
        let octets: Vec<u8> = (0..256u32).map(|i| (i * 37).to_le_bytes()[0]).collect();
        // SAFETY: four blocks are there.
        let slow = unsafe { sum_blocks_through_copy(octets.as_ptr(), 4) };
        assert_eq!(fold(slow).to_be(), reference(&octets));
    }
}
