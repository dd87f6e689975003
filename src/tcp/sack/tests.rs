use proptest::prelude::*;

use super::*;

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

fn resent(board: &mut Scoreboard) -> Vec<(u64, u64)> {
    let ranges = std::iter::from_fn(|| board.resend(Instant::ZERO, EMSS, FAR));
    ranges.map(|resend| (resend.data.start.0, resend.data.end.0)).collect()
}

#[test]
fn the_pipe_excludes_what_left_the_network() {
    let mut board = board(10);
    assert_eq!((board.flight(), board.pipe()), (1000, 1000));
    board.sack([at(700)..at(1000)]);
    assert_eq!(board.pipe(), 700);
    assert!(board.detect_losses());
    // Segments below 700 are lost: nothing is in the network.
    assert_eq!(board.pipe(), 0);
    board.resend(Instant::ZERO, EMSS, FAR).unwrap();
    assert_eq!(board.pipe(), 100);
    board.acknowledge(at(1000));
    assert_eq!((board.flight(), board.pipe()), (0, 0));
    board.check();
}

#[test]
fn a_segment_sacked_in_part_is_not_sacked() {
    let mut board = board(5);
    assert_eq!(board.sack([at(150)..at(350)]), 100);
    assert_eq!(board.sack([at(150)..at(400)]), 100);
    assert_eq!(board.sack([at(100)..at(400)]), 100);
    board.check();
}

#[test]
fn a_segment_is_lost_once_and_sent_again_once() {
    let mut board = board(10);
    board.sack([at(100)..at(400)]);
    assert!(board.detect_losses());
    assert!(!board.detect_losses());
    assert_eq!(resent(&mut board), vec![(0, 100)]);
    assert_eq!(resent(&mut board), vec![]);
    board.sack([at(500)..at(800), at(100)..at(400)]);
    assert!(board.detect_losses());
    assert_eq!(resent(&mut board), vec![(400, 500)]);
    board.check();
}

#[test]
fn after_a_timeout_everything_not_sacked_is_sent_again() {
    let mut board = board(6);
    board.sack([at(200)..at(300), at(400)..at(500)]);
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

#[test]
fn a_sample_comes_from_a_segment_sent_once() {
    let sent_at = Instant::from_nanos;
    let mut board = Scoreboard::default();
    for time in [1, 2, 3, 4] {
        board.push(sent_at(time), EMSS, EMSS, false);
    }
    let acked = board.acknowledge(at(200));
    assert_eq!((acked.sample_from, acked.ambiguous), (Some(sent_at(1)), false));
    board.sack([at(300)..at(400)]);
    board.mark_first_lost();
    board.resend(sent_at(9), EMSS, FAR);
    let acked = board.acknowledge(at(400));
    assert_eq!((acked.octets, acked.sample_from, acked.ambiguous), (200, None, true));
}

/// What the scoreboard does, octet by octet.
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
    fn the_sums_stay_right_and_everything_is_sent_again_in_the_end(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut board = Scoreboard::default();
        for step in steps {
            match step {
                Step::Push(len) => board.push(Instant::ZERO, len, EMSS, false),
                Step::Ack(ahead) => {
                    let ack = board.una() + ahead.min(board.flight());
                    let acked = board.acknowledge(ack);
                    prop_assert_eq!(board.una(), ack);
                    prop_assert_eq!(acked.octets, ahead.min(board.flight() + acked.octets));
                }
                Step::Sack(blocks) => {
                    let una = board.una();
                    let blocks = blocks.into_iter().map(|(from, len)| una + from..una + from + len);
                    let before = board.sacked_octets;
                    let new = board.sack(blocks);
                    prop_assert_eq!(board.sacked_octets, before + new);
                }
                Step::Detect => {
                    board.detect_losses();
                    if let Some(&third) = board.top_sacked.get(DUP_THRESH - 1) {
                        let unknown = board.segments.iter().filter(|s| {
                            s.start < third && !s.marks.intersects(Marks::SACKED | Marks::LOST)
                        });
                        prop_assert_eq!(unknown.count(), 0);
                    }
                }
                Step::Timeout(forget) => board.mark_all_lost(forget),
                Step::Resend => {
                    let due = board.has_unsent_loss();
                    prop_assert_eq!(board.resend(Instant::ZERO, EMSS, FAR).is_some(), due);
                }
            }
            board.check();
        }
        board.mark_all_lost(true);
        let total: u64 = resent(&mut board).iter().map(|(from, to)| to - from).sum();
        prop_assert_eq!(total, board.flight());
    }
}
