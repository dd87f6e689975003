//! One stream through every path of reception: all place, deliver, refuse and count the same.
//!
//! The general path is the reference. A fast path that judges anything otherwise, or counts at
//! another moment, shows here. The seed is fixed, so every run gives the same streams.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

/// A way to receive bytes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The general path alone.
    General,
    /// The segment in one place: the fast path, then the general one.
    Whole,
    /// The segment in runs of so many bytes, as far as they can be used in place.
    InPlace(usize),
}

#[derive(Clone, Debug)]
enum Fault {
    /// A bit is wrong.
    Bit { at: prop::sample::Index, bit: u32 },
    /// The length field has another value, under a right CRC.
    Length(u16),
    /// A marker points elsewhere, under a right CRC.
    Marker { at: prop::sample::Index, value: u16 },
}

#[derive(Clone, Debug)]
struct Case {
    origin: u64,
    markers: bool,
    crc: bool,
    out_of_order: bool,
    observes: bool,
    small_store: bool,
    lens: Vec<usize>,
    /// How much the limits of a length leave out: FPDUs of the longest, or of the shortest.
    limits: (usize, usize),
    faults: Vec<(prop::sample::Index, Fault)>,
    /// FPDUs whose placement or delivery is refused.
    refused: [Option<prop::sample::Index>; 2],
    /// Lengths of the segments, repeated; 0: to the end of the FPDU.
    cuts: Vec<usize>,
    /// Sorting keys of the segments; empty: they come in order.
    keys: Vec<u8>,
    run_len: usize,
}

/// One of each: what a run of a way led to.
#[derive(Debug, PartialEq)]
struct Outcome {
    placed: Vec<(StreamOffset, Vec<u8>)>,
    delivered: Vec<StreamOffset>,
    passed_over: Vec<(StreamOffset, Vec<u8>, MpaError, Vec<StreamOffset>)>,
    /// Up to where each segment was taken, and what was wrong.
    answers: Vec<(usize, Option<RxError<&'static str>>)>,
    counters: MpaRxCounters,
    next: StreamOffset,
    bytes_held: u64,
    fpdus_ahead: usize,
    stopped: bool,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (any::<prop::sample::Index>(), 0u32..8).prop_map(|(at, bit)| Fault::Bit { at, bit }),
        prop_oneof![Just(0), 0u16..1500, any::<u16>()].prop_map(Fault::Length),
        (any::<prop::sample::Index>(), prop_oneof![0u16..1600, any::<u16>()])
            .prop_map(|(at, value)| Fault::Marker { at, value }),
    ]
}

prop_compose! {
    fn case()(
        origin in 0u64..1 << 33,
        flags in (any::<bool>(), prop::bool::weighted(0.8), prop::bool::weighted(0.8), prop::bool::weighted(0.2)),
        small_store in prop::bool::weighted(0.2),
        lens in prop::collection::vec(
            prop_oneof![1usize..40, 40usize..700, Just(502), Just(506), 700usize..2500], 1..12),
        limits in prop_oneof![4 => Just((0, 0)), 1 => Just((1, 0)), 1 => Just((0, 1))],
        faults in prop::collection::vec((any::<prop::sample::Index>(), fault()), 0..3),
        refused in [
            prop::option::weighted(0.3, any::<prop::sample::Index>()),
            prop::option::weighted(0.15, any::<prop::sample::Index>()),
        ],
        cuts in prop::collection::vec(
            prop_oneof![
                1usize..20, 20usize..700, 700usize..3000, Just(usize::MAX), Just(0), Just(0)], 1..8),
        keys in prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 32)],
        run_len in prop_oneof![1usize..40, 40usize..2000, Just(usize::MAX)],
    ) -> Case {
        let (markers, crc, out_of_order, observes) = flags;
        Case {
            origin, markers, crc, out_of_order, observes, small_store, lens, limits, faults, refused, cuts,
            keys, run_len,
        }
    }
}

impl Case {
    /// The stream with its faults.
    fn sent(&self) -> Stream {
        let mut stream = Stream::of(self.origin, self.markers, &self.lens);
        for (index, fault) in &self.faults {
            let index = index.index(stream.fpdus.len());
            let range = stream.range(index);
            let start = stream.fpdus[index].0;
            match fault {
                Fault::Bit { at, bit } => {
                    stream.octets[range.start + at.index(range.len())] ^= 1 << bit;
                }
                Fault::Length(len) => {
                    let at = range.start + stream.grid.leading_len(start);
                    stream.octets[at..at + 2].copy_from_slice(&len.to_be_bytes());
                    stream.mend_crc(index);
                }
                Fault::Marker { at, value } => {
                    let layout = stream.grid.layout(start, stream.fpdus[index].1.len());
                    if layout.marker_count() == 0 {
                        continue;
                    }
                    let at = range.start + layout.marker_at(at.index(layout.marker_count()));
                    stream.octets[at + 2..at + 4].copy_from_slice(&value.to_be_bytes());
                    stream.mend_crc(index);
                }
            }
        }
        stream
    }

    fn segments(&self, stream: &Stream) -> VecDeque<Range<usize>> {
        let len = stream.octets.len();
        let ends: Vec<usize> =
            (0..stream.fpdus.len()).map(|index| stream.range(index).end).collect();
        let mut segments = Vec::new();
        let mut at = 0;
        for (index, cut) in self.cuts.iter().cycle().enumerate() {
            if at == len {
                break;
            }
            let end = match cut {
                0 => ends[ends.partition_point(|end| *end <= at)],
                _ => at.saturating_add(*cut).min(len),
            };
            let key = self.keys.get(index % 32).map_or(0, |key| usize::from(*key % 8));
            segments.push((index + key, at..end));
            at = end;
        }
        segments.sort_by_key(|segment| segment.0);
        segments.into_iter().map(|segment| segment.1).collect()
    }

    fn receive(&self, way: Way) -> Outcome {
        let good = Stream::of(self.origin, self.markers, &self.lens);
        let sent = self.sent();
        let config = RxConfig {
            crc: self.crc,
            out_of_order: self.out_of_order,
            ulpdu_len_max: self.lens.iter().max().unwrap() - self.limits.0,
            ..RxConfig::default()
        };
        let mut bench = Bench::with(&good, config);
        bench.receiver.config.ulpdu_len_min = self.lens.iter().min().unwrap() + self.limits.1;
        if self.small_store {
            bench.store = PieceStore::new(0);
        }
        let start = |index: Option<prop::sample::Index>| {
            index.map(|index| good.fpdus[index.index(good.fpdus.len())].0)
        };
        bench.upper.refuse_at = start(self.refused[0]);
        bench.upper.refuse_delivery_at = start(self.refused[1]);
        bench.upper.observes = self.observes;
        let mut waiting: VecDeque<_> =
            self.segments(&good).into_iter().map(|range| (range, &sent)).collect();
        let mut answers = Vec::new();
        // What was refused comes again, right: a few times.
        while let Some((range, from)) = waiting.pop_front() {
            let answer = bench.give_by(way, from, range.clone());
            answers.push(answer);
            if answer.0 < range.len() && answers.len() < 400 {
                waiting.push_back((range.start + answer.0..range.end, &good));
            }
        }
        Outcome {
            answers,
            counters: *bench.receiver.counters(),
            next: bench.receiver.delivered(),
            bytes_held: bench.receiver.bytes_held(),
            fpdus_ahead: bench.receiver.fpdus_ahead(),
            stopped: bench.receiver.stopped,
            placed: bench.upper.placed,
            delivered: bench.upper.delivered,
            passed_over: bench.upper.passed_over,
        }
    }
}

impl Bench {
    fn give_by(
        &mut self,
        way: Way,
        stream: &Stream,
        range: Range<usize>,
    ) -> (usize, Option<RxError<&'static str>>) {
        match way {
            Way::General => {
                let slice =
                    Slice { at: self.origin + range.start as u64, bytes: &stream.octets[range] };
                let Self { receiver, store, upper, .. } = self;
                store.note_time(self.now);
                if receiver.stopped {
                    return (slice.bytes.len(), None);
                }
                let taken = receiver.take(slice, store, upper);
                let taken = receiver.conclude(slice.end(), taken, store);
                (taken.end.index_from(slice.at), taken.error)
            }
            Way::Whole | Way::InPlace(_) => {
                self.run_len = if let Way::InPlace(run_len) = way { Some(run_len) } else { None };
                self.give_in_runs(stream, range)
            }
        }
    }

    /// As [`Bench::give_to`], where the layer above may refuse what was used in place.
    fn give_in_runs(
        &mut self,
        stream: &Stream,
        range: Range<usize>,
    ) -> (usize, Option<RxError<&'static str>>) {
        let Self { receiver, store, upper, .. } = self;
        let Some(run_len) = self.run_len else { return self.give_to(stream, range) };
        let offset = self.origin + range.start as u64;
        let bytes = &stream.octets[range.clone()];
        let runs: Vec<SharedSlice<'_>> =
            bytes.chunks(run_len).map(SharedSlice::from_bytes).collect();
        let octets = Scattered::new(SharedSlice::from_bytes(&[]), &runs);
        let taken = receiver.handle_scattered(offset, &octets, store, upper);
        let used = taken.end.index_from(offset);
        if taken.error.is_some() {
            return (used, taken.error);
        }
        self.run_len = None;
        let (rest, error) = self.give_to(stream, range.start + used..range.end);
        (used + rest, error)
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        rng_seed: RngSeed::Fixed(9),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn all_receive_paths_give_equal_results_and_counters(case in case()) {
        let reference = case.receive(Way::General);
        for way in [Way::Whole, Way::InPlace(case.run_len), Way::InPlace(usize::MAX)] {
            let outcome = case.receive(way);
            prop_assert!(outcome == reference, "{way:?}\n{outcome:?}\n{reference:?}");
        }
        // Each FPDU with a right CRC counts once, however often it was looked at.
        let counters = reference.counters;
        let is_refused = |answer: &&(usize, _)| matches!(answer.1, Some(RxError::Sink("refused")));
        let judged = counters.fpdus + reference.answers.iter().filter(is_refused).count() as u64;
        let checked = if case.crc { judged..=judged + counters.marker_errors } else { 0..=0 };
        prop_assert!(checked.contains(&counters.crc_good), "{counters:?}");
    }
}
