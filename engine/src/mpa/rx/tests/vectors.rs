//! The RFC's figures and the computed vectors, through the receiver.

use hex_literal::hex;

use super::*;

const FIGURE_5: [u8; 52] = hex!(
    "00000000 002a4143 00000000 00000000 00000001 00000000 00000000 00000000 00000000 00000000"
    "00000000 00000000 52239983"
);
const FIGURE_6: [u8; 52] = hex!(
    "002a4143 00000000 00000000 00000002 00000000 00000014 00000000 00000000 00000000 00000000"
    "00000000 00000000 84925898"
);

fn receive(markers: bool, offset: u64, octets: &[u8]) -> (Upper, Taken<&'static str>) {
    let config = RxConfig { markers, ulpdu_len_min: 1, ..RxConfig::default() };
    let mut receiver = FpduReceiver::new(config, StreamOffset(0));
    let (mut store, mut upper) = (PieceStore::default(), Upper::default());
    let (now, offset) = (Instant::ZERO, StreamOffset(offset));
    let taken = receiver.handle_bytes(now, offset, octets, &mut store, &mut upper);
    (upper, taken)
}

#[test]
fn figure_5_is_received() {
    let (upper, taken) = receive(true, 0, &FIGURE_5);
    assert_eq!(taken, Taken { end: StreamOffset(52), error: None });
    assert_eq!(upper.placed[0].1[..18], FIGURE_5[6..24]);
    assert_eq!((upper.placed[0].1.len(), upper.delivered.len()), (42, 1));
}

#[test]
fn figure_6_is_found_by_its_marker_before_earlier_data() {
    let (upper, taken) = receive(true, 0x1EC, &FIGURE_6);
    assert_eq!(taken, Taken { end: StreamOffset(0x1EC + 52), error: None });
    assert_eq!(upper.placed.len(), 1);
    assert_eq!(upper.placed[0].0, StreamOffset(0x1EC));
    assert_eq!(upper.placed[0].1[..14], FIGURE_6[2..16]);
    assert!(upper.delivered.is_empty());
}

// spec: MPA-4.1-3
#[test]
fn pad_is_ignored_but_covered_by_the_crc() {
    for (octets, good) in
        [(hex!("0001 00 00 B9D926ED"), true), (hex!("0001 00 FF B9D926ED"), false)]
    {
        let (upper, taken) = receive(false, 0, &octets);
        assert_eq!(upper.placed.len(), usize::from(good));
        assert_eq!(taken.error.is_none(), good);
    }
    let mut stream = Stream::of(0, false, &[5]);
    stream.octets[7] = 0xAA;
    stream.mend_crc(0);
    let mut bench = Bench::new(&stream);
    bench.give(&stream, 0..12);
    bench.assert_complete(&stream);
}

// spec: MPA-4.2-1, MPA-4.2-2
#[test]
fn reserved_bits_of_markers_are_ignored_but_covered_by_the_crc() {
    let mut stream = Stream::of(0, true, &[600]);
    stream.octets[0..4].copy_from_slice(&hex!("AAAA0003"));
    stream.octets[512..514].copy_from_slice(&hex!("5555"));
    stream.octets[515] |= 3;
    stream.mend_crc(0);
    let len = stream.octets.len();
    let mut bench = Bench::new(&stream);
    bench.give(&stream, 512..len);
    bench.give(&stream, 0..512);
    bench.assert_complete(&stream);
    assert_eq!(bench.receiver.counters().marker_errors, 0);
}

// spec: MPA-4.1-4
#[test]
fn without_crc_the_field_may_hold_anything() {
    let mut stream = Stream::of(0, false, &[100, 200]);
    let end = stream.range(0).end;
    stream.octets[end - 4..end].copy_from_slice(&hex!("DEADBEEF"));
    let mut bench = Bench::with(&stream, RxConfig { crc: false, ..RxConfig::default() });
    bench.give(&stream, 0..stream.octets.len());
    bench.assert_complete(&stream);
    assert_eq!(bench.receiver.counters().crc_good, 0);
}

// spec: MPA-3-5, MPA-4.4-11
#[test]
fn markers_between_pad_and_crc_and_between_fpdus_are_taken_out() {
    for lens in [&[506, 20][..], &[502, 1], &[1442, 1442]] {
        let stream = Stream::of(11, true, lens);
        let mut bench = Bench::new(&stream);
        bench.give(&stream, 0..stream.octets.len());
        bench.assert_complete(&stream);
        let markers = stream.octets.len().div_ceil(512) as u64;
        assert_eq!(bench.receiver.counters().markers, markers);
    }
}

#[test]
fn the_largest_ulpdu_is_received_at_every_phase() {
    for phase in (0..512).step_by(4) {
        let filler = if phase == 0 { 1 } else { phase };
        let stream = Stream::of(0, true, &[filler, ULPDU_LEN_MAX]);
        let mut bench = Bench::new(&stream);
        let range = stream.range(1);
        bench.give(&stream, range.clone());
        assert_eq!(bench.receiver.counters().fpdus_by_marker, 1);
        bench.give(&stream, 0..range.start);
        bench.assert_complete(&stream);
    }
}
