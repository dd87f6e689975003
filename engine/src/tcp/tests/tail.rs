//! Losses without later segments that would reveal them (RFC 8985).

use super::script::{Script, config};
use crate::tcp::{Config, CongestionKind, Flags};
use crate::time::Duration;

const US: Duration = Duration::from_micros(1);

/// `count` segments sent at once, after two that gave a round trip of 400 µs and a history.
fn in_flight(config: &Config, count: u32) -> Script {
    let mut script = Script::established(config);
    for index in 1..=20 {
        script.send(1000);
        script.sleep(400 * US);
        script.receive(0, index * 1000, Flags::ACK, 0);
    }
    for _ in 0..count {
        script.send(1000);
    }
    script
}

const BASE: u32 = 20_000;

/// RFC 8985 §7.3, and TCP-8985-5: the last segment, whole.
// spec: TCP-8985-3
#[test]
fn last_segment_is_probed_within_two_round_trips() {
    let mut script = in_flight(&config(), 3);
    let waited = script.wait_for_timer();
    // A steady path: a round trip and a half.
    assert!(waited > 400 * US && waited < 620 * US, "{waited:?}");
    assert_eq!(script.resent(), vec![(u64::from(BASE) + 2000, 1000)]);
    // RFC 8985 §7.3: the probe has a whole retransmission timeout.
    let rto = 10_000 * US + script.connection.srtt().unwrap();
    assert_eq!(script.connection.poll_timeout(), Some(script.now + rto));
    assert_eq!(script.connection.counters().loss_probes, 1);
    assert_eq!(script.connection.counters().retransmissions, 0, "it was not taken for lost");
    assert_eq!(script.connection.counters().rtos, 0);
}

/// A segment that repairs a loss is a retransmission, even if a probe was due as well.
#[test]
fn reported_loss_is_repaired_by_a_retransmission_not_a_probe() {
    let mut script = in_flight(&config(), 6);
    script.wait_for_timer();
    script.receive_sack(BASE, &[(BASE + 1000, BASE + 5000)]);
    let resent = script.resent();
    assert_eq!(resent[0], (u64::from(BASE), 1000), "{resent:?}");
    let counters = *script.connection.counters();
    let probes = resent.iter().filter(|(start, _)| *start == u64::from(BASE) + 5000).count();
    assert_eq!(counters.retransmissions, (resent.len() - probes) as u64, "{resent:?}");
}

/// RFC 8985 §7.2: one probe, then the retransmission timer.
// spec: TCP-8985-3
#[test]
fn loss_probe_is_not_repeated_before_an_acknowledgment() {
    let mut script = in_flight(&config(), 1);
    script.wait_for_timer();
    assert_eq!(script.resent().len(), 1);
    script.wait_for_timer();
    assert_eq!(script.connection.counters().rtos, 1);
    assert_eq!(script.connection.counters().loss_probes, 1);
}

/// RFC 8985 §7.3: "transmit the lowest-sequence unsent segment" if there is one.
// spec: TCP-8985-3
#[test]
fn new_data_is_preferred_for_a_probe() {
    let mut script = in_flight(&config(), 1);
    while script.connection.send_budget(script.now).bytes > 0 {
        script.send(1000);
    }
    let cwnd_full = script.connection.send_budget(script.now).bytes;
    assert_eq!(cwnd_full, 0);
    script.wait_for_timer();
    assert_eq!(script.resent(), vec![]);
    assert_eq!(script.connection.send_budget(script.now).bytes, 1000);
    script.send(1000);
    assert_eq!(script.connection.send_budget(script.now).bytes, 0);
}

/// RFC 8985 §7.4: the probe must not hide a loss from congestion control.
// spec: TCP-8985-4
#[test]
fn a_loss_that_the_probe_repaired_reduces_the_window() {
    let mut script = in_flight(&config(), 4);
    script.wait_for_timer();
    script.resent();
    script.sleep(400 * US);
    let cwnd = script.connection.cwnd();
    script.receive(0, BASE + 4000, Flags::ACK, 0);
    assert!(script.connection.cwnd() >= cwnd, "not known yet");
    script.send(1000);
    script.sleep(400 * US);
    script.receive(0, BASE + 5000, Flags::ACK, 0);
    assert!(script.connection.cwnd() < cwnd);
}

#[test]
fn unneeded_probe_reduces_no_window() {
    for duplicate in [vec![], vec![(BASE + 3000, BASE + 4000)]] {
        let mut script = in_flight(&config(), 4);
        script.wait_for_timer();
        script.resent();
        script.sleep(300 * US);
        script.receive(0, BASE + 4000, Flags::ACK, 0);
        let cwnd = script.connection.cwnd();
        script.receive_sack(BASE + 4000, &duplicate);
        script.send(1000);
        script.sleep(400 * US);
        script.receive(0, BASE + 5000, Flags::ACK, 0);
        assert!(script.connection.cwnd() >= cwnd);
    }
}

/// The probe's SACK reveals what was lost before it.
#[test]
fn a_lost_tail_of_several_segments_is_repaired_without_a_timeout() {
    let mut script = in_flight(&config(), 4);
    script.sleep(400 * US);
    script.receive(0, BASE + 1000, Flags::ACK, 0);
    script.wait_for_timer();
    assert_eq!(script.resent(), vec![(u64::from(BASE) + 3000, 1000)]);
    script.sleep(400 * US);
    script.receive_sack(BASE + 1000, &[(BASE + 3000, BASE + 4000)]);
    // As many bytes as have arrived (RFC 9937).
    assert_eq!(script.resent(), vec![(u64::from(BASE) + 1000, 1000)]);
    script.sleep(400 * US);
    script.receive_sack(BASE + 2000, &[(BASE + 3000, BASE + 4000)]);
    assert_eq!(script.resent(), vec![(u64::from(BASE) + 2000, 1000)]);
    script.sleep(400 * US);
    script.receive(0, BASE + 4000, Flags::ACK, 0);
    assert_eq!(script.connection.counters().rtos, 0);
    assert_eq!(script.connection.poll_timeout(), None);
}

/// RFC 8985 §6.2: one overtaken segment may be late by a quarter of the smallest round trip.
#[test]
fn a_single_overtaken_segment_is_lost_when_the_reordering_window_has_passed() {
    let mut script = in_flight(&config(), 2);
    script.sleep(400 * US);
    script.receive_sack(BASE, &[(BASE + 1000, BASE + 2000)]);
    assert_eq!(script.resent(), vec![]);
    let waited = script.wait_for_timer();
    // The handshake took 100 µs.
    assert!(waited <= 25 * US && waited > 24 * US, "{waited:?}");
    assert_eq!(script.resent(), vec![(u64::from(BASE), 1000)]);
    assert_eq!(script.connection.counters().fast_retransmits, 1);
}

// spec: TCP-8985-2
#[test]
fn a_segment_that_arrives_within_the_reordering_window_is_not_sent_again() {
    let mut script = in_flight(&config(), 2);
    script.sleep(400 * US);
    script.receive_sack(BASE, &[(BASE + 1000, BASE + 2000)]);
    script.sleep(20 * US);
    script.receive(0, BASE + 2000, Flags::ACK, 0);
    assert_eq!(script.connection.poll_timeout(), None);
    assert_eq!(script.connection.counters().retransmissions, 0);
}

/// RFC 8985 §3.2: a lost retransmission is found by a segment sent after it.
#[test]
fn a_lost_retransmission_needs_no_timeout() {
    let mut script = in_flight(&config(), 5);
    script.sleep(400 * US);
    script.receive_sack(BASE, &[(BASE + 1000, BASE + 5000)]);
    assert_eq!(script.resent(), vec![(u64::from(BASE), 1000)]);
    script.send(1000);
    script.sleep(400 * US);
    script.receive_sack(BASE, &[(BASE + 1000, BASE + 6000)]);
    assert_eq!(script.resent(), vec![(u64::from(BASE), 1000)]);
    assert_eq!(script.connection.counters().rtos, 0);
    assert_eq!(script.connection.counters().fast_retransmits, 1, "one reduction");
}

/// RFC 6582 §4.1: after a timeout without SACK, bytes that the peer has are not retransmitted.
#[test]
fn timeout_without_sack_retransmits_only_missing_data() {
    let congestion = CongestionKind::NewReno;
    let config = Config { sack: false, congestion, ..config() };
    let mut script = in_flight(&config, 10);
    let base = u64::from(BASE);
    script.wait_for_timer();
    assert_eq!(script.connection.counters().rtos, 1);
    assert_eq!(script.resent(), vec![(base, 1000)]);
    script.sleep(400 * US);
    // Only the first was missing.
    script.receive(0, BASE + 10_000, Flags::ACK, 0);
    assert_eq!(script.resent(), vec![]);
    // Duplicates of retransmitted segments begin no recovery.
    for _ in 0..4 {
        script.receive(0, BASE + 10_000, Flags::ACK, 0);
    }
    assert_eq!(script.connection.counters().fast_retransmits, 0);
}

/// RFC 8985 §7.4.2: the original arrived as well, so nothing was lost, no matter what else the
/// acknowledgment covers.
#[test]
fn a_duplicate_reported_with_later_data_reduces_nothing() {
    let mut script = in_flight(&config(), 4);
    script.wait_for_timer();
    assert_eq!(script.resent(), vec![(u64::from(BASE) + 3000, 1000)]);
    script.send(1000);
    script.sleep(400 * US);
    let (cwnd, ssthresh) = (script.connection.cwnd(), script.connection.ssthresh());
    script.receive_sack(BASE + 5000, &[(BASE + 3000, BASE + 4000)]);
    assert!(script.connection.cwnd() >= cwnd);
    assert_eq!(script.connection.ssthresh(), ssthresh);
}

/// RFC 8985 §6.2 step 1: the reordering window follows a path that has become longer.
#[test]
fn the_reordering_window_forgets_a_shorter_path() {
    let mut script = in_flight(&config(), 0);
    for index in 1..=2 {
        script.sleep(Duration::from_secs(160));
        script.send(1000);
        script.sleep(400 * US);
        script.receive(0, BASE + index * 1000, Flags::ACK, 0);
    }
    script.send(1000);
    script.send(1000);
    script.sleep(400 * US);
    script.receive_sack(BASE + 2000, &[(BASE + 3000, BASE + 4000)]);
    assert_eq!(script.resent(), vec![]);
    let waited = script.wait_for_timer();
    assert!(waited <= 100 * US && waited > 99 * US, "a quarter of 400 us: {waited:?}");
}

/// RFC 8985 §6.3: segments sent less than a round trip before the timer expired are not lost
/// because the first segment is.
// spec: TCP-8985-4
#[test]
fn timeout_leaves_recently_sent_segments_in_flight() {
    let mut script = in_flight(&config(), 2);
    script.wait_for_timer();
    assert_eq!(script.resent().len(), 1);
    let rto = 10_000 * US + script.connection.srtt().unwrap();
    script.sleep(rto - 300 * US);
    script.send(1000);
    script.wait_for_rto();
    assert_eq!(script.resent(), vec![(u64::from(BASE), 1000)]);
    assert_eq!(script.connection.snd.board.pipe(), 2000, "the copy, and the last");
}

/// RFC 8985 §7.2 adds the longest delay of an acknowledgment if a single segment is in flight; a
/// peer configured for a long delay is nevertheless probed soon, because samples show the delay.
#[test]
fn a_long_delayed_ack_makes_a_probe_little_later() {
    let delayed_ack = Duration::from_millis(200);
    let waited = [Duration::ZERO, delayed_ack]
        .map(|delayed_ack| in_flight(&Config { delayed_ack, ..config() }, 1).wait_for_timer());
    assert!(waited[1] > waited[0] && waited[1] <= waited[0] + 50 * US, "{waited:?}");
}

/// While acknowledgments arrive, only silence after the last one counts.
#[test]
fn acknowledgments_postpone_the_probe() {
    let mut script = in_flight(&config(), 3);
    for acked in [1000, 2000] {
        script.sleep(if acked == 1000 { 400 * US } else { 180 * US });
        script.connection.handle_timeout(script.now);
        script.receive(0, BASE + acked, Flags::ACK, 0);
    }
    let last_ack = script.now;
    while script.connection.counters().loss_probes == 0 {
        script.wait_for_timer();
    }
    assert!(script.now - last_ack >= 90 * US, "{:?}", script.now - last_ack);
}

/// RFC 8985 §7.4.2: a SACK of new data beyond the probe shows nothing about the probe; the
/// reduction is computed from what was in flight.
#[test]
fn sack_of_later_data_leaves_the_probe_undecided() {
    let mut script = in_flight(&config(), 4);
    script.wait_for_timer();
    script.resent();
    script.sleep(400 * US);
    script.receive(0, BASE + 4000, Flags::ACK, 0);
    for _ in 0..6 {
        script.send(1000);
    }
    script.sleep(400 * US);
    script.receive_sack(BASE + 4000, &[(BASE + 5000, BASE + 6000)]);
    script.receive(0, BASE + 10_000, Flags::ACK, 0);
    assert_eq!(script.connection.ssthresh(), 4200, "0.7 of six segments");
}
