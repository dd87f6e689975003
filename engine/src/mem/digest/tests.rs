use proptest::prelude::*;

use super::*;

fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

fn expected(state: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, bytes)
}

/// Bytes beside a copy, which must not change.
const MARGIN: usize = 64;

/// All kernels of this processor must agree with the crate, alone and with a copy.
fn assert_all_kernels(state: u32, bytes: &[u8]) {
    let expected = expected(state, bytes);
    let slice = SharedSlice::from_bytes(bytes);
    let len = bytes.len();
    assert_eq!(crc32c_append_shared(state, slice), expected, "{len} octets");
    for kernel in Kernel::available() {
        let name = kernel.name();
        assert_eq!(kernel.append(state, slice), expected, "{len} octets by {name}");
        assert_copy(kernel, state, bytes, len % 37);
    }
}

/// A copy by `kernel` to `offset` bytes behind an arbitrary address.
fn assert_copy(kernel: Kernel, state: u32, bytes: &[u8], offset: usize) {
    let (name, len) = (kernel.name(), bytes.len());
    let from = SharedSlice::from_bytes(bytes);
    for is_far in [false, true] {
        let mut memory = vec![0xEE; MARGIN + offset + len + MARGIN];
        let to = &mut memory[MARGIN + offset..][..len];
        let digest = if is_far {
            // SAFETY: `to` is as long as `from`, and belongs to this test.
            unsafe { kernel.copy_far(state, from, to.as_mut_ptr()) }
        } else {
            kernel.copy(state, from, to)
        };
        assert_eq!(digest, expected(state, bytes), "copy of {len} octets by {name}, {is_far}");
        assert!(to == bytes, "{len} octets copied by {name}, {is_far}");
        let (before, rest) = memory.split_at(MARGIN + offset);
        assert!(before.iter().all(|&octet| octet == 0xEE), "before {len} octets, by {name}");
        assert!(rest[len..].iter().all(|&octet| octet == 0xEE), "after {len} octets, by {name}");
    }
}

#[test]
fn the_fastest_kernel_is_chosen_and_stays() {
    let fastest = Kernel::available().last();
    assert_eq!(Some(Kernel::chosen()), fastest);
    assert_eq!(Some(Kernel::chosen()), fastest);
    // On the machines of development a missing kernel would go unnoticed otherwise.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("vpclmulqdq") {
        assert!(Kernel::available().count() >= 3, "portable, 128 and 256 bits");
    }
}

/// Compares the definition, bit by bit, with the crate that all others are compared with.
#[test]
fn reference_crate_computes_the_crc_of_the_standard() {
    let bytes = pattern(100);
    let mut register = 0x1234_5678_u32;
    for octet in &bytes {
        register ^= u32::from(*octet);
        for _ in 0..8 {
            let carry = if register & 1 == 1 { 0x82F6_3B78 } else { 0 };
            register = (register >> 1) ^ carry;
        }
    }
    assert_eq!(register, expected(0x1234_5678, &bytes));
}

/// RFC 3720 §B.4, the vectors that RFC 5044 §4.4 relies on.
#[test]
fn vectors_of_rfc_3720_have_their_digests() {
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    let vectors: [(&[u8], u32); 5] = [
        (&[0; 32], 0x8A91_36AA),
        (&[0xFF; 32], 0x62A8_AB43),
        (&ascending, 0x46DD_794E),
        (&descending, 0x113F_DB5C),
        (b"123456789", 0xE306_9283),
    ];
    for (bytes, crc) in vectors {
        assert_eq!(!crc32c_append_shared(u32::MAX, SharedSlice::from_bytes(bytes)), crc);
        assert_all_kernels(u32::MAX, bytes);
    }
}

#[test]
fn every_length_agrees_with_the_crate() {
    let longest = if cfg!(miri) { 20 } else { 4500 };
    let bytes = pattern(longest);
    for len in 0..=longest {
        assert_all_kernels(u32::MAX, &bytes[..len]);
        assert_all_kernels(0, &bytes[longest - len..]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow, and the bounce does not care for alignment")]
fn every_alignment_agrees_with_the_crate() {
    let bytes = pattern(2300);
    for len in [63, 64, 65, 127, 128, 191, 192, 508, 1440, 2047, 2048, 2100] {
        for start in 0..128 {
            assert_all_kernels(0xDEAD_BEEF, &bytes[start..start + len]);
        }
        for (kernel, offset) in Kernel::available().flat_map(|it| (0..64).map(move |o| (it, o))) {
            assert_copy(kernel, 0xDEAD_BEEF, &bytes[..len], offset);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn long_runs_agree_with_the_crate() {
    let bytes = pattern(1 << 20);
    for len in [
        6143,
        6144,
        8940,
        12_287,
        12_288,
        12_289,
        12_480,
        18_431,
        18_432,
        18_435,
        18_436,
        18_495,
        18_496,
        18_719,
        18_720,
        18_723,
        18_724,
        37_000,
        65_535,
        65_536,
        100_001,
        1 << 20,
    ] {
        assert_all_kernels(u32::MAX, &bytes[..len]);
    }
}

#[test]
fn copy_has_the_digest_of_its_source() {
    for len in [0, 1, 7, 4095, 4096, 4097, 3 * 4096 + 5] {
        let bytes = pattern(len);
        let mut copy = vec![0xEE; len];
        let state = copy_and_digest(0x1234_5678, SharedSlice::from_bytes(&bytes), &mut copy);
        assert!(copy == bytes, "{len} octets");
        assert_eq!(state, expected(0x1234_5678, &bytes), "{len} octets");
    }
}

/// Digest and copy agree even while the memory changes.
#[test]
#[cfg(not(miri))]
fn a_copy_of_memory_that_changes_has_its_own_digest() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    let region = crate::mem::Region::anonymous(10_000).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u8;
            while !stop.load(Relaxed) {
                round = round.wrapping_add(1);
                region.write(0, &[round; 10_000]).unwrap();
            }
        });
        let mut copy = vec![0; 10_000];
        for _ in 0..300 {
            let state = copy_and_digest(u32::MAX, region.slice(0, 10_000).unwrap(), &mut copy);
            if state != expected(u32::MAX, &copy) {
                stop.store(true, Relaxed);
                panic!("the digest is of other octets than the copy");
            }
        }
        stop.store(true, Relaxed);
    });
}

/// The run ends where a file ends; the page behind it is mapped, but a load from it would fault.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn loads_stay_inside_the_run() {
    const PAGE_LEN: usize = 4096;
    let path = std::env::temp_dir().join(format!("urnic-digest-{}", std::process::id()));
    std::fs::write(&path, [0; PAGE_LEN]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let map = memmap2::MmapOptions::new().len(2 * PAGE_LEN).map_raw_read_only(&file).unwrap();
    // SAFETY: the first page is in the file, mapped while `map` lives, and never written.
    let page = unsafe { SharedSlice::from_raw_parts(map.as_ptr(), PAGE_LEN) };
    for len in 0..=1000 {
        let last = page.part(PAGE_LEN - len, len);
        for kernel in Kernel::available() {
            assert_eq!(kernel.append(0, last), 0, "zeros do not change a zero register");
            assert_eq!(kernel.copy(0, last, &mut vec![1; len]), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn any_split_gives_the_same_digest(
        bytes in proptest::collection::vec(any::<u8>(), 0..4000),
        state: u32,
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = SharedSlice::from_bytes(&bytes);
        let (mut at, mut split) = (0, state);
        for cut in cuts.into_iter().chain([bytes.len()]) {
            split = crc32c_append_shared(split, whole.part(at, cut - at));
            at = cut;
        }
        prop_assert_eq!(split, expected(state, &bytes));
        prop_assert_eq!(crc32c_append_shared(state, whole), split);
    }
}
