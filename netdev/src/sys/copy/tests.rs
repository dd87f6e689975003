use super::*;

const CANARY: u8 = 0xC5;
const MARGIN: usize = 160;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + i / 251) % 251).unwrap()).collect()
}

/// Copies in and out at the given distances from an aligned address and checks every byte.
fn round_trip(len: usize, src_offset: usize, dst_offset: usize) {
    let source = pattern(src_offset + len);
    let bytes = &source[src_offset..];
    let mut memory = vec![CANARY; MARGIN + dst_offset + len + MARGIN];
    let start = MARGIN + dst_offset;
    let base = memory.as_mut_ptr();
    // SAFETY: inside the vector.
    let dst = unsafe { base.add(start) };
    // SAFETY: `len` bytes of the vector follow; nothing else borrows it.
    unsafe { copy_in(bytes, dst) };
    let mut back = vec![CANARY; len + 2 * MARGIN];
    // SAFETY: as above.
    unsafe { copy_out(dst, &mut back[MARGIN..MARGIN + len]) };

    for copy in [copy_across, reference::copy_across] {
        let mut other = vec![CANARY; MARGIN + len + MARGIN];
        // SAFETY: inside the vector.
        let to = unsafe { other.as_mut_ptr().add(MARGIN) };
        // SAFETY: `len` bytes of either vector; nothing else borrows them.
        unsafe { copy(dst, to, len) };
        assert_eq!(&other[MARGIN..MARGIN + len], bytes, "{len} octets across");
        assert!(other[..MARGIN].iter().all(|&octet| octet == CANARY), "before {len} octets");
        assert!(other[MARGIN + len..].iter().all(|&octet| octet == CANARY), "after {len} octets");
    }

    assert_eq!(&memory[start..start + len], bytes, "{len} octets in");
    assert!(memory[..start].iter().all(|&octet| octet == CANARY), "before {len} octets in");
    assert!(memory[start + len..].iter().all(|&octet| octet == CANARY), "after {len} octets in");
    assert_eq!(&back[MARGIN..MARGIN + len], bytes, "{len} octets out");
    assert!(back[..MARGIN].iter().all(|&octet| octet == CANARY), "before {len} octets out");
    assert!(back[MARGIN + len..].iter().all(|&octet| octet == CANARY), "after {len} octets out");
}

#[test]
fn every_length_is_copied_whole_and_nothing_beyond() {
    let longest = if cfg!(miri) { 40 } else { 700 };
    for len in 0..=longest {
        round_trip(len, 0, 0);
        round_trip(len, 1, 3);
    }
}

#[test]
fn every_alignment_is_copied_whole_and_nothing_beyond() {
    let lengths: &[usize] = if cfg!(miri) { &[5] } else { &[5, 31, 129, 160, 508, 1440] };
    for &len in lengths {
        for src_offset in [0, 1, 7, 31, 63] {
            for dst_offset in 0..64 {
                round_trip(len, src_offset, dst_offset);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow, and the reference copy has no lengths of its own")]
fn long_runs_are_copied_whole_and_nothing_beyond() {
    for len in [4096, 8940, 16_383, 16_384, 16_385, 65_535, 262_144, 262_145, 300_001] {
        round_trip(len, 3, 5);
    }
}

/// On processors with wider vectors nothing else uses this tier.
#[test]
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn narrow_vectors_copy_whole_runs_and_nothing_beyond() {
    if !std::arch::is_x86_feature_detected!("avx") {
        let name = "narrow_vectors_copy_whole_runs_and_nothing_beyond";
        return urnic_testkit::skip(name, "the processor has no AVX");
    }
    let source = pattern(2000);
    for len in (129..700).chain([1440, 1900]) {
        for offset in [0, 1, 31, 33] {
            let mut memory = vec![CANARY; len + 2 * MARGIN];
            let dst = memory[MARGIN + offset..].as_mut_ptr();
            // SAFETY: AVX is there, `len` exceeds 128, and the bytes are inside the vectors.
            unsafe { x86::copy_vectors(source.as_ptr(), dst, len) };
            let (before, rest) = memory.split_at(MARGIN + offset);
            assert!(before.iter().all(|&octet| octet == CANARY), "before {len} octets");
            assert_eq!(rest[..len], source[..len], "{len} octets");
            assert!(rest[len..].iter().all(|&octet| octet == CANARY), "after {len} octets");
        }
    }
}

#[test]
fn reference_copy_agrees_with_the_kernels() {
    let bytes = pattern(300);
    let (mut by_copy, mut by_reference) = (vec![0; 300], vec![0; 300]);
    for len in [0, 1, 8, 33, 129, 300] {
        // SAFETY: 300 bytes nothing else borrows.
        unsafe { copy_in(&bytes[..len], by_copy.as_mut_ptr()) };
        // SAFETY: as above.
        unsafe { reference::copy_in(&bytes[..len], by_reference.as_mut_ptr()) };
        assert_eq!(by_copy, by_reference);
        let (mut out, mut out_by_reference) = (vec![0; len], vec![0; len]);
        // SAFETY: 300 bytes nothing else borrows.
        unsafe { copy_out(by_copy.as_mut_ptr(), &mut out) };
        // SAFETY: as above.
        unsafe { reference::copy_out(by_reference.as_mut_ptr(), &mut out_by_reference) };
        assert_eq!(out, out_by_reference);
    }
}
