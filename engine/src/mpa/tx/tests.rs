use hex_literal::hex;
use proptest::prelude::*;

use super::*;
use crate::mpa::marker::fpdu_len;
use crate::wire::crc32c::Crc32c;

/// Writes the bytes of an FPDU.
struct Writer<'p> {
    payload: &'p [u8],
    octets: Vec<u8>,
    digest: Crc32c,
    runs: usize,
}

impl<'p> Writer<'p> {
    fn new(payload: &'p [u8]) -> Self {
        Self { payload, octets: Vec::new(), digest: Crc32c::new(), runs: 0 }
    }

    fn run(&mut self, octets: &[u8]) {
        assert!(!octets.is_empty());
        self.runs += 1;
        self.digest.update(octets);
        self.octets.extend_from_slice(octets);
    }
}

impl RunSink for Writer<'_> {
    fn inline(&mut self, octets: &[u8]) {
        self.run(octets);
    }
    fn payload(&mut self, offset: usize, len: usize) {
        let payload = self.payload;
        self.run(&payload[offset..offset + len]);
    }
    fn crc(&mut self) {
        self.runs += 1;
        self.octets.extend_from_slice(&self.digest.finish().to_le_bytes());
    }
}

/// The stream bytes of `ulpdu`, its first `inline_len` bytes given inline.
fn frame(grid: MarkerGrid, start: u64, ulpdu: &[u8], inline_len: usize) -> Vec<u8> {
    let (header, payload) = ulpdu.split_at(inline_len.min(ulpdu.len()));
    let fpdu = Fpdu::new(grid, StreamOffset(start), header, payload.len());
    let mut writer = Writer::new(payload);
    fpdu.emit(&mut writer);
    assert_eq!(writer.octets.len(), fpdu.wire_len());
    writer.octets
}

fn counting(len: usize) -> Vec<u8> {
    (0..=255).cycle().take(len).collect()
}

const MARKED: MarkerGrid = MarkerGrid::new(StreamOffset(0), true);
const UNMARKED: MarkerGrid = MarkerGrid::new(StreamOffset(0), false);
/// The ULPDU of RFC 5044 figure 5: a Send with 24 zero bytes.
const FIGURE_5: [u8; 42] = hex!(
    "4143 00000000 00000000 00000001 00000000"
    "00000000 00000000 00000000 00000000 00000000 00000000"
);

// spec: MPA-3-1, MPA-4.1-1, MPA-4.1-2, MPA-4.3-3
#[test]
fn figure_5_is_framed_octet_by_octet() {
    let expected = hex!(
        "00000000 002a4143 00000000 00000000 00000001 00000000 00000000 00000000 00000000"
        "00000000 00000000 00000000 52239983"
    );
    assert_eq!(frame(MARKED, 0, &FIGURE_5, 18), expected);
}

#[test]
fn figure_6_has_its_marker_inside_the_payload() {
    let mut ulpdu = FIGURE_5;
    ulpdu[13] = 2;
    let expected = hex!(
        "002a4143 00000000 00000000 00000002 00000000 00000014 00000000 00000000 00000000"
        "00000000 00000000 00000000 84925898"
    );
    for inline_len in [0, 2, 14, 17, 18, 19, 20, 42] {
        assert_eq!(frame(MARKED, 0x1EC, &ulpdu, inline_len), expected, "{inline_len}");
    }
}

#[test]
fn marker_can_be_between_pad_and_crc() {
    let octets = frame(MARKED, 0, &counting(506), 18);
    assert_eq!(octets[512..], hex!("000001FC 29ECD909"));
}

// spec: MPA-4.3-12
#[test]
fn a_marker_between_two_fpdus_leads_the_second() {
    let first = frame(MARKED, 0, &counting(502), 18);
    assert_eq!(first[508..], hex!("228ADB98"));
    let second = frame(MARKED, 512, &[0], 0);
    assert_eq!(second, hex!("00000000 0001 00 00 F4206929"));
}

#[test]
fn without_markers_figure_5_has_another_crc() {
    let octets = frame(UNMARKED, 0, &FIGURE_5, 18);
    assert_eq!(octets.len(), 48);
    assert_eq!(octets[44..], hex!("B7243EC3"));
}

// spec: MPA-4.1-3
#[test]
fn pad_is_zero_and_covered_by_the_crc() {
    let crcs = [hex!("B9D926ED"), hex!("C99A63F5"), hex!("FF8B5BB3"), hex!("05FB9044")];
    for (len, crc) in (1..).zip(crcs) {
        let octets = frame(UNMARKED, 0, &counting(len), 1);
        assert_eq!(octets[octets.len() - 4..], crc, "{len}");
        assert!(octets[2 + len..octets.len() - 4].iter().all(|pad| *pad == 0));
    }
}

#[test]
fn two_full_segments_carry_three_markers_each() {
    let first = frame(MARKED, 0, &counting(1442), 18);
    let second = frame(MARKED, 1460, &counting(1442), 18);
    assert_eq!((first.len(), second.len()), (1460, 1460));
    assert_eq!(first[1456..], hex!("BC4A22C1"));
    assert_eq!(second[1456..], hex!("39DF1DDB"));
    let stream = [first, second].concat();
    for (at, value) in
        [(0, 0), (512, 0x1FC), (1024, 0x3FC), (1536, 0x4C), (2048, 0x24C), (2560, 0x44C)]
    {
        assert_eq!(stream[at..at + 4], u32::to_be_bytes(value));
    }
}

#[test]
fn an_unmarked_full_fpdu_takes_three_calls() {
    let payload = counting(1436);
    let fpdu = Fpdu::new(UNMARKED, StreamOffset(0), &[7; 18], payload.len());
    let mut writer = Writer::new(&payload);
    fpdu.emit(&mut writer);
    assert_eq!((writer.runs, fpdu.wire_len()), (3, 1460));
}

#[test]
fn the_head_of_a_marked_fpdu_is_one_run() {
    for start in [0, 508, 500, 480, 440] {
        let fpdu = Fpdu::new(MARKED, StreamOffset(start), &[7; 72], 8);
        let mut writer = Writer::new(&[9; 8]);
        fpdu.emit(&mut writer);
        assert!(writer.runs <= 5, "{start}");
    }
}

// spec: MPA-3-4
#[test]
#[should_panic(expected = "ULPDU longer than MPA allows")]
fn a_ulpdu_above_64768_octets_is_a_callers_bug() {
    let fpdu = Fpdu::new(UNMARKED, StreamOffset(0), &[0; 18], ULPDU_LEN_MAX - 17);
    assert!(fpdu.wire_len() > 0, "not reached");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn runs_compose_to_the_same_octets_however_the_ulpdu_is_split(
        words in 0u64..256, len in 1usize..3000, inline_len in 0usize..=72,
    ) {
        prop_assume!(words % 128 != 1);
        let ulpdu = counting(len);
        let all = frame(MARKED, 4 * words, &ulpdu, inline_len);
        prop_assert_eq!(&all, &frame(MARKED, 4 * words, &ulpdu, 0));
        // Without the markers this is the unmarked FPDU, except for the CRC.
        let bare: Vec<u8> = (0u64..)
            .zip(&all)
            .filter(|(at, _)| (at + 4 * words) % 512 >= 4)
            .map(|(_, octet)| *octet)
            .collect();
        let plain = frame(UNMARKED, 0, &ulpdu, inline_len);
        prop_assert_eq!(bare.len(), fpdu_len(len));
        prop_assert_eq!(&bare[..bare.len() - 4], &plain[..plain.len() - 4]);
    }
}
