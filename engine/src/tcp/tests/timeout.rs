//! Effect of a retransmission timeout on the congestion window (RFC 5681 §3.1, RFC 3465 §2.3).

use super::script::{Script, config};
use crate::tcp::timer::Timer;
use crate::tcp::{Config, CongestionKind, Flags};
use crate::time::Duration;

const US: Duration = Duration::from_micros(1);
const KINDS: [CongestionKind; 2] = [CongestionKind::NewReno, CongestionKind::Cubic];

/// `count` segments of 1000 bytes in flight, 10 µs apart, and 100 µs later.
fn in_flight(config: &Config, count: u16) -> Script {
    let config = Config { initial_window_segments: Some(count), ..*config };
    let mut script = Script::established(&config);
    for _ in 0..count {
        script.send(1000);
        script.sleep(10 * US);
    }
    script.sleep(100 * US);
    script
}

/// RFC 3465 §2.3: L is one segment until all that was in flight at the timeout is acknowledged, no
/// matter how much one acknowledgment covers, and if it had been SACKed or not.
#[test]
fn after_a_timeout_an_acknowledgment_adds_one_segment() {
    for congestion in KINDS {
        for sacked in [false, true] {
            let mut script = in_flight(&Config { congestion, ..config() }, 50);
            if sacked {
                script.receive_sack(0, &[(1000, 50_000)]);
                assert_eq!(script.resent(), vec![(0, 1000)]);
            }
            script.wait_for_rto();
            script.resent();
            assert_eq!(script.connection.cwnd(), 1000);
            let ssthresh = script.connection.ssthresh();
            assert!(ssthresh >= 25_000);
            script.sleep(100 * US);
            script.receive(0, 50_000, Flags::ACK, 0);
            assert_eq!(script.connection.cwnd(), 2000, "{congestion:?}, sacked: {sacked}");
            assert_eq!(script.connection.ssthresh(), ssthresh);
        }
    }
}

#[test]
fn an_acknowledgment_of_less_than_a_segment_adds_that() {
    for congestion in KINDS {
        let mut script = in_flight(&Config { congestion, ..config() }, 10);
        script.wait_for_rto();
        script.resent();
        script.receive(0, 300, Flags::ACK, 0);
        assert_eq!(script.connection.cwnd(), 1300);
    }
}

/// After that, an acknowledgment counts for all that it covers again.
#[test]
fn slow_start_goes_on_as_usual_after_the_recovery() {
    for congestion in KINDS {
        let mut script = in_flight(&Config { congestion, ..config() }, 50);
        script.wait_for_rto();
        script.resent();
        script.receive(0, 50_000, Flags::ACK, 0);
        for _ in 0..2 {
            script.send(1000);
        }
        script.connection.send_budget(script.now);
        script.sleep(100 * US);
        script.receive(0, 52_000, Flags::ACK, 0);
        assert_eq!(script.connection.cwnd(), 4000, "{congestion:?}");
    }
}

/// RFC 6675 §5.1, RFC 9937: bytes SACKed in a recovery have permitted data then, and do not let the
/// window grow when the recovery ends.
#[test]
fn end_of_a_recovery_adds_nothing_for_sacked_data() {
    let congestion = CongestionKind::NewReno;
    let mut script = in_flight(&Config { congestion, ..config() }, 10);
    script.receive_sack(0, &[(1000, 10_000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.sleep(100 * US);
    script.receive(0, 10_000, Flags::ACK, 0);
    assert_eq!(script.connection.cwnd(), 5000);
}

/// Without a recovery, bytes that reordering SACKed first count when they are acknowledged.
#[test]
fn reordered_octets_grow_the_window_when_acknowledged() {
    let mut script = in_flight(&config(), 10);
    script.receive_sack(0, &[(1000, 2000)]);
    script.receive(0, 2000, Flags::ACK, 0);
    assert_eq!(script.connection.cwnd(), 12_000);
}

/// RFC 5681 §3.1: if the timer expires again for the same data, "the value of ssthresh is held
/// constant", and so is the state of CUBIC: the window grows as after one timeout.
#[test]
fn a_second_timeout_reduces_nothing_more() {
    for congestion in KINDS {
        let grown = [1, 2].map(|timeouts| {
            let mut script = in_flight(&Config { congestion, ..config() }, 10);
            for _ in 0..timeouts {
                script.wait_for_rto();
                script.resent();
            }
            let mut acked = 10_000;
            script.receive(0, acked, Flags::ACK, 0);
            for _ in 0..20 {
                while script.connection.send_budget(script.now).bytes > 0 {
                    script.send(1000);
                    acked += 1000;
                }
                script.sleep(100 * US);
                script.receive(0, acked, Flags::ACK, 0);
            }
            (script.connection.cwnd(), script.connection.ssthresh())
        });
        assert_eq!(grown[0], grown[1], "{congestion:?}");
        assert!(grown[0].0 > grown[0].1, "it has grown");
    }
}

/// RFC 6298 §5.3 holds in a recovery, too: an acknowledgment of new data restarts the timer, even
/// if cwnd permits no retransmission.
#[test]
fn an_acknowledgment_in_a_recovery_restarts_the_timer() {
    let mut script = in_flight(&config(), 10);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    script.sleep(5000 * US);
    script.receive_sack(4000, &[(6000, 7000)]);
    let mut timers = script.connection.timers;
    for other in [Timer::Reordering, Timer::LossProbe] {
        timers.clear(other);
    }
    assert!(timers.next().unwrap() - script.now >= Duration::from_millis(10));
}

/// RFC 6298 §5: the first segment is retransmitted, and has a whole timeout to be acknowledged.
#[test]
fn a_fast_retransmission_restarts_the_timer() {
    let mut script = in_flight(&config(), 10);
    script.sleep(5000 * US);
    script.receive_sack(0, &[(1000, 4000)]);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    assert!(script.wait_for_rto() >= Duration::from_millis(10));
}

/// RFC 5681 §3.2: "the additional data sent in limited transmit MUST NOT be included" in
/// FlightSize.
#[test]
fn limited_transmit_segments_do_not_raise_ssthresh() {
    let congestion = CongestionKind::NewReno;
    let mut script = in_flight(&Config { congestion, sack: false, ..config() }, 10);
    for _ in 0..2 {
        script.receive(0, 0, Flags::ACK, 0);
        script.send(1000);
    }
    script.receive(0, 0, Flags::ACK, 0);
    assert_eq!(script.resent(), vec![(0, 1000)]);
    assert_eq!(script.connection.ssthresh(), 5000);
}

/// RFC 6582 §3.2 step 1: only an acknowledgment that "covers more than recover" lets duplicates
/// begin another recovery; duplicates at the end of the last one may answer its retransmissions.
#[test]
fn duplicates_at_the_end_of_a_recovery_begin_none() {
    let mut script = in_flight(&Config { sack: false, ..config() }, 4);
    script.wait_for_rto();
    script.resent();
    for acked in [4000, 5000] {
        script.receive(0, acked, Flags::ACK, 0);
        script.send(1000);
        for _ in 0..3 {
            script.receive(0, acked, Flags::ACK, 0);
        }
        let began = script.connection.counters().fast_retransmits;
        assert_eq!(began, u64::from(acked > 4000), "{acked}");
    }
}

/// RFC 6582 §3.2 step 3: a partial acknowledgment cancels what duplicates counted for.
#[test]
fn a_partial_acknowledgment_takes_its_duplicates_along() {
    let mut script = in_flight(&Config { sack: false, ..config() }, 6);
    for _ in 0..3 {
        script.receive(0, 0, Flags::ACK, 0);
    }
    assert_eq!(script.resent(), vec![(0, 1000)]);
    assert_eq!(script.connection.snd.board.pipe(), 3000);
    script.receive(0, 3000, Flags::ACK, 0);
    assert_eq!(script.resent(), vec![(3000, 1000)]);
    assert_eq!(script.connection.snd.board.pipe(), 3000);
}
