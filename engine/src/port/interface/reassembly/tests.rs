use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use smoltcp::wire::Ipv4Packet;

use super::*;
use crate::port::interface::framing::ETHERTYPE_IPV4;
use crate::time::Duration;

const HEADER: [u8; 20] = [0x45, 0, 0, 0, 0, 9, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];

fn key(id: u32) -> DatagramKey {
    let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    DatagramKey { source, destination, id, protocol: 17 }
}

fn part(id: u32, octets: &[u8], range: std::ops::Range<usize>) -> Part<'_> {
    Part {
        key: key(id),
        offset: range.start,
        more: range.end < octets.len(),
        header: &HEADER,
        next_header: None,
        payload: &octets[range],
    }
}

fn opened() -> Opened<'static> {
    Opened { addresses: &[], ethertype: ETHERTYPE_IPV4, payload: &[] }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

#[test]
fn fragments_in_any_order_make_the_datagram_that_was_cut() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for round in 0..200 {
        let octets = pattern(rng.random_range(17..4000));
        let unit = 8 * rng.random_range(1..100);
        let mut cuts: Vec<_> = (0..octets.len())
            .step_by(unit)
            .map(|start| start..octets.len().min(start + unit))
            .collect();
        for at in (1..cuts.len()).rev() {
            cuts.swap(at, rng.random_range(0..=at));
        }
        // Some arrive twice.
        cuts.insert(0, cuts[cuts.len() / 2].clone());
        let mut reassembly = Reassembly::default();
        let mut whole = None;
        for cut in cuts {
            let taken = reassembly.insert(Instant::ZERO, &opened(), &part(9, &octets, cut));
            match taken {
                Ok(frame) => whole = whole.or(frame),
                Err(Refused) => assert!(octets.len() / unit > REASSEMBLY_PIECES_MAX, "{round}"),
            }
        }
        if octets.len() / unit > REASSEMBLY_PIECES_MAX {
            continue;
        }
        let whole = whole.unwrap();
        let packet = Ipv4Packet::new_checked(&whole[..]).unwrap();
        assert!(packet.verify_checksum() && !packet.more_frags() && packet.frag_offset() == 0);
        assert!(packet.payload() == octets);
        assert!(reassembly.datagrams.len() <= 1, "a duplicate that came late may begin anew");
    }
}

#[test]
fn overlapping_fragments_end_their_datagram() {
    let octets = pattern(64);
    let mut other = octets.clone();
    other[20] ^= 1;
    let mut reassembly = Reassembly::default();
    let mut insert = |octets: &[u8], range| {
        reassembly.insert(Instant::ZERO, &opened(), &part(9, octets, range)).map(|_| ())
    };
    assert_eq!(insert(&octets, 0..32), Ok(()));
    assert_eq!(insert(&other, 16..48), Err(Refused));
    assert_eq!(insert(&octets, 32..64), Err(Refused), "nor does what is left make it whole");
    assert_eq!(insert(&octets, 0..32), Err(Refused));
}

#[test]
fn fragments_that_contradict_each_other_or_the_rules_are_refused() {
    let octets = pattern(64);
    let cases: [&[(usize, usize, bool)]; 6] = [
        // Not cut at a multiple of 8.
        &[(0, 12, true)],
        // No payload.
        &[(8, 8, true)],
        // Beyond the largest datagram.
        &[(65_528, 65_592, false)],
        // Two ends.
        &[(32, 64, false), (24, 32, false)],
        // Beyond the end.
        &[(24, 32, false), (32, 64, true)],
        &[(32, 64, true), (24, 32, false)],
    ];
    for (id, case) in (0..).zip(cases) {
        let mut reassembly = Reassembly::default();
        let (last, before) = case.split_last().unwrap();
        let mut insert = |&(start, end, more): &(usize, usize, bool)| {
            let part = Part { offset: start, more, ..part(id, &octets, 0..end - start) };
            reassembly.insert(Instant::ZERO, &opened(), &part).map(|_| ())
        };
        for good in before {
            assert_eq!(insert(good), Ok(()), "case {id}");
        }
        assert_eq!(insert(last), Err(Refused), "case {id}");
    }
}

#[test]
fn reassembly_memory_and_time_are_bounded() {
    let octets = pattern(65_528);
    let mut reassembly = Reassembly::default();
    for id in 0..10_000 {
        // As much memory as one fragment can claim.
        let last = Part { more: true, ..part(id, &octets, 65_496..65_528) };
        reassembly.insert(Instant::ZERO, &opened(), &last).unwrap();
    }
    assert_eq!(reassembly.datagrams.len(), REASSEMBLIES_MAX);
    let held: usize = reassembly.datagrams.iter().map(|datagram| datagram.octets.len()).sum();
    assert!(held <= REASSEMBLIES_MAX * DATAGRAM_LEN_MAX);
    for start in (0..65_000).step_by(16) {
        let taken = reassembly.insert(
            Instant::ZERO,
            &opened(),
            &Part { more: true, ..part(9_999, &octets, start..start + 8) },
        );
        assert_eq!(taken.is_ok(), start / 16 + 1 < REASSEMBLY_PIECES_MAX, "{start}");
    }
    let later = Instant::ZERO + Duration::from_nanos(REASSEMBLY_NS);
    reassembly.expire(later);
    assert!(reassembly.datagrams.is_empty());
}

#[test]
fn oversized_datagram_is_refused() {
    let octets = pattern(65_535);
    let mut reassembly = Reassembly::default();
    let first = reassembly.insert(Instant::ZERO, &opened(), &part(1, &octets, 0..65_528));
    assert_eq!(first, Ok(None));
    let last = reassembly.insert(Instant::ZERO, &opened(), &part(1, &octets, 65_528..65_535));
    assert_eq!(last, Err(Refused), "65535 octets and a header are more than a datagram takes");
}
