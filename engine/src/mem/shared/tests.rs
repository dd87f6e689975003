use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::mem::{Region, crc32c_append_shared};

#[test]
#[should_panic(expected = "part outside its shared slice")]
fn a_copy_in_beyond_the_end_is_a_bug() {
    let region = Region::anonymous(8).unwrap();
    region.writable(0, 8).unwrap().copy_in(1, &[0; 8]);
}

#[test]
fn an_update_returns_the_original_and_touches_eight_octets() {
    let region = Region::anonymous(24).unwrap();
    region.write(0, &[0xC5; 24]).unwrap();
    let word = region.writable(0, 24).unwrap();
    let original = u64::from_ne_bytes([0xC5; 8]);
    assert_eq!(word.fetch_update_u64(8, |_| 1), Ok(original));
    assert_eq!(word.fetch_update_u64(9, |_| 2), Err(Misaligned));
    let slice = region.slice(0, 24).unwrap();
    let mut octets = [0; 24];
    slice.copy_out(0, &mut octets);
    assert_eq!(octets[..8], [0xC5; 8]);
    assert_eq!(octets[8..16], 1_u64.to_ne_bytes());
    assert_eq!(octets[16..], [0xC5; 8]);
}

/// RFC 7306 §5: atomic against the atomics of all other streams.
#[test]
fn concurrent_updates_lose_none() {
    loses_none(|word| word.fetch_update_u64(0, |value| value + 1).unwrap());
}

/// The variant for words that are accessed by bytes.
#[test]
fn concurrent_updates_by_octets_lose_none() {
    loses_none(|word| {
        let at = aligned(word.address(0, 8)).unwrap();
        word.update_octets(0, at, |value| value + 1)
    });
    let region = Region::anonymous(24).unwrap();
    region.write(0, &[0xC5; 24]).unwrap();
    let word = region.writable(0, 24).unwrap();
    let at = aligned(word.address(8, 8)).unwrap();
    assert_eq!(word.update_octets(8, at, |_| 1), u64::from_ne_bytes([0xC5; 8]));
    let mut octets = [0; 24];
    region.read(0, &mut octets).unwrap();
    assert_eq!(octets[8..16], 1_u64.to_ne_bytes());
    assert!(octets[..8] == [0xC5; 8] && octets[16..] == [0xC5; 8]);
}

fn loses_none(add: impl Fn(WritableSlice<'_>) -> u64 + Sync) {
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let region = Region::anonymous(8).unwrap();
    let add_all = || -> Vec<u64> {
        let word = region.writable(0, 8).unwrap();
        (0..rounds).map(|_| add(word)).collect()
    };
    let mut seen = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(add_all)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..3 * rounds), "every value was returned exactly once");
}

#[test]
fn reading_while_another_thread_writes_yields_old_or_new_octets() {
    const LEN: usize = 3000;
    let rounds = if cfg!(miri) { 3 } else { 2000 };
    let len = if cfg!(miri) { 50 } else { LEN };
    let region = Region::anonymous(len).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                let octet = if round % 2 == 0 { 0xAA } else { 0x55 };
                region.write(0, &[octet; LEN][..len]).unwrap();
            }
            done.store(true, Relaxed);
        });
        let slice = region.slice(0, len).unwrap();
        let mut out = [0; LEN];
        while !done.load(Relaxed) {
            slice.copy_out(0, &mut out[..len]);
            assert!(out.iter().all(|octet| [0, 0xAA, 0x55].contains(octet)));
            // Any contents are allowed; it only must not fault.
            std::hint::black_box(crc32c_append_shared(0, slice));
        }
    });
}
