//! Any stream, cut and ordered in any way.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Case {
    origin: u64,
    markers: bool,
    crc: bool,
    out_of_order: bool,
    small_store: bool,
    lens: Vec<usize>,
    /// Segment lengths, used in turn.
    cuts: Vec<usize>,
    /// Sorting keys: the order of arrival.
    keys: Vec<u16>,
    /// Maximum displacement of a segment's arrival.
    disorder: usize,
    /// Length of the runs that segments are in, if they are not in one slice.
    run_len: Option<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let len =
        prop_oneof![1usize..40, 40usize..1500, Just(502), Just(506), Just(1442), 1500usize..9000];
    let cut = prop_oneof![1usize..4, 4usize..200, 200usize..1500, Just(1460), 1500usize..20_000];
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.8), any::<bool>());
    let disorder = prop_oneof![Just(0), 1usize..10, Just(usize::MAX)];
    (0u64..1 << 33, flags, prop::collection::vec(len, 1..40), prop::collection::vec(cut, 1..12))
        .prop_flat_map(move |(origin, flags, lens, cuts)| {
            let keys = prop::collection::vec(any::<u16>(), 64);
            let run_len = prop::option::of(prop_oneof![1usize..40, 40usize..2000]);
            (Just((origin, flags, lens, cuts)), keys, disorder.clone(), run_len)
        })
        .prop_map(|((origin, flags, lens, cuts), keys, disorder, run_len)| {
            let (markers, crc, out_of_order, small_store) = flags;
            Case {
                origin,
                markers,
                crc,
                out_of_order,
                small_store,
                lens,
                cuts,
                keys,
                disorder,
                run_len,
            }
        })
}

impl Case {
    /// The segments of a stream of `len` bytes in the order of their arrival.
    fn segments(&self, len: usize) -> VecDeque<Range<usize>> {
        let mut segments = Vec::new();
        let mut at = 0;
        for (index, cut) in self.cuts.iter().cycle().enumerate() {
            if at == len {
                break;
            }
            let end = len.min(at + cut);
            let key = usize::from(self.keys[index % self.keys.len()]) * 7919 + index * 104_729;
            let late = if self.disorder == 0 { 0 } else { key % self.disorder.min(1 << 20) };
            segments.push((index + late, at..end));
            at = end;
        }
        segments.sort_by_key(|segment| segment.0);
        segments.into_iter().map(|segment| segment.1).collect()
    }

    fn bench(&self, stream: &Stream, config: RxConfig) -> Bench {
        Bench { run_len: self.run_len, ..Bench::with(stream, config) }
    }

    fn config(&self) -> RxConfig {
        RxConfig { crc: self.crc, out_of_order: self.out_of_order, ..RxConfig::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_fpdu_is_placed_once_and_delivered_in_order(case in case()) {
        let stream = Stream::of(case.origin, case.markers, &case.lens);
        let mut bench = case.bench(&stream, case.config());
        if case.small_store {
            bench.store = PieceStore::new(0);
        }
        let mut waiting = case.segments(stream.octets.len());
        let mut idle = 0;
        while let Some(segment) = waiting.pop_front() {
            let (taken, error) = bench.give_to(&stream, segment.clone());
            prop_assert_eq!(error, None);
            idle = if taken > 0 { 0 } else { idle + 1 };
            prop_assert!(idle <= waiting.len() + 1, "no progress");
            if taken < segment.len() {
                waiting.push_back(segment.start + taken..segment.end);
            }
            prop_assert!(case.out_of_order || bench.receiver.fpdus_ahead() == 0);
            prop_assert!(bench.upper.delivered.is_sorted());
        }
        bench.assert_complete(&stream);
    }

    #[test]
    fn corrupt_octets_are_never_placed(
        case in case(), flips in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..4),
    ) {
        let stream = Stream::of(case.origin, case.markers, &case.lens);
        let mut sent = Stream::of(case.origin, case.markers, &case.lens);
        for (index, bit) in flips {
            let at = index.index(sent.octets.len());
            sent.octets[at] ^= 1 << bit;
        }
        let mut bench = case.bench(&stream, RxConfig { crc: true, ..case.config() });
        for segment in case.segments(stream.octets.len()) {
            let (_, error) = bench.give_to(&sent, segment);
            if error.is_some() {
                break;
            }
        }
        for fpdu in &bench.upper.placed {
            prop_assert!(stream.fpdus.contains(fpdu));
        }
    }

    #[test]
    fn a_bad_first_copy_is_replaced_by_a_retransmission(
        case in case(), index: prop::sample::Index, bit in 0u32..8,
    ) {
        // One FPDU per segment, at first with one wrong bit in one of them.
        let stream = Stream::of(case.origin, case.markers, &case.lens);
        let mut bad = Stream::of(case.origin, case.markers, &case.lens);
        let at = index.index(bad.octets.len());
        bad.octets[at] ^= 1 << bit;
        let mut bench = case.bench(&stream, RxConfig { crc: true, ..case.config() });
        let mut waiting: VecDeque<(usize, bool)> = (0..case.lens.len()).map(|n| (n, true)).collect();
        let mut rounds = 0;
        while let Some((fpdu, first)) = waiting.pop_front() {
            let from = if first { &bad } else { &stream };
            let (taken, error) = bench.give_to(from, stream.range(fpdu));
            if error.is_some_and(|error| matches!(error, RxError::Mpa(e) if !e.droppable)) {
                // With a longer length field the segment is only the beginning of an FPDU.
                return Ok(());
            }
            if taken == 0 {
                waiting.push_back((fpdu, false));
            }
            rounds += 1;
            prop_assert!(rounds < 10_000);
        }
        for fpdu in &bench.upper.placed {
            prop_assert!(stream.fpdus.contains(fpdu));
        }
    }

    #[test]
    fn arbitrary_octets_never_panic(
        markers: bool, crc: bool, pieces in prop::collection::vec((0u64..5000, 1usize..2000), 1..20),
        octets in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 8192),
    ) {
        let config = RxConfig { markers, crc, ..RxConfig::default() };
        let mut receiver = FpduReceiver::new(config, StreamOffset(0));
        let (mut store, mut upper) = (PieceStore::new(0), Upper::default());
        let mut given = vec![false; 8192];
        for (from, len) in pieces {
            let from = usize::try_from(from).unwrap();
            let Some(from) = (from..8192).find(|at| !given[*at]) else { continue };
            let to = (from..from + len).find(|at| given.get(*at) != Some(&false)).unwrap_or(from + len);
            let offset = StreamOffset(from as u64);
            let (now, part) = (Instant::ZERO, &octets[from..to]);
            let taken = receiver.handle_bytes(now, offset, part, &mut store, &mut upper);
            let end = taken.end.index_from(StreamOffset(0));
            given[from..end].fill(true);
        }
        receiver.stop(&mut store);
        prop_assert_eq!((store.blocks_used(), store.bytes_held()), (0, 0));
    }
}
