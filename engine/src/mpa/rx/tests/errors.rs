//! Streams that violate the protocol.

use super::*;

fn mpa(error: MpaError) -> Option<RxError<&'static str>> {
    Some(RxError::Mpa(error))
}

#[test]
fn bad_crc_inside_one_segment_keeps_earlier_fpdus_and_can_be_dropped() {
    let good = Stream::of(5, false, &[100, 200, 300]);
    let mut bad = Stream::of(5, false, &[100, 200, 300]);
    let fpdu = bad.range(1);
    bad.octets[fpdu.start + 50] ^= 0x10;
    let mut bench = Bench::new(&good);
    let answer = bench.give_to(&bad, 0..bad.octets.len());
    assert_eq!(answer, (fpdu.start, mpa(MpaError { fault: MpaFault::Crc, droppable: true })));
    assert_eq!((bench.upper.placed.len(), bench.receiver.counters().crc_bad), (1, 1));
    bench.give(&good, fpdu.start..good.octets.len());
    bench.assert_complete(&good);
}

// spec: MPA-8-5
#[test]
fn a_bad_crc_over_two_segments_ends_reception() {
    let mut stream = Stream::of(0, false, &[100, 200, 300]);
    let fpdu = stream.range(1);
    stream.octets[fpdu.start + 50] ^= 0x10;
    let mut bench = Bench::new(&stream);
    bench.give(&stream, 0..fpdu.end - 10);
    let answer = bench.give_to(&stream, fpdu.end - 10..fpdu.end);
    assert_eq!(answer, (10, mpa(MpaError { fault: MpaFault::Crc, droppable: false })));
    // RFC 5044 §8: nothing after a reported error.
    bench.give(&stream, stream.range(2));
    assert_eq!(bench.upper.placed.len(), 1);
    assert_eq!(bench.store.blocks_used(), 0);
}

// spec: MPA-4.4-13, MPA-6-1
#[test]
fn flipping_any_bit_keeps_the_fpdu_from_being_placed() {
    for markers in [false, true] {
        let good = Stream::of(0, markers, &[500, 30]);
        for bit in 0..8 * good.octets.len() {
            let mut bad = Stream::of(0, markers, &[500, 30]);
            bad.octets[bit / 8] ^= 1 << (bit % 8);
            let hit = usize::from(bit / 8 >= good.range(0).end);
            for cut in [0, 256, good.octets.len() - 3] {
                let mut bench = Bench::new(&good);
                let _ = bench.give_to(&bad, cut..good.octets.len());
                let _ = bench.give_to(&bad, 0..cut);
                assert!(bench.upper.placed.iter().all(|fpdu| *fpdu == good.fpdus[1 - hit]));
            }
        }
    }
}

#[test]
fn a_corrupt_fpdu_led_to_by_a_marker_is_refused_and_comes_again() {
    let good = Stream::of(0, true, &[1442; 3]);
    let mut bad = Stream::of(0, true, &[1442; 3]);
    let fpdu = good.range(1);
    bad.octets[fpdu.start + 300] ^= 1;
    let mut bench = Bench::new(&good);
    // Some bytes before the first FPDU are kept.
    let from = fpdu.start - 20;
    assert_eq!(bench.give_to(&bad, from..bad.octets.len()), (20, None));
    assert!(bench.upper.placed.is_empty());
    bench.give(&good, fpdu.start..good.octets.len());
    assert_eq!(bench.upper.placed.len(), 2);
    bench.give(&good, 0..from);
    bench.assert_complete(&good);
}

#[test]
fn a_wrong_marker_beyond_a_gap_only_delays_placement() {
    let good = Stream::of(0, true, &[1442; 3]);
    for value in [0x0008, 0x01F8, 0xFFFC, 0x0400] {
        let mut bad = Stream::of(0, true, &[1442; 3]);
        let marker = bad.range(1).start.next_multiple_of(512);
        bad.octets[marker + 2..marker + 4].copy_from_slice(&u16::to_be_bytes(value));
        bad.mend_crc(1);
        let mut bench = Bench::new(&good);
        // Only bytes with that one marker, so that nothing else leads to the FPDU.
        let part = marker - 100..marker + 400;
        assert_eq!(bench.give_to(&bad, part.clone()), (part.len(), None));
        assert!(bench.upper.placed.is_empty());
        // In order, with a good CRC and a wrong marker: now it is an error.
        let (_, error) = bench.give_to(&bad, 0..part.start);
        assert_eq!(error, None);
        let (_, error) = bench.give_to(&bad, part.end..bad.octets.len());
        assert_eq!(
            error,
            mpa(MpaError { fault: MpaFault::Marker, droppable: false }),
            "{value:#x}"
        );
        assert_eq!(bench.upper.delivered.len(), 1);
        assert_eq!(bench.receiver.counters().marker_errors, 1);
    }
}

// spec: MPA-4.3-7, MPA-8-2
#[test]
fn every_marker_of_an_fpdu_is_checked() {
    for marker in [0, 512, 1024] {
        let mut stream = Stream::of(0, true, &[1442]);
        stream.octets[marker + 3] ^= 4;
        stream.mend_crc(0);
        let mut bench = Bench::new(&stream);
        // The CRC is good and covers the markers: no other copy can be better.
        let len = stream.octets.len();
        let answer = bench.give_to(&stream, 0..len);
        assert_eq!(answer, (len, mpa(MpaError { fault: MpaFault::Marker, droppable: false })));
        assert!(bench.upper.placed.is_empty());
        // Without a CRC another copy may be better.
        let mut bench = Bench::with(&stream, RxConfig { crc: false, ..RxConfig::default() });
        let answer = bench.give_to(&stream, 0..len);
        assert_eq!(answer, (0, mpa(MpaError { fault: MpaFault::Marker, droppable: true })));
    }
}

#[test]
fn wrong_fpdus_that_markers_lead_to_are_checked_only_so_often() {
    // FPDUs with a good CRC whose last marker does not point at a length field.
    for (wrong, placed) in [(1, 3), (2, 0), (3, 0)] {
        let mut stream = Stream::new(0, true);
        for _ in 0..5 {
            stream.push(&[0; 1442]);
        }
        for index in 1..=wrong {
            let marker = (stream.range(index).end - 5) / 512 * 512;
            stream.octets[marker + 2..marker + 4].copy_from_slice(&8_u16.to_be_bytes());
            stream.mend_crc(index);
        }
        let mut bench = Bench::new(&stream);
        let (from, to) = (stream.range(1).start, stream.octets.len());
        assert_eq!(bench.give_to(&stream, from..to), (to - from, None));
        assert_eq!(bench.upper.placed.len(), placed, "{wrong} wrong ones before a good one");
        assert_eq!(bench.receiver.counters().crc_bad, 0, "their CRCs are good");
    }
}

// spec: MPA-8-2
#[test]
fn a_chain_that_misses_a_placed_fpdu_is_a_marker_error() {
    // Two streams with nothing in common except their positions.
    let placed = Stream::of(0, true, &[700, 700, 700]);
    let chained = Stream::of(0, true, &[1000, 1000]);
    let mut bench = Bench::new(&placed);
    let fpdu = placed.range(1);
    bench.give(&placed, fpdu.clone());
    assert_eq!(bench.upper.placed.len(), 1);
    let answer = bench.give_to(&chained, 0..fpdu.start);
    assert_eq!(answer, (0, mpa(MpaError { fault: MpaFault::Marker, droppable: true })));
    bench.give(&placed, 0..fpdu.start);
    assert_eq!(bench.upper.delivered.len(), 2);
}

#[test]
fn impossible_lengths_are_errors_where_the_start_is_certain() {
    for (len, min) in [(0_u16, 1), (13, 14), (64769, 1), (u16::MAX, 1)] {
        let mut stream = Stream::of(0, false, &[100, 100]);
        let start = stream.range(1).start;
        stream.octets[start..start + 2].copy_from_slice(&len.to_be_bytes());
        let mut bench = Bench::new(&stream);
        bench.receiver.config.ulpdu_len_min = min;
        let answer = bench.give_to(&stream, 0..stream.octets.len());
        assert_eq!(
            answer,
            (start, mpa(MpaError { fault: MpaFault::UlpduLength, droppable: true }))
        );
        // If a byte of it was accepted before, nothing is left to drop.
        let mut bench = Bench::new(&stream);
        bench.receiver.config.ulpdu_len_min = min;
        bench.give(&stream, 0..start + 1);
        let (_, error) = bench.give_to(&stream, start + 1..stream.octets.len());
        assert_eq!(error, mpa(MpaError { fault: MpaFault::UlpduLength, droppable: false }));
    }
}

#[test]
fn an_impossible_length_behind_a_marker_beyond_a_gap_only_waits() {
    let mut stream = Stream::of(0, true, &[700, 700]);
    let fpdu = stream.range(1);
    stream.octets[fpdu.start] = 0xFF;
    let mut bench = Bench::new(&stream);
    bench.give(&stream, fpdu.clone());
    assert!(bench.upper.placed.is_empty());
    let (_, error) = bench.give_to(&stream, 0..fpdu.start);
    assert_eq!(error, mpa(MpaError { fault: MpaFault::UlpduLength, droppable: false }));
}

#[test]
fn a_refusal_by_the_layer_above_ends_reception() {
    let stream = Stream::of(0, true, &[700; 4]);
    let mut bench = Bench::new(&stream);
    bench.upper.refuse_at = Some(stream.fpdus[2].0);
    let answer = bench.give_to(&stream, stream.range(2));
    assert_eq!(answer, (stream.range(2).len(), Some(RxError::Sink("refused"))));
    bench.give(&stream, 0..stream.range(2).start);
    assert!(bench.upper.placed.is_empty());
    assert_eq!(bench.store.blocks_used(), 0);
}
