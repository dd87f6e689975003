use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::wire::mpa::{Marker, fpdu_len, pad_len};

/// The CRC by its definition: one bit at a time.
fn bitwise(bytes: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for &byte in bytes {
        register ^= u32::from(byte);
        for _ in 0..8 {
            let carry = register & 1 != 0;
            register = register >> 1 ^ if carry { 0x82F6_3B78 } else { 0 };
        }
    }
    !register
}

/// An MPA stream, composed byte by byte; with markers at every multiple of 512 if requested.
fn stream(ulpdus: &[Vec<u8>], markers: bool) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for ulpdu in ulpdus {
        let covered_from = out.len();
        let mut header_at = None;
        let mut put = |out: &mut Vec<u8>, octets: &[u8]| {
            for &octet in octets {
                if markers && out.len().is_multiple_of(512) {
                    let back = header_at.map_or(0, |at| out.len() - at);
                    let fpduptr = u16::try_from(back).unwrap();
                    out.extend(Marker { fpduptr }.to_bytes());
                }
                header_at.get_or_insert(out.len());
                out.push(octet);
            }
        };
        put(&mut out, &u16::try_from(ulpdu.len()).unwrap().to_be_bytes());
        put(&mut out, ulpdu);
        put(&mut out, &[0; 3][..pad_len(ulpdu.len())]);
        if markers && out.len().is_multiple_of(512) {
            let fpduptr = u16::try_from(out.len() - header_at.unwrap()).unwrap();
            out.extend(Marker { fpduptr }.to_bytes());
        }
        let crc = crc32c(&out[covered_from..]);
        out.extend(to_wire(crc));
    }
    out
}

fn counting(len: usize) -> Vec<u8> {
    (0..=255).cycle().take(len).collect()
}

// spec: MPA-4.4-8, MPA-4.4-10
#[test]
fn rfc_5044_figure_5_has_the_printed_crc() {
    let fpdu = hex!(
        "00000000 002a4143 00000000 00000000 00000001 00000000"
        "00000000 00000000 00000000 00000000 00000000 00000000 52239983"
    );
    assert_eq!(crc32c(&fpdu[..48]), 0x8399_2352);
    assert_eq!(to_wire(crc32c(&fpdu[..48])), fpdu[48..]);
    assert_eq!(stream(&[fpdu[6..48].to_vec()], true), fpdu);
}

// spec: MPA-4.4-8, MPA-4.4-9, MPA-4.4-12
#[test]
fn rfc_5044_figure_6_has_the_printed_crc() {
    let fpdu = hex!(
        "002a4143 00000000 00000000 00000002 00000000 00000014"
        "00000000 00000000 00000000 00000000 00000000 00000000 84925898"
    );
    assert_eq!(crc32c(&fpdu[..48]), 0x9858_9284);
    let ulpdu: Vec<u8> = fpdu[2..20].iter().chain(&fpdu[24..48]).copied().collect();
    // The FPDU before it ends at 0x1EC: a ULPDU of 482 bytes after a leading marker.
    assert_eq!(stream(&[vec![0; 482], ulpdu], true)[0x1EC..], fpdu);
}

// spec: MPA-4.4-7
#[test]
fn rfc_3720_check_values_hold() {
    assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    assert_eq!(to_wire(crc32c(&[0; 32])), hex!("AA 36 91 8A"));
    assert_eq!(to_wire(crc32c(&[0xFF; 32])), hex!("43 AB A8 62"));
    let ascending: Vec<u8> = (0..32).collect();
    assert_eq!(to_wire(crc32c(&ascending)), hex!("4E 79 DD 46"));
    let descending: Vec<u8> = (0..32).rev().collect();
    assert_eq!(to_wire(crc32c(&descending)), hex!("5C DB 3F 11"));
    assert_eq!(crc32c(&[]), 0);
}

// spec: MPA-4.4-11
#[test]
fn marker_between_pad_and_crc_is_covered() {
    let out = stream(&[counting(506)], true);
    assert_eq!(out[512..516], hex!("0000 01FC"));
    assert_eq!(out[516..520], hex!("29 EC D9 09"));
    assert_eq!(out.len(), 520);
}

#[test]
fn marker_between_fpdus_belongs_to_the_next() {
    let out = stream(&[counting(502), vec![0]], true);
    assert_eq!(out[508..512], hex!("22 8A DB 98"));
    assert_eq!(out[512..], hex!("00000000 0001 00 00 F4206929"));
}

#[test]
fn figure_5_without_its_marker_has_its_crc() {
    let ulpdu = hex!("4143 00000000 00000000 00000001 00000000").into_iter().chain([0; 24]);
    let out = stream(&[ulpdu.collect()], false);
    assert_eq!(out[44..], hex!("B7 24 3E C3"));
}

#[test]
fn tiny_fpdus_without_markers_have_their_crcs() {
    let expected = [
        (4, hex!("B9D926ED")),
        (4, hex!("C99A63F5")),
        (8, hex!("FF8B5BB3")),
        (8, hex!("05FB9044")),
    ];
    for (len, (crc_at, crc)) in (1..).zip(expected) {
        let out = stream(&[counting(len)], false);
        assert_eq!(out[crc_at..], crc);
        assert_eq!(out.len(), fpdu_len(len));
    }
}

#[test]
fn two_full_segments_of_emss_1460_have_their_crcs_and_pointers() {
    let out = stream(&[counting(1442), counting(1442)], true);
    let marker = |at: usize| Marker::from_bytes(out[at..at + 4].try_into().unwrap()).fpduptr;
    assert_eq!([0, 512, 1024].map(marker), [0, 0x1FC, 0x3FC]);
    assert_eq!([1536, 2048, 2560].map(marker), [0x4C, 0x24C, 0x44C]);
    assert_eq!(out[1456..1460], hex!("BC4A22C1"));
    assert_eq!(out[2916..], hex!("39DF1DDB"));
    assert_eq!(out.len(), 2 * 1460);
}

#[test]
fn both_backends_agree_at_every_length_and_split() {
    let bytes: Vec<u8> = (0..1100_u32).map(|i| (i.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect();
    for len in 0..=bytes.len() {
        let expected = bitwise(&bytes[..len]);
        assert_eq!(::crc32c::crc32c(&bytes[..len]), expected, "crc32c crate, length {len}");
        let fast = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..len]);
        assert_eq!(fast, u64::from(expected), "crc-fast crate, length {len}");
    }
    let whole = bitwise(&bytes);
    for split in 0..=bytes.len() {
        assert_eq!(over([&bytes[..split], &bytes[split..]]), whole, "split at {split}");
    }
}

#[test]
fn a_digest_goes_on_from_its_state() {
    let mut first = Crc32c::default();
    first.update(b"1234");
    let mut second = Crc32c::from_state(first.state());
    second.update(b"56789");
    assert_eq!(second.finish(), 0xE306_9283);
    assert_eq!(Crc32c::new().state(), u32::MAX);
    assert_eq!(from_wire(to_wire(0x8399_2352)), 0x8399_2352);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_gives_the_same_crc(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut digest = Crc32c::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            digest.update(&bytes[from..cut]);
            from = cut;
        }
        prop_assert_eq!(digest.finish(), bitwise(&bytes));
    }
}
