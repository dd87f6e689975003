use proptest::prelude::*;

use super::*;

const IRS: SeqNum = SeqNum(0xffff_ff80);

fn range(start: u64, end: u64) -> Range<StreamOffset> {
    StreamOffset(start)..StreamOffset(end)
}

fn seq(offset: u32) -> SeqNum {
    IRS.plus(1).plus(offset)
}

#[test]
fn a_passive_receiver_follows_a_capture_across_the_wrap() {
    let mut receiver = ReceiveHalf::passive(IRS);
    let first = receiver.handle_data(seq(0), 100).unwrap();
    assert_eq!((first.skip, first.range.clone()), (0, range(0, 100)));
    receiver.commit(first.range).unwrap();
    // A segment ahead, then a retransmission that overlaps both.
    let ahead = receiver.handle_data(seq(150), 50).unwrap();
    receiver.commit(ahead.range).unwrap();
    let overlap = receiver.handle_data(seq(90), 100).unwrap();
    assert_eq!((overlap.skip, overlap.range.clone()), (10, range(100, 190)));
    assert_eq!(receiver.next_missing(overlap.range), Some(range(100, 150)));
    receiver.commit(range(100, 150)).unwrap();
    assert_eq!(receiver.rcv_nxt(), StreamOffset(200));
    assert_eq!(receiver.handle_data(seq(0), 200), None);
    assert_eq!(receiver.handle_data(seq(200), 0), None);
}

#[test]
fn a_passive_receiver_goes_on_after_a_gap_of_more_than_two_gigabytes() {
    let mut receiver = ReceiveHalf::passive(IRS);
    let mut at = 1000_u64;
    for _ in 0..5 {
        let number = receiver.space().seq_at(StreamOffset(at));
        let data = receiver.handle_data(number, 1000).unwrap();
        assert_eq!(data.range, range(at, at + 1000));
        receiver.commit(data.range).unwrap();
        at += 1 << 30;
    }
    assert_eq!(receiver.rcv_nxt(), StreamOffset(0));
    // The capture lacks the beginning: committing the gap continues behind it.
    receiver.commit(range(0, 1000)).unwrap();
    assert_eq!(receiver.rcv_nxt(), StreamOffset(2000));
}

/// RFC 9293 §3.4, the four cases of the acceptability test.
#[test]
fn the_acceptability_test_is_that_of_the_rfc() {
    let mut receiver = ReceiveHalf::new(IRS, 1000, 100);
    let inside =
        |acceptability: &Acceptability| matches!(acceptability, Acceptability::Inside { .. });
    // Length 0, window open.
    assert!(inside(&receiver.acceptability(seq(0), 0, 0)));
    assert!(inside(&receiver.acceptability(seq(999), 0, 0)));
    assert_eq!(receiver.acceptability(seq(1001), 0, 0), Acceptability::Beyond);
    assert_eq!(receiver.acceptability(IRS, 0, 0), Acceptability::Old);
    // Length above 0, window open: the part inside counts.
    let acceptability = receiver.acceptability(seq(950), 100, 0);
    let payload = ArrivedPayload { skip: 0, range: range(950, 1000) };
    assert_eq!(
        acceptability,
        Acceptability::Inside { payload: Some(payload), starts_at_next: false }
    );
    assert_eq!(receiver.acceptability(IRS.plus(u32::MAX), 2, 0), Acceptability::Old);
    let acceptability = receiver.acceptability(IRS.plus(u32::MAX), 5, 0);
    let payload = ArrivedPayload { skip: 2, range: range(0, 3) };
    assert_eq!(
        acceptability,
        Acceptability::Inside { payload: Some(payload), starts_at_next: true }
    );
    // Window closed.
    receiver.set_window(0);
    receiver.commit(range(0, 1000)).unwrap();
    assert!(inside(&receiver.acceptability(seq(1000), 0, 0)));
    let acceptability = receiver.acceptability(seq(1000), 1, 0);
    assert_eq!(acceptability, Acceptability::Inside { payload: None, starts_at_next: true });
    assert_eq!(receiver.acceptability(seq(1001), 1, 0), Acceptability::Beyond);
}

#[test]
fn no_window_beyond_a_fin_and_the_first_fin_counts() {
    let mut receiver = ReceiveHalf::new(IRS, 1000, 100);
    receiver.note_fin(seq(50));
    receiver.note_fin(seq(80));
    let Acceptability::Inside { payload, .. } = receiver.acceptability(seq(0), 90, 1) else {
        panic!()
    };
    assert_eq!(payload.unwrap().range, range(0, 50));
    assert!(!receiver.take_fin());
    receiver.commit(range(0, 50)).unwrap();
    assert!(receiver.take_fin());
    assert!(!receiver.take_fin());
    assert_eq!(receiver.ack_number(), seq(51));
    assert_eq!(receiver.acceptability(seq(40), 10, 1), Acceptability::Old);
}

#[test]
fn fin_below_received_data_is_ignored() {
    let mut receiver = ReceiveHalf::new(IRS, 1000, 100);
    receiver.commit(range(100, 200)).unwrap();
    receiver.note_fin(seq(150));
    receiver.note_fin(seq(2000));
    receiver.commit(range(0, 100)).unwrap();
    assert!(!receiver.take_fin());
}

#[test]
fn window_shift_fits_the_window_into_its_field() {
    assert_eq!(shift_for(0), 0);
    assert_eq!(shift_for(65_535), 0);
    assert_eq!(shift_for(65_536), 1);
    assert_eq!(shift_for(4 << 20), 7);
    assert_eq!(shift_for(u32::MAX), 14);
    let mut receiver = ReceiveHalf::new(IRS, 4 << 20, 1460);
    receiver.set_shift(7);
    assert_eq!(receiver.window_field(true), 65_535);
    assert_eq!(receiver.window_field(false), 32_768);
    assert!(!receiver.update_is_due());
}

proptest! {
    /// TCP-7323-2: an advertised window stays acceptable, whatever rounding the shift causes.
    #[test]
    fn the_window_offered_before_is_always_honoured(
        lens in proptest::collection::vec(1_u64..5000, 1..50),
        windows in proptest::collection::vec(0_u32..100_000, 50),
        shift in 0_u8..8,
    ) {
        let mut receiver = ReceiveHalf::new(IRS, 100_000, 1460);
        receiver.set_shift(shift);
        let mut offered = 0_u64;
        for (len, window) in lens.into_iter().zip(windows) {
            let field = u64::from(receiver.window_field(false)) << shift;
            let edge = receiver.rcv_nxt().0 + field;
            prop_assert!(edge <= receiver.edge.0);
            offered = offered.max(edge);
            let next = receiver.rcv_nxt().0;
            let len = len.min(offered - next);
            if len > 0 {
                let number = receiver.ack_number();
                let acceptability = receiver.acceptability(number, usize::try_from(len).unwrap(), 0);
                let payload = ArrivedPayload { skip: 0, range: range(next, next + len) };
                let expected =
                    Acceptability::Inside { payload: Some(payload.clone()), starts_at_next: true };
                prop_assert_eq!(acceptability, expected);
                receiver.commit(payload.range).unwrap();
            }
            receiver.set_window(window);
        }
    }
}

/// RFC 9293 §3.8.6.2.2: the window opens in steps of min(MSS, half the buffer).
#[test]
fn a_window_of_two_steps_opens_by_half() {
    let mut receiver = ReceiveHalf::new(IRS, 1000, 1000);
    assert_eq!(receiver.window_field(false), 1000);
    receiver.commit(range(0, 499)).unwrap();
    assert_eq!(receiver.window_field(false), 501);
    receiver.commit(range(499, 500)).unwrap();
    assert_eq!(receiver.window_field(false), 1000);
}

/// A FIN that contradicts what was received, or lies beyond the window, is ignored.
#[test]
fn fin_below_received_data_or_beyond_the_window_is_ignored() {
    let mut receiver = ReceiveHalf::new(IRS, 1000, 100);
    receiver.commit(range(100, 200)).unwrap();
    for place in [199, 1001] {
        receiver.note_fin(seq(place));
        let Acceptability::Inside { payload, .. } = receiver.acceptability(seq(0), 1000, 0) else {
            panic!("the window is open");
        };
        assert_eq!(payload.unwrap().range, range(0, 1000), "{place}");
    }
    receiver.commit(range(0, 100)).unwrap();
    assert!(!receiver.take_fin());
    receiver.note_fin(seq(200));
    assert!(receiver.take_fin());
    assert!(!receiver.take_fin(), "once");
}

/// The layer above may commit more than was advertised: the window continues from there.
#[test]
fn committing_beyond_the_window_moves_it() {
    let mut receiver = ReceiveHalf::new(IRS, 1000, 100);
    receiver.commit(range(0, 2000)).unwrap();
    assert!(matches!(receiver.acceptability(seq(2000), 1, 0), Acceptability::Inside { .. }));
    assert_eq!(receiver.window_field(false), 1000);
    receiver.set_window(0);
    receiver.commit(range(2000, 5000)).unwrap();
    assert_eq!(receiver.window_field(false), 0);
}

/// The stream may keep more than the segment that is being taken: what it had copied before.
#[test]
fn fin_below_kept_data_is_ignored() {
    for (kept, is_taken) in [(10, true), (11, false)] {
        let mut receiver = ReceiveHalf::new(IRS, 1000, 100);
        receiver.note_fin(seq(10));
        receiver.commit(range(0, kept)).unwrap();
        assert_eq!(receiver.take_fin(), is_taken);
        // Another one behind it counts.
        receiver.note_fin(seq(11));
        receiver.commit(range(10, 11)).unwrap();
        assert_eq!(receiver.take_fin(), !is_taken);
    }
}
