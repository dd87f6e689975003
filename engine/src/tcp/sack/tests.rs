use proptest::prelude::*;

use super::*;
use crate::tcp::rack::Rack;

const EMSS: u32 = 100;
const FAR: StreamOffset = StreamOffset(u64::MAX);

fn at(offset: u64) -> StreamOffset {
    StreamOffset(offset)
}

fn board(segments: u32) -> Scoreboard {
    let mut board = Scoreboard::default();
    board.push(Instant::ZERO, segments * EMSS, EMSS, false);
    board
}

/// Takes the blocks of a SACK option 1 ms after everything was sent.
fn sack(board: &mut Scoreboard, rack: &mut Rack, blocks: &[Range<StreamOffset>]) -> u64 {
    let mut delivered = Deliveries::default();
    let sacked = board.sack(blocks.iter().cloned(), &mut delivered);
    rack.update(LATER, &delivered, |_| true);
    sacked
}

fn acknowledge(board: &mut Scoreboard, ack: StreamOffset) -> Acknowledged {
    board.acknowledge(ack, &mut Deliveries::default())
}

const LATER: Instant = Instant::from_nanos(1_000_000);

fn resent(board: &mut Scoreboard) -> Vec<(u64, u64)> {
    let ranges = std::iter::from_fn(|| board.resend(LATER, EMSS, FAR));
    ranges.map(|resend| (resend.data.start.0, resend.data.end.0)).collect()
}

#[test]
fn pipe_excludes_sacked_and_lost_segments() {
    let mut board = board(10);
    assert_eq!((board.flight(), board.pipe()), (1000, 1000));
    let mut rack = Rack::new();
    sack(&mut board, &mut rack, &[at(700)..at(1000)]);
    assert_eq!(board.pipe(), 700);
    assert!(board.detect_losses(LATER, &rack, 0).lost);
    // Segments below 700 are lost: nothing is in the network.
    assert_eq!(board.pipe(), 0);
    board.resend(Instant::ZERO, EMSS, FAR).unwrap();
    assert_eq!(board.pipe(), 100);
    acknowledge(&mut board, at(1000));
    assert_eq!((board.flight(), board.pipe()), (0, 0));
    board.check();
}

/// RFC 5681 §3.2: a duplicate ACK means that a segment left the network; at most the segments in
/// the network can leave it.
#[test]
fn duplicate_acks_count_at_most_the_bytes_in_flight() {
    let mut board = board(3);
    board.mark_first_lost();
    (0..10).for_each(|_| board.duplicate_ack(100));
    assert_eq!((board.pipe(), board.duplicate_bytes()), (0, 200));
    board.push(LATER, 2 * EMSS, EMSS, false);
    assert_eq!(board.pipe(), 200);
}

#[test]
fn a_segment_sacked_in_part_is_not_sacked() {
    let mut board = board(5);
    let mut rack = Rack::new();
    assert_eq!(sack(&mut board, &mut rack, &[at(150)..at(350)]), 100);
    assert_eq!(sack(&mut board, &mut rack, &[at(150)..at(400)]), 100);
    assert_eq!(sack(&mut board, &mut rack, &[at(100)..at(400)]), 100);
    board.check();
}

#[test]
fn a_segment_is_lost_once_and_sent_again_once() {
    let mut board = board(10);
    let mut rack = Rack::new();
    sack(&mut board, &mut rack, &[at(100)..at(400)]);
    assert!(board.detect_losses(LATER, &rack, 0).lost);
    assert!(!board.detect_losses(LATER, &rack, 0).lost);
    assert_eq!(resent(&mut board), vec![(0, 100)]);
    assert_eq!(resent(&mut board), vec![]);
    sack(&mut board, &mut rack, &[at(500)..at(800), at(100)..at(400)]);
    assert!(board.detect_losses(LATER, &rack, 0).lost);
    assert_eq!(resent(&mut board), vec![(400, 500)]);
    board.check();
}

/// RFC 8985 §6.2: a retransmission is lost if a segment sent after it has arrived.
#[test]
fn lost_retransmission_is_detected_by_later_segments() {
    let mut board = board(5);
    let mut rack = Rack::new();
    let time = |ns: u64| Instant::from_nanos(1_000_000 + ns);
    sack(&mut board, &mut rack, &[at(100)..at(400)]);
    assert!(board.detect_losses(time(0), &rack, 0).lost);
    assert_eq!(resent(&mut board), vec![(0, 100)]);
    board.push(time(10), EMSS, EMSS, false);
    let mut delivered = Deliveries::default();
    board.sack([at(500)..at(600)], &mut delivered);
    rack.update(time(1_000_010), &delivered, |_| true);
    // The segment at 400 is lost at once; its retransmission, sent 10 ns before the delivered
    // segment, a window later.
    let found = board.detect_losses(time(1_000_010), &rack, 50);
    assert_eq!((found.lost, found.next_at), (true, Some(time(1_000_050))));
    let next = board.resend(time(1_000_010), EMSS, FAR).map(|resend| resend.data);
    assert_eq!(next, Some(at(400)..at(500)));
    assert_eq!(resent(&mut board), vec![]);
    assert!(board.detect_losses(time(1_000_050), &rack, 50).lost);
    assert_eq!(resent(&mut board), vec![(0, 100)]);
    board.check();
}

/// RFC 8985 §7.3: a probe is a whole original segment.
// spec: TCP-8985-5
#[test]
fn a_probe_repeats_the_last_segment_unless_its_fate_is_known() {
    let mut board = Scoreboard::default();
    assert_eq!(board.resend_last(LATER, EMSS), None);
    board.push(Instant::ZERO, 150, EMSS, true);
    assert_eq!(board.resend_last(LATER, 49), None, "it would not pass");
    let probe = board.resend_last(LATER, EMSS).unwrap();
    assert_eq!((probe.data, probe.push, probe.first), (at(100)..at(150), true, false));
    assert_eq!(board.pipe(), 150);
    board.mark_all_lost(false);
    assert_eq!(board.resend_last(LATER, EMSS), None);
    board.check();
}

#[test]
fn after_a_timeout_everything_not_sacked_is_sent_again() {
    let mut board = board(6);
    sack(&mut board, &mut Rack::new(), &[at(200)..at(300), at(400)..at(500)]);
    board.mark_all_lost(false);
    assert_eq!(resent(&mut board), vec![(0, 100), (100, 200), (300, 400), (500, 600)]);
    board.mark_all_lost(true);
    assert_eq!(resent(&mut board).len(), 6);
    board.check();
}

#[test]
fn only_the_first_segment_is_sent_beyond_the_window() {
    let mut board = board(3);
    board.mark_all_lost(false);
    let mut resend = || board.resend(Instant::ZERO, EMSS, at(0)).map(|resend| resend.data.start);
    assert_eq!(resend(), Some(at(0)));
    assert_eq!(resend(), None);
    assert!(board.has_unsent_loss());
}

// spec: TCP-PMTU-7
#[test]
fn a_segment_that_no_longer_fits_is_cut() {
    let mut board = Scoreboard::default();
    board.push(Instant::ZERO, 250, 250, true);
    board.push_fin(Instant::ZERO);
    board.mark_oversized_lost(EMSS);
    let first = board.resend(Instant::ZERO, EMSS, FAR).unwrap();
    assert!(!first.push && first.first);
    assert_eq!(resent(&mut board), vec![(100, 200), (200, 250)]);
    board.check();
    board.mark_all_lost(false);
    let all: Vec<_> = std::iter::from_fn(|| board.resend(Instant::ZERO, EMSS, FAR)).collect();
    assert_eq!(all.iter().filter(|resend| resend.push).count(), 1);
    assert!(all[3].fin && all[3].data.is_empty());
}

/// Pieces that were not sent by themselves arrived with the whole; pieces that were sent, and cut
/// once more, did not.
#[test]
fn only_acknowledgments_of_the_probed_size_confirm_it() {
    let mut cut_once = board(1);
    cut_once.path_shrank();
    cut_once.mark_oversized_lost(60);
    cut_once.resend(LATER, 60, FAR).unwrap();
    acknowledge(&mut cut_once, at(60));
    assert!(!cut_once.is_long_delivered());
    acknowledge(&mut cut_once, at(100));
    assert!(cut_once.is_long_delivered(), "the second piece was not sent");

    let mut cut_twice = board(2);
    cut_twice.path_shrank();
    cut_twice.mark_oversized_lost(60);
    for _ in 0..2 {
        cut_twice.resend(LATER, 60, FAR).unwrap();
    }
    cut_twice.mark_oversized_lost(30);
    cut_twice.resend(LATER, 30, FAR).unwrap();
    acknowledge(&mut cut_twice, at(100));
    assert!(!cut_twice.is_long_delivered(), "both pieces were sent");
    acknowledge(&mut cut_twice, at(200));
    assert!(cut_twice.is_long_delivered(), "this one was not cut");
}

#[test]
fn a_sample_comes_from_a_segment_sent_once() {
    let sent_at = Instant::from_nanos;
    let mut board = Scoreboard::default();
    for time in [1, 2, 3, 4] {
        board.push(sent_at(time), EMSS, EMSS, false);
    }
    let acked = acknowledge(&mut board, at(200));
    assert_eq!((acked.sample_from, acked.ambiguous), (Some(sent_at(1)), false));
    sack(&mut board, &mut Rack::new(), &[at(300)..at(400)]);
    board.mark_first_lost();
    board.resend(sent_at(9), EMSS, FAR);
    let acked = acknowledge(&mut board, at(400));
    assert_eq!((acked.bytes, acked.sample_from, acked.ambiguous), (200, None, true));
}

/// A peer may report anything with every acknowledgment: known blocks cost next to nothing, in
/// whatever order and pieces they are reported again.
#[test]
fn known_sack_blocks_are_not_walked_again() {
    const SEGMENTS: u64 = 3000;
    let mut board = board(3000);
    let mut rack = Rack::new();
    let len = u64::from(EMSS);
    let end = SEGMENTS * len;
    // One by one from above, so that every segment is a run of its own; then alternating blocks.
    for index in (2..SEGMENTS).rev() {
        sack(&mut board, &mut rack, &[at(index * len)..at((index + 1) * len)]);
    }
    board.check();
    for index in 2..SEGMENTS {
        let blocks = [at(end - len)..at(end), at(index * len)..at(end - len)];
        assert_eq!(sack(&mut board, &mut rack, &blocks), 0);
    }
    assert!(board.steps < 8 * SEGMENTS, "{} steps", board.steps);
    board.check();
    // Losses and retransmissions in front of the runs leave them whole.
    board.mark_oversized_lost(EMSS / 2);
    while board.resend(LATER, EMSS / 2, FAR).is_some() {}
    acknowledge(&mut board, at(7 * len + 50));
    board.check();
    board.mark_all_lost(true);
    board.check();
}

/// Operations of the scoreboard, byte by byte.
#[derive(Clone, Debug)]
enum Step {
    Push(u32),
    Ack(u64),
    Sack(Vec<(u64, u64)>),
    Detect,
    Timeout(bool),
    Resend,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..350_u32).prop_map(Step::Push),
        2 => (0..300_u64).prop_map(Step::Ack),
        4 => proptest::collection::vec((0..2000_u64, 1..500_u64), 1..4).prop_map(Step::Sack),
        3 => Just(Step::Detect),
        1 => any::<bool>().prop_map(Step::Timeout),
        3 => Just(Step::Resend),
    ]
}

proptest! {
    #[test]
    fn random_sacks_keep_the_sums_right_and_lose_nothing(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut board = Scoreboard::default();
        let mut rack = Rack::new();
        for (step, ns) in steps.into_iter().zip(0..) {
            // No two transmissions have the same time.
            let now = Instant::from_nanos(ns);
            match step {
                Step::Push(len) => board.push(now, len, EMSS, false),
                Step::Ack(ahead) => {
                    let ack = board.una() + ahead.min(board.flight());
                    let acked = acknowledge(&mut board, ack);
                    prop_assert_eq!(board.una(), ack);
                    prop_assert_eq!(acked.bytes, ahead.min(board.flight() + acked.bytes));
                }
                Step::Sack(blocks) => {
                    let una = board.una();
                    let blocks = blocks.into_iter().map(|(from, len)| una + from..una + from + len);
                    let before = board.sacked_bytes;
                    let new = sack(&mut board, &mut rack, &blocks.collect::<Vec<_>>());
                    prop_assert_eq!(board.sacked_bytes, before + new);
                }
                Step::Detect => {
                    board.detect_losses(LATER, &rack, 0);
                    let unknown = board.segments.iter().filter(|s| {
                        rack.is_overtaken(s.sent_at, s.end())
                            && !s.marks.intersects(Marks::SACKED | Marks::LOST)
                    });
                    prop_assert_eq!(unknown.count(), 0);
                    let lost_copies = board.segments.iter().filter(|s| {
                        rack.is_overtaken(s.sent_at, s.end()) && s.marks.contains(Marks::RESENT)
                    });
                    prop_assert_eq!(lost_copies.count(), 0);
                }
                Step::Timeout(forget) => board.mark_all_lost(forget),
                Step::Resend => {
                    let due = board.has_unsent_loss();
                    prop_assert_eq!(board.resend(now, EMSS, FAR).is_some(), due);
                }
            }
            board.check();
        }
        board.mark_all_lost(true);
        let total: u64 = resent(&mut board).iter().map(|(from, to)| to - from).sum();
        prop_assert_eq!(total, board.flight());
    }
}
