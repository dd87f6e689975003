use super::script::{Script, ack, config};
use crate::tcp::send::recovery::Recovery;
use crate::tcp::{Config, CongestionKind, Flags, Header, Tcb, TcpEvent};
use crate::time::Duration;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

/// A script with `count` segments of 1000 bytes in flight, sent 10 µs apart.
fn in_flight(config: &Config, count: u32) -> Script {
    let mut script = Script::established(config);
    for _ in 0..count {
        script.send(1000);
        script.sleep(Duration::from_micros(10));
    }
    script
}

fn without_sack() -> Config {
    Config { sack: false, ..config() }
}

/// RFC 6675 §5: recovery begins when the first segment is lost, and repairs every hole.
// spec: TCP-6675-1
#[test]
fn three_sacked_segments_above_make_a_hole_lost() {
    let mut script = in_flight(&config(), 8);
    script.sleep(100 * US);
    script.receive_sack(0, &[(1000, 2000)]);
    script.sleep(5 * US);
    script.receive_sack(0, &[(1000, 3000)]);
    assert_eq!(script.resent(), vec![]);
    script.sleep(3 * US);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    assert_eq!(script.connection.counters().fast_retransmits, 1);
    // More SACKs, no new loss: nothing is retransmitted.
    script.receive_sack(0, &[(1000, 8000)]);
    assert_eq!(script.resent(), vec![]);
    script.receive(0, 8000, Flags::ACK, 0);
    assert_eq!(script.resent(), vec![]);
    assert_eq!(script.connection.counters().rtos, 0);
}

#[test]
fn several_holes_are_repaired_in_one_recovery_in_order() {
    let mut script = in_flight(&config(), 10);
    // Segments 0, 3 and 5 are lost.
    script.receive_sack(0, &[(6000, 10_000), (4000, 5000), (1000, 3000)]);
    assert_eq!(script.resent(), vec![(0, 1000), (3000, 1000), (5000, 1000)]);
    assert_eq!(script.connection.counters().fast_retransmits, 1);
}

#[test]
fn the_window_is_reduced_once_per_recovery() {
    let mut script = in_flight(&config(), 10);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.connection.ssthresh(), 7000);
    script.resent();
    script.receive_sack(0, &[(5000, 10_000), (1000, 4000)]);
    assert_eq!(script.connection.cwnd(), 7000);
    assert_eq!(script.resent(), vec![(4000, 1000)]);
    assert_eq!(script.connection.counters().fast_retransmits, 1);
}

/// RFC 5044 appendix A.1: lost segments are retransmitted with their first boundaries.
// spec: TCP-A.1-7, TCP-6675-4
#[test]
fn retransmissions_repeat_the_original_boundaries() {
    let mut script = Script::established(&config());
    for len in [10, 990, 7, 1000, 300, 300, 300] {
        script.send(len);
    }
    script.sleep(100 * US);
    script.receive_sack(0, &[(2007, 2907)]);
    assert_eq!(script.resent(), vec![(0, 10), (10, 990)]);
    script.sleep(100 * US);
    script.receive_sack(1000, &[(2007, 2907)]);
    assert_eq!(script.resent(), vec![(1000, 7), (1007, 1000)]);
}

#[test]
fn a_super_frame_is_tracked_as_its_segments() {
    let mut script = Script::established(&config());
    script.connection.record_sent(script.now, 4500, 1000, true);
    assert_eq!(script.connection.counters().segments_sent, 5);
    let mut tail = script.connection.clone();
    script.receive_sack(1000, &[(2000, 4500)]);
    let again = script.transmit().unwrap();
    assert_eq!((again.data.start.0, again.data.end.0), (1000, 2000));
    assert!(!again.header.flags.contains(Flags::PSH), "it does not end the burst");
    assert_eq!(script.resent(), vec![]);
    let ack = script.header(0, 4000, Flags::ACK);
    tail.handle_segment(script.now, &ack, 0, 1);
    while tail.counters().retransmissions == 0 {
        let now = tail.poll_timeout().unwrap();
        tail.handle_timeout(now);
        if let Some(again) = tail.poll_transmit(now) {
            assert_eq!((again.data.start.0, again.data.end.0), (4000, 4500));
            assert!(again.header.flags.contains(Flags::PSH), "the last segment does");
        }
    }
}

#[test]
fn sacked_segments_are_not_retransmitted_after_a_timeout() {
    let mut script = in_flight(&config(), 4);
    script.receive_sack(0, &[(1000, 2000)]);
    script.wait_for_rto();
    assert_eq!(script.connection.counters().rtos, 1);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    // RFC 5681 §3.1: one segment; the rest as cwnd grows.
    script.receive_sack(2000, &[]);
    assert_eq!(script.resent(), vec![(2000, 1000), (3000, 1000)]);
}

/// RFC 2018 §8: the peer acknowledges up to a SACKed segment, so it no longer has it.
// spec: TCP-2018-4
#[test]
fn reneged_sack_blocks_are_discarded_at_the_timeout() {
    let mut script = in_flight(&config(), 4);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.receive_sack(1000, &[]);
    assert_eq!(script.resent(), vec![]);
    script.wait_for_rto();
    assert_eq!(script.connection.counters().reneges, 1);
    assert_eq!(script.resent(), vec![(1000, 1000)]);
}

#[test]
fn sack_blocks_that_make_no_sense_are_ignored() {
    let mut script = in_flight(&config(), 4);
    script.receive_sack(0, &[(5000, 1000), (3000, 9000), (0x8000_0000, 3000)]);
    script.receive_sack(1000, &[(0, 1000), (500, 900)]);
    script.connection.snd.board.check();
    assert_eq!(script.resent(), vec![]);
}

#[test]
fn a_partly_acknowledged_segment_is_sent_again_from_there() {
    let mut script = in_flight(&config(), 2);
    script.receive(0, 400, Flags::ACK, 0);
    script.wait_for_rto();
    // One byte of cwnd is free after the first, so the next starts too.
    assert_eq!(script.resent(), vec![(400, 600), (1000, 1000)]);
}

/// RFC 5681 §3.2 and RFC 6582 §3.2.
// spec: TCP-5681-4, TCP-6582-1
#[test]
fn without_sack_the_third_duplicate_ack_retransmits_and_partial_acks_continue() {
    let mut script = in_flight(&without_sack(), 6);
    for _ in 0..2 {
        script.receive(0, 0, Flags::ACK, 0);
        assert_eq!(script.resent(), vec![]);
    }
    script.receive(0, 0, Flags::ACK, 0);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    // Segment 3 was lost, too: the acknowledgment of the first retransmission is partial.
    script.receive(0, 3000, Flags::ACK, 0);
    assert_eq!(script.resent(), vec![(3000, 1000)]);
    script.receive(0, 6000, Flags::ACK, 0);
    assert_eq!(script.resent(), vec![]);
    assert_eq!(script.connection.counters().fast_retransmits, 1);
    assert_eq!(script.connection.counters().rtos, 0);
}

/// RFC 5681 §2: "(b) the incoming acknowledgment carries no data, (c) the SYN and FIN bits are both
/// off".
#[test]
fn data_and_a_fin_are_no_duplicate_acknowledgments() {
    for (flags, len) in [(Flags::ACK | Flags::FIN, 0), (Flags::ACK, 10)] {
        let mut script = in_flight(&without_sack(), 6);
        for _ in 0..2 {
            script.receive(0, 0, Flags::ACK, 0);
        }
        script.receive(0, 0, flags, len);
        assert_eq!(script.connection.counters().fast_retransmits, 0, "{flags:?}");
    }
}

/// RFC 5681 §2: "(e) the advertised window in the incoming acknowledgment equals the advertised
/// window in the last incoming acknowledgment".
#[test]
fn window_updates_are_no_duplicate_acknowledgments() {
    let mut script = in_flight(&without_sack(), 6);
    for window in [60_001, 60_002, 60_003, 60_004] {
        let header = Header { window, ..script.header(0, 0, Flags::ACK) };
        script.receive_header(&header, 0);
    }
    assert_eq!(script.connection.counters().fast_retransmits, 0);
}

/// RFC 3042: each of the first two duplicate ACKs permits a new segment.
// spec: TCP-5681-4
#[test]
fn limited_transmit_sends_new_data_on_the_first_duplicate_acks() {
    let mut script = in_flight(&without_sack(), 10);
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
    script.receive(0, 0, Flags::ACK, 0);
    assert_eq!(script.connection.send_budget(script.now).bytes, 1000);
    script.send(1000);
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
}

/// RFC 6582 §4: duplicate ACKs for segments retransmitted after a timeout begin no recovery.
#[test]
fn duplicate_acks_after_a_timeout_begin_no_recovery() {
    let mut script = in_flight(&without_sack(), 4);
    script.wait_for_rto();
    script.resent();
    for _ in 0..5 {
        script.receive(0, 0, Flags::ACK, 0);
    }
    assert_eq!(script.connection.counters().fast_retransmits, 0);
    assert_eq!(script.resent(), vec![]);
}

// spec: TCP-6298-4
#[test]
fn the_timeout_follows_the_round_trip_and_doubles() {
    let mut script = Script::established(&config());
    script.send(1000);
    script.sleep(4 * MS);
    script.receive(0, 1000, Flags::ACK, 0);
    // The handshake took 0.1 ms, the data 4 ms: SRTT 0.5875, RTTVAR 1.0125 ms. The margin is at
    // least 10 ms.
    let srtt = script.connection.srtt().unwrap();
    assert_eq!(srtt.as_nanos() / 1000, 587);
    let rto = 10 * MS + srtt;
    script.send(1000);
    let probe_after = script.wait_for_timer();
    assert_eq!(script.resent(), vec![(1000, 1000)], "the tail loss probe");
    assert!(probe_after > MS && probe_after < 2 * MS, "{probe_after:?}");
    assert_eq!(script.wait_for_timer(), rto);
    script.resent();
    assert_eq!(script.wait_for_timer(), 2 * rto);
    script.resent();
    assert_eq!(script.wait_for_timer(), 4 * rto);
    assert_eq!(script.connection.consecutive_timeouts(), 3);
}

/// Karn: the acknowledgment of a segment sent twice is no sample, and keeps the backoff.
// spec: TCP-6298-3
#[test]
fn a_retransmitted_segment_gives_no_sample() {
    let mut script = in_flight(&config(), 1);
    script.wait_for_rto();
    script.resent();
    let srtt = script.connection.srtt().unwrap();
    script.sleep(9 * MS);
    script.receive(0, 1000, Flags::ACK, 0);
    assert_eq!(script.connection.srtt(), Some(srtt));
    script.send(1000);
    assert!(script.wait_for_rto() > 2 * (10 * MS + srtt));
}

/// Karn: the acknowledgment of segments sent once is no sample either, if it waited for the
/// retransmission of an earlier one.
#[test]
fn segments_acknowledged_with_a_retransmission_give_no_sample() {
    let mut script = in_flight(&config(), 3);
    script.wait_for_rto();
    script.resent();
    let srtt = script.connection.srtt();
    script.sleep(9 * MS);
    script.receive(0, 3000, Flags::ACK, 0);
    assert_eq!(script.connection.srtt(), srtt);
}

/// RFC 6298 §3: a sample in each round trip, even if the cumulative point does not move.
#[test]
fn a_segment_sacked_for_the_first_time_gives_a_sample() {
    let mut script = in_flight(&config(), 2);
    let srtt = script.connection.srtt().unwrap();
    script.sleep(4 * MS);
    script.receive_sack(0, &[(1000, 2000)]);
    assert!(script.connection.srtt().unwrap() > srtt + MS / 4);
}

/// The acknowledgment, after the link has returned, of data sent before the link failed measures
/// the outage, not the path.
#[test]
fn a_round_trip_over_an_outage_gives_no_sample() {
    let mut script = in_flight(&config(), 1);
    let srtt = script.connection.srtt();
    script.sleep(Duration::from_secs(30));
    script.connection.retransmit_now(script.now);
    script.sleep(100 * US);
    script.receive(0, 1000, Flags::ACK, 0);
    assert_eq!(script.connection.srtt(), srtt);
    script.send(1000);
    script.sleep(4 * MS);
    script.receive(0, 2000, Flags::ACK, 0);
    assert!(script.connection.srtt() > srtt, "later ones count");
}

/// RFC 6675 §5.1: a recovery ends when all that was in flight at its start is acknowledged.
// spec: TCP-6675-3
#[test]
fn a_recovery_ends_with_the_last_octet_and_not_before() {
    let mut script = in_flight(&config(), 10);
    script.receive_sack(0, &[(1000, 4000)]);
    script.resent();
    script.sleep(100 * US);
    script.receive(0, 9999, Flags::ACK, 0);
    assert_ne!(script.connection.snd.recovery, Recovery::Open);
    script.receive(0, 10_000, Flags::ACK, 0);
    assert_eq!(script.connection.snd.recovery, Recovery::Open);
}

/// RFC 9937: one segment more than has arrived only "when safe": if no further loss was found.
#[test]
fn an_acknowledgment_that_reveals_a_loss_adds_no_segment() {
    let congestion = CongestionKind::NewReno;
    let mut script = in_flight(&Config { congestion, ..config() }, 10);
    script.receive_sack(0, &[(1000, 2000), (5000, 10_000)]);
    assert_eq!(script.resent(), vec![(0, 1000), (2000, 1000), (3000, 1000), (4000, 1000)]);
    script.sleep(200 * US);
    // The first and the last retransmission have arrived: those between them are lost again. In
    // all, 8000 bytes arrived and 4000 were sent.
    script.receive_sack(2000, &[(4000, 10_000)]);
    assert_eq!(script.connection.cwnd(), 4000);
}

/// RFC 9293 §3.8.3: R2, here 100 s.
// spec: TCP-9293-12
#[test]
fn a_silent_peer_is_given_up_after_r2() {
    let mut script = in_flight(&config(), 2);
    let start = script.now;
    while script.connection.poll_timeout().is_some() {
        script.wait_for_timer();
        script.resent();
    }
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::TimedOut));
    let elapsed = script.now - start;
    assert!(elapsed <= Duration::from_secs(100) && elapsed > Duration::from_secs(99));
}

// spec: TCP-5681-5
#[test]
fn idle_time_restarts_from_the_initial_window() {
    let mut script = in_flight(&config(), 10);
    script.receive(0, 10_000, Flags::ACK, 0);
    assert_eq!(script.connection.cwnd(), 20_000);
    script.sleep(Duration::from_secs(2));
    script.connection.send_budget(script.now);
    assert_eq!(script.connection.cwnd(), 10_000);
}

/// TCP-PMTU-4: segments that no longer fit are cut and retransmitted, without a smaller cwnd.
// spec: TCP-PMTU-4, TCP-PMTU-7
#[test]
fn smaller_path_mtu_cuts_segments_in_flight() {
    let mut script = Script::established(&config());
    script.send(1000);
    script.send(300);
    script.send(1000);
    let cwnd = script.connection.cwnd();
    script.connection.set_path_mtu(script.now, 420);
    assert_eq!(script.connection.emss(), 400);
    let expected = vec![(0, 400), (400, 400), (800, 200), (1300, 400), (1700, 400), (2100, 200)];
    assert_eq!(script.resent(), expected);
    assert_eq!(script.connection.cwnd(), cwnd);
    script.connection.snd.board.check();
    script.receive(0, 2300, Flags::ACK, 0);
    assert_eq!(script.connection.poll_timeout(), None);
    // RFC 5681 §3.1: a timeout leaves one segment, of the current size.
    script.send(400);
    script.wait_for_rto();
    assert_eq!(script.connection.cwnd(), 400);
}

#[test]
fn only_icmp_errors_about_data_in_flight_are_accepted() {
    let mut script = in_flight(&config(), 2);
    script.receive(0, 1000, Flags::ACK, 0);
    let at = [999, 1000, 1999, 2000].map(|at| script.connection.is_in_flight(ack(at)));
    assert_eq!(at, [false, true, true, false]);
}

#[test]
fn acknowledging_everything_stops_every_timer() {
    let mut script = in_flight(&config(), 3);
    assert!(script.connection.poll_timeout().is_some());
    script.receive(0, 3000, Flags::ACK, 0);
    assert_eq!(Tcb::poll_timeout(&script.connection), None);
}

#[test]
fn only_segments_beyond_a_gap_count_as_out_of_order() {
    let mut script = Script::established(&config());
    for at in [100, 300, 500] {
        script.receive(at, 0, Flags::ACK, 100);
    }
    assert_eq!(script.connection.counters().out_of_order, 3);
    script.receive(0, 0, Flags::ACK, 100);
    script.receive(200, 0, Flags::ACK, 100);
    assert_eq!(script.connection.counters().out_of_order, 3, "a gap closed, another is left");
    script.receive(500, 0, Flags::ACK, 100);
    assert_eq!(script.connection.counters().out_of_order, 4, "a duplicate beyond the gap");
    assert_eq!(script.connection.counters().duplicates, 1);
}

/// RFC 8985 §6.2 step 2: an acknowledgment that arrives sooner after a retransmission than any
/// round trip is for the original, and is no evidence about segments sent before the
/// retransmission.
#[test]
fn acknowledgment_faster_than_any_round_trip_is_for_the_original() {
    let mut script = in_flight(&config(), 10);
    script.sleep(100 * US);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.sleep(2 * US);
    script.receive_sack(4000, &[(5000, 6000)]);
    assert_eq!(script.resent(), vec![(4000, 1000)]);
    script.sleep(2 * US);
    script.receive_sack(6000, &[(7000, 8000)]);
    assert_eq!(script.resent(), vec![(6000, 1000)]);
}

/// RFC 9293 §3.8.3: from R1 on, three transmissions, the path is suspect; R2 is what the
/// application set.
#[test]
fn r1_marks_the_path_suspect_and_r2_is_the_user_timeout() {
    let patience = Duration::from_secs(300);
    let mut script = in_flight(&Config { user_timeout: patience, ..config() }, 1);
    let start = script.now;
    for transmissions in 1..=5 {
        assert_eq!(script.connection.is_path_suspect(), transmissions >= 3);
        script.wait_for_rto();
        script.resent();
    }
    let mut clone = script.connection.clone();
    let ack = script.header(0, 1000, Flags::ACK);
    clone.handle_segment(script.now, &ack, 0, 1);
    assert!(!clone.is_path_suspect());
    while script.connection.poll_timeout().is_some() {
        script.wait_for_timer();
        script.resent();
    }
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::TimedOut));
    assert_eq!(script.now - start + 10 * US, patience);
}

/// The list of retransmissions is for RACK, which a connection without SACK does not use.
#[test]
fn without_sack_no_retransmission_is_recorded_for_dsack() {
    let config = Config { sack: false, initial_window_segments: Some(20), ..config() };
    let mut script = Script::established(&config);
    let mut sent = 0;
    for round in 0..50 {
        script.sleep(Duration::from_micros(300));
        let una = sent;
        for _ in 0..6 {
            if script.connection.send_budget(script.now).bytes >= 1000 {
                script.send(1000);
                sent += 1000;
            }
        }
        // The first is lost: each segment behind it is answered with a duplicate.
        script.sleep(Duration::from_micros(100));
        for _ in 0..5 {
            script.receive(0, una, Flags::ACK, 0);
            script.resent();
        }
        assert!(script.connection.snd.board.copies_len() <= 1, "{round}");
        script.sleep(Duration::from_micros(100));
        script.receive(0, sent, Flags::ACK, 0);
        assert_eq!(script.connection.snd.board.copies_len(), 0, "{round}");
    }
    assert!(script.connection.counters().fast_retransmits >= 20);
}
