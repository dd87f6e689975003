//! Segments that are not aligned or not in order.

use super::*;
use crate::limits::FPDUS_AHEAD_MAX;

// spec: MPA-5.2-1
#[test]
fn aligned_segments_in_order_touch_no_store() {
    let stream = Stream::of(7, false, &[1442; 5]);
    let mut bench = Bench::new(&stream);
    for index in 0..5 {
        bench.give(&stream, stream.range(index));
        assert_eq!(bench.upper.delivered.len(), index + 1);
    }
    bench.assert_complete(&stream);
    assert_eq!(bench.receiver.counters().bytes_held, 0);
    assert_eq!(bench.receiver.counters().crc_good, 5);
}

// spec: MPA-5.1-4
#[test]
fn one_octet_segments_in_either_direction_lose_nothing() {
    for markers in [false, true] {
        let stream = Stream::of(3, markers, &[1, 14, 20, 502, 506, 30, 700]);
        let len = stream.octets.len();
        let mut forward = Bench::new(&stream);
        let mut backward = Bench::new(&stream);
        for at in 0..len {
            forward.give(&stream, at..at + 1);
            backward.give(&stream, len - 1 - at..len - at);
        }
        forward.assert_complete(&stream);
        backward.assert_complete(&stream);
    }
}

// spec: DDP-3-4, TCP-A.4-1, TCP-A.4-2
#[test]
fn a_stream_cut_anywhere_is_received_in_both_orders() {
    for markers in [false, true] {
        let stream = Stream::of(0, markers, &[480, 30, 600]);
        let len = stream.octets.len();
        for cut in 1..len {
            let mut bench = Bench::new(&stream);
            bench.give(&stream, 0..cut);
            bench.give(&stream, cut..len);
            bench.assert_complete(&stream);
            let mut bench = Bench::new(&stream);
            bench.give(&stream, cut..len);
            bench.give(&stream, 0..cut);
            bench.assert_complete(&stream);
        }
    }
}

// spec: MPA-6-3
#[test]
fn a_crc_alone_in_the_next_segment_completes_its_fpdu() {
    let stream = Stream::of(0, false, &[1442, 1442]);
    let mut bench = Bench::new(&stream);
    bench.give(&stream, 0..1444);
    assert!(bench.upper.placed.is_empty());
    bench.give(&stream, 1444..1448);
    assert_eq!(bench.upper.delivered.len(), 1);
    bench.give(&stream, 1448..2896);
    bench.assert_complete(&stream);
}

// spec: DDP-3-5, DDP-4.1-4, DDP-5.3-3, RDMAP-5.5-3, MPA-1.2-2, MPA-3-6, MPA-6-2, TCP-A.3-1
// spec: TCP-A.3-4, TCP-A.3-5
#[test]
fn an_fpdu_beyond_a_gap_is_placed_at_once_and_delivered_later() {
    let stream = Stream::of(100, true, &[1442; 4]);
    let mut bench = Bench::new(&stream);
    bench.give(&stream, stream.range(1));
    assert_eq!(bench.upper.placed, [stream.fpdus[1].clone()]);
    // The next one follows a valid FPDU: its start is known without a marker.
    bench.give(&stream, stream.range(2));
    assert_eq!((bench.upper.placed.len(), bench.upper.delivered.len()), (2, 0));
    assert_eq!(bench.receiver.counters().fpdus_by_marker, 1);
    assert_eq!(bench.receiver.counters().fpdus_out_of_order, 2);
    bench.give(&stream, stream.range(0));
    assert_eq!(bench.upper.delivered, stream.starts()[..3]);
    bench.give(&stream, stream.range(3));
    bench.assert_complete(&stream);
    assert_eq!(bench.receiver.counters().bytes_held, 0);
}

#[test]
fn without_markers_data_beyond_a_gap_is_held() {
    let stream = Stream::of(0, false, &[1442; 3]);
    let mut bench = Bench::new(&stream);
    bench.give(&stream, stream.range(1));
    bench.give(&stream, stream.range(2));
    assert!(bench.upper.placed.is_empty());
    assert_eq!(bench.receiver.bytes_held(), 2 * 1448);
    bench.give(&stream, stream.range(0));
    bench.assert_complete(&stream);
    assert_eq!(bench.receiver.counters().bytes_held_peak, 2 * 1448);
}

#[test]
fn the_time_from_arrival_to_placement_is_counted() {
    let wait = |markers: bool| {
        let stream = Stream::of(0, markers, &[1442; 4]);
        let mut bench = Bench::new(&stream);
        for (at_ns, index) in [(1000, 1), (1300, 2), (5000, 0), (6000, 3)] {
            bench.now = Instant::from_nanos(at_ns);
            bench.give(&stream, stream.range(index));
        }
        bench.assert_complete(&stream);
        let counters = bench.receiver.counters();
        (counters.held_byte_ns, counters.held_ns_max)
    };
    assert_eq!(wait(true), (0, 0));
    assert_eq!(wait(false), (1448 * 4000 + 1448 * 3700, 4000));
}

// spec: MPA-6-2
#[test]
fn a_segment_with_no_marker_beyond_a_gap_waits() {
    let stream = Stream::of(0, true, &[100, 100, 100]);
    let mut bench = Bench::new(&stream);
    bench.give(&stream, stream.range(1));
    assert!(bench.upper.placed.is_empty());
    bench.give(&stream, stream.range(2));
    bench.give(&stream, stream.range(0));
    bench.assert_complete(&stream);
}

#[test]
fn with_placement_in_order_only_nothing_is_placed_beyond_a_gap() {
    let stream = Stream::of(0, true, &[1442; 3]);
    let config = RxConfig { out_of_order: false, ..RxConfig::default() };
    let mut bench = Bench::with(&stream, config);
    bench.give(&stream, stream.range(2));
    bench.give(&stream, stream.range(1));
    assert!(bench.upper.placed.is_empty());
    bench.give(&stream, stream.range(0));
    bench.assert_complete(&stream);
    assert_eq!(bench.receiver.counters().fpdus_out_of_order, 0);
}

#[test]
fn an_unaligned_segment_beyond_a_gap_yields_the_fpdus_inside_it() {
    let stream = Stream::of(0, true, &[300; 20]);
    let (second, last) = (stream.range(1), stream.range(18));
    let mut bench = Bench::new(&stream);
    bench.give(&stream, second.start + 50..last.end - 50);
    assert!(bench.upper.placed.len() >= 15);
    assert_eq!(bench.receiver.counters().fpdus_by_marker, 1);
    bench.give(&stream, last.end - 50..stream.octets.len());
    assert!(bench.upper.delivered.is_empty());
    bench.give(&stream, 0..second.start + 50);
    bench.assert_complete(&stream);
}

// spec: TCP-A.4-2
#[test]
fn an_fpdu_over_two_segments_beyond_a_gap_is_placed_with_its_second_half() {
    let stream = Stream::of(0, true, &[1000, 1442, 1000]);
    let fpdu = stream.range(1);
    // The second segment has no marker: the start found in the first one is remembered.
    let cut = fpdu.end - 100;
    let mut bench = Bench::new(&stream);
    bench.give(&stream, fpdu.start..cut);
    assert!(bench.upper.placed.is_empty());
    bench.give(&stream, cut..fpdu.end);
    assert_eq!(bench.upper.placed, [stream.fpdus[1].clone()]);
    // The reverse: the marker was in bytes held after the segment.
    let mut bench = Bench::new(&stream);
    let cut = fpdu.start + 10;
    bench.give(&stream, cut..fpdu.end);
    bench.give(&stream, fpdu.start..cut);
    assert_eq!(bench.upper.placed, [stream.fpdus[1].clone()]);
    bench.give(&stream, 0..fpdu.start);
    bench.give(&stream, fpdu.end..stream.octets.len());
    bench.assert_complete(&stream);
}

#[test]
fn a_chain_goes_on_through_octets_held_after_the_segment() {
    let stream = Stream::of(0, false, &[200; 10]);
    let len = stream.octets.len();
    let mut bench = Bench::new(&stream);
    bench.give(&stream, 300..len);
    bench.give(&stream, 0..300);
    bench.assert_complete(&stream);
    assert_eq!(bench.receiver.counters().bytes_held, (len - 300) as u64);
}

#[test]
fn fpdus_ahead_have_a_limit_and_are_taken_again_later() {
    let lens = vec![14; FPDUS_AHEAD_MAX + 200];
    let stream = Stream::of(0, true, &lens);
    let mut bench = Bench::new(&stream);
    let mut at = stream.range(1).start;
    let end = stream.octets.len();
    while at < end {
        let step = at..end.min(at + 60_000);
        let (taken, error) = bench.give_to(&stream, step.clone());
        assert_eq!(error, None);
        at += taken;
        if taken < step.len() {
            break;
        }
    }
    assert!(at < end, "refused");
    assert_eq!(bench.receiver.fpdus_ahead(), FPDUS_AHEAD_MAX);
    assert!(bench.receiver.counters().refused_for_room > 0);
    bench.give(&stream, 0..stream.range(0).end);
    bench.give(&stream, at..end);
    bench.assert_complete(&stream);
}

#[test]
fn held_fpdus_refused_ahead_are_placed_later() {
    let lens = vec![14; FPDUS_AHEAD_MAX + 300];
    let stream = Stream::of(0, true, &lens);
    let end = stream.octets.len();
    // The last FPDUs are held beyond a second gap, which closes while the list is full.
    let tail = stream.range(FPDUS_AHEAD_MAX + 100);
    let mut bench = Bench::new(&stream);
    let mut at = stream.range(1).start;
    let config = bench.receiver.config;
    bench.receiver.config.out_of_order = false;
    bench.give(&stream, tail.start + 2..end);
    bench.receiver.config = config;
    while at < tail.start + 2 {
        let step = at..(tail.start + 2).min(at + 60_000);
        let (taken, _) = bench.give_to(&stream, step);
        if taken == 0 {
            break;
        }
        at += taken;
    }
    bench.give(&stream, 0..stream.range(0).end);
    bench.give(&stream, at..tail.start + 2);
    bench.assert_complete(&stream);
}

#[test]
fn full_store_refuses_data_beyond_a_gap_and_takes_data_in_order() {
    let stream = Stream::of(0, false, &[60_000; 8]);
    let mut bench = Bench::new(&stream);
    bench.store = PieceStore::new(0);
    let len = stream.octets.len();
    let mut refused = false;
    for from in (1000..len).step_by(10_000) {
        let to = len.min(from + 10_000);
        refused |= bench.give_to(&stream, from..to).0 < to - from;
    }
    assert!(refused && bench.receiver.counters().refused_for_room > 0);
    // The first bytes, one by one; then all refused bytes, in order.
    for at in 0..1000 {
        bench.give(&stream, at..at + 1);
    }
    let held_end = bench.receiver.held.pieces().next().map_or(0, |piece| piece.end.0);
    let mut at = usize::try_from(held_end.max(bench.receiver.delivered().0)).unwrap();
    while at < len {
        let next = bench
            .receiver
            .held
            .pieces()
            .map(|piece| usize::try_from(piece.start.0).unwrap())
            .find(|start| *start >= at)
            .unwrap_or(len);
        if next > at {
            bench.give(&stream, at..next.min(at + 1448));
            at = next.min(at + 1448);
        }
        if let Some(piece) = bench.receiver.held.piece_at(StreamOffset(at as u64)) {
            at = usize::try_from(piece.end.0).unwrap();
        }
    }
    bench.assert_complete(&stream);
}

#[test]
fn streams_that_all_hold_half_an_fpdu_do_not_block_each_other() {
    let stream = Stream::of(0, false, &[64_000]);
    let len = stream.octets.len();
    let mut store = PieceStore::new(0);
    let mut streams: Vec<(FpduReceiver<StreamOffset>, Upper, usize)> = (0..6)
        .map(|_| (FpduReceiver::new(RxConfig::default(), StreamOffset(0)), Upper::default(), 0))
        .collect();
    let mut rounds = 0;
    while streams.iter().any(|(.., at)| *at < len) {
        for (receiver, upper, at) in &mut streams {
            let bytes = &stream.octets[*at..len.min(*at + 1448)];
            let offset = StreamOffset(*at as u64);
            let taken = receiver.handle_bytes(Instant::ZERO, offset, bytes, &mut store, upper);
            assert_eq!(taken.error, None);
            *at += taken.end.index_from(offset);
        }
        rounds += 1;
        assert!(rounds < 1000, "no progress");
    }
    assert!(streams.iter().all(|(_, upper, _)| upper.delivered.len() == 1));
    assert_eq!(store.blocks_used(), 0);
}

#[test]
fn stopping_frees_all_held_memory() {
    let stream = Stream::of(0, true, &[1442; 3]);
    let mut bench = Bench::new(&stream);
    bench.give(&stream, 1500..stream.octets.len());
    bench.give(&stream, 0..100);
    assert!(bench.store.blocks_used() > 0);
    bench.receiver.stop(&mut bench.store);
    assert_eq!((bench.store.blocks_used(), bench.store.bytes_held()), (0, 0));
    bench.give(&stream, 100..1500);
    assert_eq!((bench.store.blocks_used(), bench.upper.delivered.len()), (0, 0));
}
