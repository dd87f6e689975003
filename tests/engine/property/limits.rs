//! TCP's table of ranges, the receiver's table of FPDUs and the memory for pieces, driven together
//! at their limits by streams. Some of the streams try to use the limits up.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use urnic_engine::limits::{BAD_FPDU_DROPS_MAX, PIECE_BLOCK_LEN};
use urnic_engine::mpa::marker::MarkerGrid;
use urnic_engine::mpa::pieces::{NEAR_PAGES, PieceStore};
use urnic_engine::mpa::rx::{FpduReceiver, FpduSink, RxConfig, RxError, RxLimits, Ulpdu};
use urnic_engine::mpa::tx::{Fpdu, RunSink};
use urnic_engine::tcp::{self, SeqNum};
use urnic_engine::time::Instant;
use urnic_engine::types::StreamOffset;
use urnic_engine::wire::crc32c::Crc32c;

/// Parameters of a run.
#[derive(Clone, Debug)]
struct Case {
    ranges_max: usize,
    limits: RxLimits,
    /// Number of blocks that all streams share.
    blocks: usize,
    markers: bool,
    out_of_order: bool,
    /// Lengths of the ULPDUs of every stream, used in turn.
    lens: Vec<usize>,
    /// Minimum bytes of each stream.
    stream_len: usize,
    actions: Vec<Action>,
}

#[derive(Clone, Debug)]
struct Action {
    stream: Index,
    what: What,
    at: Place,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A correct segment.
    Send,
    /// A segment with other bytes; only on dishonest streams.
    Spoil,
    /// Another connection needs the room.
    GiveUp,
    /// Single bytes, 2 apart; only on dishonest streams.
    Scatter,
}

/// Start of a segment.
#[derive(Clone, Debug)]
enum Place {
    /// Anywhere.
    Any(Index),
    /// This many bytes after the cumulative point.
    Next(u64),
    /// This many bytes before the end of the near range.
    NearEnd(u64),
    /// At the start of an FPDU.
    Fpdu(Index),
}

const STREAMS: usize = 4;
/// Streams before this index may send anything.
const HONEST_FROM: usize = 2;

fn any_case(actions: usize, stream_len: usize) -> impl Strategy<Value = Case> {
    let small = |usual: usize| prop_oneof![Just(1), Just(2), 3_usize..8, Just(usual)];
    let len = prop_oneof![
        1_usize..40,
        40_usize..1500,
        Just(502),
        Just(1442),
        1500_usize..9000,
        Just(60_000)
    ];
    let place = prop_oneof![
        any::<Index>().prop_map(Place::Any),
        (0_u64..3).prop_map(Place::Next),
        (0_u64..4000).prop_map(Place::Next),
        (0_u64..4000).prop_map(Place::NearEnd),
        any::<Index>().prop_map(Place::Fpdu),
    ];
    let what = prop_oneof![
        12 => Just(What::Send), 4 => Just(What::Spoil), 1 => Just(What::GiveUp), 2 => Just(What::Scatter)
    ];
    let cut = prop_oneof![1_usize..4, 4_usize..1448, Just(1448), 1500_usize..30_000];
    let action = (any::<Index>(), what, place, cut).prop_map(|(stream, what, at, len)| Action {
        stream,
        what,
        at,
        len,
    });
    let tables = (small(1024), small(1024), small(16_384), prop_oneof![0_usize..12, Just(4096)]);
    let flags = (any::<bool>(), prop::bool::weighted(0.8));
    let lens = prop::collection::vec(len, 1..12);
    (tables, flags, lens, prop::collection::vec(action, 1..actions)).prop_map(
        move |((ranges_max, pieces_max, fpdus_ahead_max, blocks), flags, lens, actions)| Case {
            ranges_max,
            limits: RxLimits { pieces_max, fpdus_ahead_max },
            blocks,
            markers: flags.0,
            out_of_order: flags.1,
            lens,
            stream_len,
            actions,
        },
    )
}

/// The bytes of a stream, and the starts of its FPDUs.
#[derive(Default)]
struct Sent {
    octets: Vec<u8>,
    starts: Vec<u64>,
    crc: Crc32c,
}

impl RunSink for Sent {
    fn inline(&mut self, octets: &[u8]) {
        self.crc.update(octets);
        self.octets.extend_from_slice(octets);
    }
    fn payload(&mut self, _: usize, len: usize) {
        let at = self.octets.len();
        let payload: Vec<u8> = (at..at + len).map(|n| (n * 7 + n / 251) as u8).collect();
        self.inline(&payload);
    }
    fn crc(&mut self) {
        self.octets.extend_from_slice(&self.crc.finish().to_le_bytes());
        self.crc = Crc32c::new();
    }
}

impl Sent {
    fn new(case: &Case) -> Self {
        let grid = MarkerGrid::new(StreamOffset(0), case.markers);
        let mut sent = Self::default();
        for len in case.lens.iter().cycle() {
            if sent.octets.len() >= case.stream_len {
                break;
            }
            let start = sent.octets.len() as u64;
            sent.starts.push(start);
            Fpdu::new(grid, StreamOffset(start), &[], *len).emit(&mut sent);
        }
        sent
    }
}

/// Counts placed and delivered FPDUs.
#[derive(Default)]
struct Upper {
    placed: Vec<u64>,
    delivered: u64,
}

impl FpduSink for Upper {
    type Token = ();
    type Error = ();
    fn place(&mut self, _: &Ulpdu<'_>, at: StreamOffset) -> Result<(), ()> {
        assert!(!self.placed.contains(&at.0), "placed twice");
        self.placed.push(at.0);
        Ok(())
    }
    fn deliver(&mut self, (): ()) -> Result<(), ()> {
        self.delivered += 1;
        Ok(())
    }
}

/// One stream at the receiving end.
struct End {
    tcp: tcp::ReceiveHalf,
    mpa: FpduReceiver<()>,
    upper: Upper,
    committed: u64,
    drops: u32,
    over: bool,
    now: Instant,
}

impl End {
    fn new(case: &Case) -> Self {
        let config = RxConfig {
            markers: case.markers,
            out_of_order: case.out_of_order,
            ulpdu_len_min: 1,
            ..RxConfig::default()
        };
        Self {
            tcp: tcp::ReceiveHalf::passive(SeqNum(0)).with_ranges_max(case.ranges_max),
            mpa: FpduReceiver::with_limits(config, StreamOffset(0), case.limits),
            upper: Upper::default(),
            committed: 0,
            drops: 0,
            over: false,
            now: Instant::ZERO,
        }
    }

    /// Handles a segment, as at the optimized lower layer. Returns true if all of it was taken.
    fn segment(&mut self, start: u64, octets: &[u8], store: &mut PieceStore) -> bool {
        let range = StreamOffset(start)..StreamOffset(start + octets.len() as u64);
        let mut from = range.start;
        while let Some(missing) = self.tcp.next_missing(from..range.end) {
            if !self.tcp.can_commit(&missing) {
                return false;
            }
            let part = missing.start.index_from(range.start)..missing.end.index_from(range.start);
            let taken = self.mpa.handle_bytes(
                self.now,
                missing.start,
                &octets[part],
                store,
                &mut self.upper,
            );
            match taken.error {
                None => {}
                Some(RxError::Mpa(error)) if error.droppable => {
                    self.drops += 1;
                    if self.drops > BAD_FPDU_DROPS_MAX {
                        self.end(store);
                    }
                }
                Some(_) => self.end(store),
            }
            if self.over {
                return false;
            }
            if taken.end > missing.start {
                self.tcp.commit(missing.start..taken.end).expect("room was asked for");
                self.committed += taken.end.bytes_since(missing.start);
            }
            if taken.end < missing.end {
                return false;
            }
            from = missing.end;
        }
        true
    }

    fn end(&mut self, store: &mut PieceStore) {
        self.over = true;
        self.mpa.stop(store);
    }

    fn give_up_far(&mut self, store: &mut PieceStore) {
        let (tcp, committed) = (&mut self.tcp, &mut self.committed);
        self.mpa.give_up_far(store, |range| {
            assert!(tcp.next_missing(range.clone()).is_none(), "it was committed");
            tcp.forget(&range);
            assert_eq!(tcp.next_missing(range.clone()), Some(range.clone()));
            *committed -= range.end.bytes_since(range.start);
        });
    }

    fn check(&self) -> Result<(), TestCaseError> {
        if self.over {
            return Ok(());
        }
        let held = self.mpa.bytes_held() + self.mpa.bytes_ahead();
        prop_assert_eq!(held + self.mpa.delivered().0, self.committed, "held, placed, committed");
        prop_assert!(self.tcp.rcv_nxt() >= self.mpa.delivered());
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Met {
    refused: u64,
    given_up: u64,
    placed_ahead: u64,
    ended: u64,
}

fn start_of(place: &Place, end: &End, sent: &Sent) -> u64 {
    let last = sent.octets.len() as u64 - 1;
    let near_pages = end.mpa.delivered().0 / PIECE_BLOCK_LEN as u64 + NEAR_PAGES as u64;
    let start = match place {
        Place::Any(index) => index.index(sent.octets.len()) as u64,
        Place::Next(after) => end.tcp.rcv_nxt().0 + after,
        Place::NearEnd(before) => near_pages * PIECE_BLOCK_LEN as u64 - before,
        Place::Fpdu(index) => *index.get(&sent.starts),
    };
    start.min(last)
}

fn run(case: &Case, met: &mut Met) -> Result<(), TestCaseError> {
    let sent = Sent::new(case);
    let mut store = PieceStore::new(case.blocks);
    let mut ends: Vec<End> = (0..STREAMS).map(|_| End::new(case)).collect();
    for (now, action) in (0_u64..).zip(&case.actions) {
        let which = action.stream.index(STREAMS);
        let end = &mut ends[which];
        end.now = Instant::from_nanos(now);
        let start = start_of(&action.at, end, &sent);
        let from = start as usize;
        let octets = &sent.octets[from..sent.octets.len().min(from + action.len)];
        match action.what {
            _ if end.over => {}
            What::Spoil if which < HONEST_FROM => {
                end.segment(start, &vec![0x55; octets.len()], &mut store);
                met.ended += u64::from(end.over);
            }
            What::Scatter if which < HONEST_FROM => {
                for n in 0..20 {
                    end.segment(start + 2 * n, &[0x55], &mut store);
                }
            }
            What::GiveUp => {
                let before = end.committed;
                end.give_up_far(&mut store);
                met.given_up += before - end.committed;
            }
            _ => {
                let in_order = StreamOffset(start) <= end.tcp.rcv_nxt();
                let all = end.segment(start, octets, &mut store);
                met.refused += u64::from(!all);
                // The guaranteed room of a stream does not depend on the others.
                prop_assert!(all || !in_order || which < HONEST_FROM || !is_gapless(end, octets));
            }
        }
        met.placed_ahead += ends[which].mpa.bytes_ahead();
        ends.iter().try_for_each(End::check)?;
    }
    for (which, end) in ends.iter_mut().enumerate().skip(HONEST_FROM) {
        prop_assert!(!end.over);
        while end.tcp.rcv_nxt().0 < sent.octets.len() as u64 {
            let from = end.tcp.rcv_nxt();
            let at = from.0 as usize;
            let octets = &sent.octets[at..sent.octets.len().min(at + 1448)];
            end.segment(from.0, octets, &mut store);
            prop_assert!(end.tcp.rcv_nxt() > from, "stream {} makes no progress", which);
            end.check()?;
        }
        prop_assert_eq!(end.upper.delivered, sent.starts.len() as u64);
        prop_assert_eq!(end.mpa.bytes_held() + end.mpa.bytes_ahead(), 0);
    }
    for end in &mut ends {
        end.end(&mut store);
    }
    prop_assert_eq!((store.blocks_used(), store.bytes_held()), (0, 0));
    Ok(())
}

/// Returns true if a segment of these bytes in order lies in the near range, beyond which a gap
/// decides.
fn is_gapless(end: &End, octets: &[u8]) -> bool {
    octets.len() < PIECE_BLOCK_LEN && end.mpa.bytes_held() == 0 && end.mpa.bytes_ahead() == 0
}

/// Runs the same cases every time.
fn for_any_case(cases: u32, actions: usize, stream_len: usize) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let met = std::cell::RefCell::new(Met::default());
    TestRunner::new_with_rng(config, rng)
        .run(&any_case(actions, stream_len), |case| run(&case, &mut met.borrow_mut()))
        .unwrap_or_else(|error| panic!("{error}"));
    let met = met.into_inner();
    let all = [met.refused, met.given_up, met.placed_ahead, met.ended];
    assert!(all.iter().all(|count| *count > 0), "{met:?}");
}

#[test]
fn held_octets_equal_committed_ones_at_every_limit() {
    for_any_case(300, 150, 250_000);
}

#[test]
fn held_octets_equal_committed_ones_in_long_runs() {
    for_any_case(40, 3000, 400_000);
}
