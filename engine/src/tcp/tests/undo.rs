//! Recoveries that prove to be spurious (RFC 3522, RFC 3708, RFC 4015, RFC 5682).

use super::script::{Script, config};
use crate::tcp::{Config, CongestionKind, Header, Timestamps};
use crate::time::Duration;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

fn with_timestamps() -> Config {
    Config { timestamps: true, ..config() }
}

/// `count` segments in flight, 10 µs apart, and a round trip of 100 µs later.
fn in_flight(config: &Config, count: u32) -> Script {
    let mut script = Script::established(config);
    for _ in 0..count {
        script.send(1000);
        script.sleep(10 * US);
    }
    script.sleep(100 * US);
    script
}

/// Receives an acknowledgment that echoes our clock as it was `ago`.
fn ack_with_echo(script: &mut Script, acked: u32, blocks: &[(u32, u32)], ago: Duration) {
    let at = script.now.as_nanos() - u64::try_from(ago.as_nanos()).unwrap();
    let echo = u32::try_from(at / 1_000_000).unwrap();
    let mut header = script.header(0, acked, crate::tcp::Flags::ACK);
    header.options.timestamps = Some(Timestamps { value: 100, echo });
    header.options.sack =
        blocks.iter().map(|&(l, r)| (super::script::ack(l), super::script::ack(r))).collect();
    script.receive_header(&header, 0);
}

/// RFC 3522: the timestamp is that of the original.
#[test]
fn a_timeout_is_undone_when_the_original_is_acknowledged() {
    let mut script = in_flight(&with_timestamps(), 6);
    let (cwnd, ssthresh) = (script.connection.cwnd(), script.connection.ssthresh());
    script.wait_for_rto();
    assert_eq!(script.resent(), vec![(0, 1000)]);
    assert!(script.connection.cwnd() < cwnd);
    script.sleep(5 * MS);
    ack_with_echo(&mut script, 1000, &[], 50 * MS);
    assert_eq!(script.connection.counters().recoveries_undone, 1);
    assert_eq!(script.connection.ssthresh(), ssthresh);
    assert!(script.connection.cwnd() >= cwnd);
    assert_eq!(script.resent(), vec![], "nothing else goes again");
    script.connection.snd.board.check();
}

#[test]
fn timeout_is_kept_if_the_retransmission_is_acknowledged() {
    let mut script = in_flight(&with_timestamps(), 6);
    script.wait_for_rto();
    script.resent();
    script.sleep(5 * MS);
    ack_with_echo(&mut script, 1000, &[], 5 * MS);
    assert_eq!(script.connection.counters().recoveries_undone, 0);
    assert_eq!(script.resent(), vec![(1000, 1000), (2000, 1000)]);
}

/// RFC 3522 for fast retransmit: the segment was late, not lost. RACK waits longer for the next
/// such segment.
#[test]
fn reordering_taken_for_loss_is_undone_and_learned_from() {
    let mut script = in_flight(&with_timestamps(), 8);
    let cwnd = script.connection.cwnd();
    ack_with_echo(&mut script, 0, &[(1000, 4000)], MS);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.sleep(3 * MS);
    ack_with_echo(&mut script, 4000, &[], 10 * MS);
    assert_eq!(script.connection.counters().recoveries_undone, 1);
    assert!(script.connection.cwnd() >= cwnd);
    assert_eq!(script.resent(), vec![]);
    // Now three overtaken segments are given a quarter of a round trip.
    script.send(1000);
    for _ in 0..3 {
        script.sleep(5 * US);
        script.send(1000);
    }
    script.sleep(100 * US);
    ack_with_echo(&mut script, 8000, &[(9000, 12_000)], Duration::ZERO);
    assert_eq!(script.resent(), vec![]);
    ack_with_echo(&mut script, 12_000, &[], Duration::ZERO);
    assert_eq!(script.connection.counters().fast_retransmits, 1);
}

/// An acknowledgment that another has overtaken reports what had been received when it was sent.
/// Its blocks are below SND.UNA now, and are no duplicates (RFC 2883 §4 compares with the number
/// beside them): RACK's window stays a quarter of a round trip.
#[test]
fn blocks_of_an_overtaken_acknowledgment_are_no_duplicates() {
    let mut script = in_flight(&config(), 4);
    script.receive_sack(0, &[(1000, 2000)]);
    script.receive_sack(4000, &[]);
    script.receive_sack(0, &[(1000, 2000)]);
    script.receive_sack(0, &[(1000, 3000)]);
    script.send(1000);
    for _ in 0..3 {
        script.sleep(5 * US);
        script.send(1000);
    }
    script.sleep(100 * US);
    script.receive_sack(4000, &[(5000, 8000)]);
    // The first was sent 115 us ago, the last of the others 100: overdue after 125.
    assert_eq!(script.wait_for_timer(), 10 * US);
    assert_eq!(script.resent(), vec![(4000, 1000)]);
}

/// RFC 3708 §2: everything that was retransmitted is reported as a duplicate.
#[test]
fn a_recovery_is_undone_when_all_copies_come_back_as_duplicates() {
    let mut script = in_flight(&config(), 10);
    let cwnd = script.connection.cwnd();
    script.receive_sack(0, &[(6000, 10_000), (4000, 5000), (1000, 3000)]);
    assert_eq!(script.resent(), vec![(0, 1000), (3000, 1000), (5000, 1000)]);
    script.sleep(50 * US);
    script.receive_sack(10_000, &[]);
    script.sleep(50 * US);
    script.receive_sack(10_000, &[(0, 1000)]);
    script.receive_sack(10_000, &[(3000, 4000)]);
    assert_eq!(script.connection.counters().recoveries_undone, 0);
    script.receive_sack(10_000, &[(5000, 6000)]);
    assert_eq!(script.connection.counters().recoveries_undone, 1);
    assert!(script.connection.cwnd() >= cwnd);
}

#[test]
fn duplicate_from_before_the_recovery_undoes_nothing() {
    let mut script = in_flight(&config(), 10);
    script.receive_sack(2000, &[(3000, 6000)]);
    assert_eq!(script.resent(), vec![(2000, 1000)]);
    script.receive_sack(6000, &[(0, 1000)]);
    script.receive_sack(6000, &[(1000, 2000)]);
    assert_eq!(script.connection.counters().recoveries_undone, 0);
}

/// A network that duplicates does not prove that nothing was lost.
#[test]
fn duplicate_of_a_segment_sent_once_undoes_nothing() {
    let mut script = in_flight(&config(), 10);
    script.receive_sack(0, &[(1000, 4000)]);
    script.receive_sack(0, &[(2000, 3000), (1000, 4000)]);
    assert_eq!(script.connection.counters().recoveries_undone, 0, "before anything goes again");
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.receive_sack(0, &[(2000, 3000), (1000, 4000)]);
    assert_eq!(script.connection.counters().recoveries_undone, 0);
    script.receive_sack(4000, &[(0, 1000)]);
    assert_eq!(script.connection.counters().recoveries_undone, 1);
}

/// A timeout on a connection with SACK and without timestamps, with more to send than cwnd permits:
/// ten segments are in flight, and the first was retransmitted.
fn timed_out() -> Script {
    let mut script = in_flight(&config(), 10);
    script.wait_for_rto();
    assert_eq!(script.resent(), vec![(0, 1000)]);
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
    script.sleep(100 * US);
    script
}

/// Step 2b of RFC 5682 §3.1: two new segments, and nothing old.
fn sends_two_new_segments(script: &mut Script) {
    assert_eq!(script.resent(), vec![]);
    for _ in 0..2 {
        script.send(1000);
    }
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
    script.sleep(100 * US);
}

/// RFC 5682 §3.1 step 3b: segments sent once, before the timeout, are acknowledged, in order or
/// not.
#[test]
fn timeout_is_undone_when_other_old_segments_are_acknowledged() {
    let acks: [(u32, &[(u32, u32)]); 3] =
        [(2000, &[]), (1000, &[(2000, 3000)]), (2000, &[(9000, 10_000)])];
    for (acked, blocks) in acks {
        let mut script = timed_out();
        let ssthresh = script.connection.ssthresh();
        script.receive_sack(1000, &[]);
        sends_two_new_segments(&mut script);
        assert_eq!(script.connection.counters().recoveries_undone, 0);
        script.receive_sack(acked, blocks);
        assert_eq!(script.connection.counters().recoveries_undone, 1, "{acked} {blocks:?}");
        let cwnd = script.connection.cwnd();
        assert!(cwnd >= 10_000, "{acked} {blocks:?}: {cwnd}");
        assert!(script.connection.ssthresh() > ssthresh);
        assert_eq!(script.resent(), vec![]);
        script.connection.snd.board.check();
    }
}

/// Step 3a: a segment beyond what was in flight at the timeout has arrived, and segments before it
/// have not.
#[test]
fn timeout_is_kept_if_new_segments_overtake_old_ones() {
    let acks: [(u32, &[(u32, u32)]); 4] = [
        (1000, &[(10_000, 11_000)]),
        (2000, &[(10_000, 11_000)]),
        (11_000, &[]),
        // No progress: a duplicate.
        (1000, &[]),
    ];
    for (acked, blocks) in acks {
        let mut script = timed_out();
        script.receive_sack(1000, &[]);
        sends_two_new_segments(&mut script);
        script.receive_sack(acked, blocks);
        assert_eq!(script.connection.counters().recoveries_undone, 0, "{acked} {blocks:?}");
        assert!(script.connection.cwnd() <= 3000);
        // Slow start continues with the old segments, when something has left the network.
        let goes_on = acked < 10_000 && !blocks.is_empty();
        let next = goes_on.then_some((u64::from(acked), 1000));
        assert_eq!(script.resent().first().copied(), next);
        // The decision is final.
        script.receive_sack(acked.max(3000), &[]);
        assert_eq!(script.connection.counters().recoveries_undone, 0);
    }
}

/// Step 2: duplicates that arrive before the first acknowledgment decide nothing; the SACK option
/// shows what they answer.
#[test]
fn duplicates_with_sack_before_the_first_acknowledgment_decide_nothing() {
    let mut script = timed_out();
    script.receive_sack(0, &[(2000, 3000)]);
    script.receive_sack(0, &[(2000, 3000)]);
    script.receive_sack(1000, &[(2000, 3000)]);
    sends_two_new_segments(&mut script);
    script.receive_sack(3000, &[]);
    assert_eq!(script.connection.counters().recoveries_undone, 1);
}

/// Step 2a: all that was in flight is acknowledged, which one retransmission can have caused. Step
/// 2b without new data, or without room for it: the usual recovery. A second timeout for the same
/// data decides nothing.
#[test]
fn timeout_is_kept_without_evidence() {
    let mut all = timed_out();
    all.receive_sack(10_000, &[]);
    let mut no_room = timed_out();
    let mut header = no_room.header(0, 1000, crate::tcp::Flags::ACK);
    header.window = 9500;
    no_room.receive_header(&header, 0);
    assert_eq!(no_room.resent().first(), Some(&(1000, 1000)));
    let mut no_data = in_flight(&config(), 10);
    no_data.wait_for_rto();
    no_data.resent();
    no_data.receive_sack(1000, &[]);
    assert_eq!(no_data.resent().first(), Some(&(1000, 1000)));
    let mut twice = timed_out();
    twice.wait_for_rto();
    twice.resent();
    twice.connection.send_budget(twice.now);
    twice.receive_sack(1000, &[]);
    assert_eq!(twice.resent().first(), Some(&(1000, 1000)));
    for mut script in [all, no_room, no_data, twice] {
        script.receive_sack(2000, &[]);
        assert_eq!(script.connection.counters().recoveries_undone, 0);
    }
}

#[test]
fn timeout_is_kept_if_only_the_retransmission_is_acknowledged() {
    for acked in [1000, 6000] {
        let mut script = in_flight(&config(), 6);
        script.wait_for_rto();
        script.resent();
        script.sleep(100 * US);
        script.receive_sack(acked, &[]);
        assert_eq!(script.connection.counters().recoveries_undone, 0, "{acked}");
    }
}

/// A recovery that begins while retransmissions of the last are in flight is not undone by them.
#[test]
fn an_acknowledgment_of_an_earlier_copy_undoes_nothing() {
    let mut script = in_flight(&with_timestamps(), 4);
    // Segment 0 is lost; the recovery lasts until 4000. New data is sent meanwhile; its segment 4
    // is found lost in the same recovery.
    ack_with_echo(&mut script, 0, &[(1000, 4000)], MS);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    for _ in 0..5 {
        script.connection.record_sent(script.now, 1000, 1000, false);
    }
    script.sleep(200 * US);
    ack_with_echo(&mut script, 0, &[(5000, 6000), (1000, 4000)], Duration::ZERO);
    script.sleep(2 * MS);
    script.resent();
    ack_with_echo(&mut script, 4000, &[(5000, 6000)], MS);
    script.sleep(3 * MS);
    script.resent();
    // The recovery is over; segment 6 is found lost.
    ack_with_echo(&mut script, 4000, &[(7000, 9000), (5000, 6000)], MS);
    assert_eq!(script.resent(), vec![(6000, 1000)]);
    script.sleep(2 * MS);
    ack_with_echo(&mut script, 6000, &[(7000, 9000)], 5 * MS);
    assert_eq!(script.connection.counters().recoveries_undone, 0);
}

/// The peer's view: a burst of duplicates is one report (RFC 2883).
#[test]
fn duplicates_that_continue_one_another_are_one_block() {
    let mut script = Script::established(&config());
    script.receive(0, 0, crate::tcp::Flags::ACK, 3000);
    while script.ack().is_some() {}
    let old = |script: &mut Script, at| {
        let header: Header = script.header(at, 0, crate::tcp::Flags::ACK);
        script.receive_header(&header, 1000);
    };
    old(&mut script, 0);
    old(&mut script, 1000);
    assert_eq!(script.acked(), Some((3000, vec![(0, 2000)])));
}

/// RFC 4015 §3.2: the undo restores the window that the recovery reduced. A window that is larger
/// by then is kept.
#[test]
fn late_undo_keeps_a_larger_window() {
    let congestion = CongestionKind::NewReno;
    let small = Config { congestion, initial_window_segments: Some(4), ..config() };
    let mut script = in_flight(&small, 4);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    let mut acked = 4000;
    script.receive_sack(acked, &[]);
    for _ in 0..5 {
        while script.connection.send_budget(script.now).bytes > 0 {
            script.send(1000);
            acked += 1000;
        }
        script.sleep(100 * US);
        script.receive_sack(acked, &[]);
    }
    let cwnd = script.connection.cwnd();
    assert!(cwnd > 4000);
    script.receive_sack(acked, &[(0, 1000)]);
    assert_eq!(script.connection.counters().recoveries_undone, 1);
    assert_eq!(script.connection.cwnd(), cwnd);
}

/// A report of bytes a whole window back is no duplicate.
#[test]
fn a_duplicate_from_before_the_window_counts_for_nothing() {
    let mut script = in_flight(&config(), 1);
    let window_ns =
        |script: &Script| script.connection.snd.rack.window_ns(false, Some(400), Some(10_000));
    let mut acked = 1000;
    script.receive_sack(acked, &[]);
    for _ in 0..60 {
        script.send(1000);
        acked += 1000;
        script.sleep(100 * US);
        script.receive_sack(acked, &[]);
    }
    script.send(1000);
    script.receive_sack(acked, &[(0, 500)]);
    assert_eq!(window_ns(&script), 100);
    script.receive_sack(acked, &[(1000, 1500)]);
    assert_eq!(window_ns(&script), 200, "just within the window");
}

/// A path that shrank is repaired, whatever the outcome of an earlier recovery.
#[test]
fn a_smaller_path_is_not_undone() {
    let mut script = in_flight(&config(), 10);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.sleep(100 * US);
    script.receive_sack(10_000, &[]);
    script.send(1000);
    script.connection.set_path_mtu(script.now, 820);
    assert_eq!(script.resent(), vec![(10_000, 800), (10_800, 200)]);
    script.sleep(100 * US);
    for duplicate in [(0, 1000), (10_000, 10_800), (10_800, 11_000)] {
        script.receive_sack(11_000, &[duplicate]);
    }
    assert_eq!(script.connection.counters().recoveries_undone, 0);
}

/// RFC 3522 §3.2: "the first acceptable ACK that arrives after the retransmit was sent". Duplicates
/// in flight at that time echo older timestamps, as they must.
#[test]
fn duplicates_still_in_flight_undo_nothing() {
    let mut script = in_flight(&with_timestamps(), 8);
    ack_with_echo(&mut script, 0, &[(1000, 4000)], MS);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.sleep(3 * MS);
    ack_with_echo(&mut script, 0, &[(1000, 8000)], 10 * MS);
    assert_eq!(script.connection.counters().recoveries_undone, 0);
    ack_with_echo(&mut script, 8000, &[], MS);
    assert_eq!(script.connection.counters().recoveries_undone, 0, "the copy");
}

/// The device was full, or other connections were sending, when the timer expired: the
/// acknowledgment arrived before any retransmission. It is for the original, with timestamps or
/// without.
#[test]
fn timeout_is_undone_if_nothing_was_retransmitted() {
    for config in [config(), with_timestamps()] {
        // The same after a second timeout.
        for timeouts in 1..=2 {
            let mut script = in_flight(&config, 6);
            let (cwnd, ssthresh) = (script.connection.cwnd(), script.connection.ssthresh());
            for _ in 0..timeouts {
                script.wait_for_rto();
            }
            assert!(script.connection.cwnd() < cwnd);
            ack_with_echo(&mut script, 2000, &[], Duration::ZERO);
            assert_eq!(script.connection.counters().recoveries_undone, 1);
            assert_eq!(script.connection.ssthresh(), ssthresh);
            assert!(script.connection.cwnd() >= cwnd);
            assert_eq!(script.resent(), vec![], "nothing is missing");
            script.connection.snd.board.check();
        }
    }
}

/// The last segment was retransmitted as a probe before the timeout: either may be acknowledged.
#[test]
fn timeout_is_kept_after_a_loss_probe() {
    let mut script = in_flight(&config(), 1);
    script.wait_for_rto();
    assert_eq!(script.connection.counters().loss_probes, 1);
    script.receive_sack(1000, &[]);
    assert_eq!(script.connection.counters().recoveries_undone, 0);
}
