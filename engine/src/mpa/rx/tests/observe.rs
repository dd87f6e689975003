//! Observers, which continue after faults.

use super::*;

fn observing(stream: &Stream) -> Bench {
    let mut bench = Bench::new(stream);
    bench.upper.observes = true;
    bench
}

#[test]
fn an_observer_goes_on_behind_a_wrong_crc_however_it_arrives() {
    for markers in [false, true] {
        let mut stream = Stream::of(7, markers, &[600, 700, 800, 90]);
        let bad = stream.range(1);
        stream.octets[bad.start + 50] ^= 4;
        let len = stream.octets.len();
        for cut in [bad.start, bad.start + 30, bad.end - 4, bad.end, bad.end + 100] {
            for late_first in [false, true] {
                let mut bench = observing(&stream);
                let pieces = [0..cut, cut..len];
                // Beyond a gap a marker may lead to the bad FPDU: then it is refused and given
                // again.
                let first = usize::from(late_first);
                let (taken, _) = bench.give_to(&stream, pieces[first].clone());
                bench.give(&stream, pieces[1 - first].clone());
                let again = pieces[first].start + taken..pieces[first].end;
                if !again.is_empty() {
                    bench.give(&stream, again);
                }
                let upper = &bench.upper;
                assert_eq!(upper.placed.len(), 3);
                assert_eq!(upper.delivered, stream.starts());
                let [(start, ulpdu, error, wrong_markers)] = &upper.passed_over[..] else {
                    panic!("one FPDU is wrong")
                };
                assert_eq!((*start, ulpdu.len()), (stream.fpdus[1].0, 700));
                assert!(error.fault == MpaFault::Crc && wrong_markers.is_empty());
                assert_eq!(bench.receiver.delivered(), stream.end());
                assert_eq!(bench.receiver.counters().fpdus, 3);
                assert_eq!((bench.store.bytes_held(), bench.store.blocks_used()), (0, 0));
            }
        }
    }
}

#[test]
fn an_observer_sees_which_markers_are_wrong() {
    let mut stream = Stream::of(0, true, &[100, 1200, 50]);
    let fpdu = stream.range(1);
    let marker = (fpdu.start..).find(|at| at % 512 == 0).unwrap() + 512;
    stream.octets[marker + 3] ^= 8;
    stream.mend_crc(1);
    let mut bench = observing(&stream);
    bench.give(&stream, 0..stream.octets.len());
    let [(start, ulpdu, error, wrong_markers)] = &bench.upper.passed_over[..] else {
        panic!("one FPDU is wrong")
    };
    assert_eq!((*start, ulpdu), (stream.fpdus[1].0, &stream.fpdus[1].1));
    assert!(error.fault == MpaFault::Marker);
    assert_eq!(wrong_markers, &[stream.origin + marker as u64]);
    assert_eq!(bench.upper.delivered, stream.starts());
}
