//! RFC 5682: detection of spurious retransmission timeouts without timestamps (§2.1), and with
//! selective acknowledgments (§3.1).

use crate::conformance::script::{ESTABLISHED, ESTABLISHED_WITHOUT_SACK, config, listen};

/// Ten segments in flight, ten more to be sent, and the timer runs out.
const TIMED_OUT: &str = "
        0.010 ! write 20000
        0.010 > .  1:1001 ack 1
        0.010 > .  1001:2001 ack 1
        0.010 > .  2001:3001 ack 1
        0.010 > .  3001:4001 ack 1
        0.010 > .  4001:5001 ack 1
        0.010 > .  5001:6001 ack 1
        0.010 > .  6001:7001 ack 1
        0.010 > .  7001:8001 ack 1
        0.010 > .  8001:9001 ack 1
        0.010 > .  9001:10001 ack 1
        *     > .  1:1001 ack 1
";

fn after_a_timeout(table: &str) {
    listen(config(), &[ESTABLISHED_WITHOUT_SACK, TIMED_OUT, table].concat());
}

#[test]
fn a_timeout_is_undone_when_a_segment_sent_once_is_acknowledged() {
    // Step 2b: two new segments. Step 3b: the second acknowledgment is for an original. The window
    // gets its old value, plus growth for the acknowledged data (RFC 4015 §3.2).
    after_a_timeout(
        "
        0.030 < .  1:1 ack 1001
        0.030 > .  10001:11001 ack 1
        0.030 > .  11001:12001 ack 1
        0.031 < .  1:1 ack 2001
        0.031 > .  12001:13001 ack 1
        0.032 < .  1:1 ack 3001
        0.032 > .  13001:14001 ack 1
        0.032 > .  14001:15001 ack 1
        0.033 < .  1:1 ack 15001
        0.033 > .  15001:16001 ack 1
        0.033 > .  16001:17001 ack 1
        0.033 > .  17001:18001 ack 1
        0.033 > .  18001:19001 ack 1
        0.033 > .  19001:20001 ack 1
        0.034 < .  1:1 ack 20001
        ",
    );
}

#[test]
fn timeout_is_kept_if_the_next_acknowledgment_is_a_duplicate() {
    // Step 3a: the new segments have arrived, the second old one has not.
    after_a_timeout(
        "
        0.030 < .  1:1 ack 1001
        0.030 > .  10001:11001 ack 1
        0.030 > .  11001:12001 ack 1
        0.031 < .  1:1 ack 1001
        0.031 > .  1001:2001 ack 1
        ",
    );
}

#[test]
fn timeout_is_kept_if_the_first_acknowledgment_is_a_duplicate() {
    // Step 2a: slow start from one segment.
    after_a_timeout(
        "
        0.030 < .  1:1 ack 1
        0.031 < .  1:1 ack 1001
        0.031 > .  1001:2001 ack 1
        0.031 > .  2001:3001 ack 1
        ",
    );
}

#[test]
fn timeout_is_kept_if_all_sent_data_is_acknowledged() {
    // Step 2a: the acknowledgment may be for the copy, after the others had arrived. Slow start
    // goes on: one segment, and one for the acknowledgment, whatever it covers (RFC 3465 §2.3);
    // then as much as is acknowledged.
    after_a_timeout(
        "
        0.030 < .  1:1 ack 10001
        0.030 > .  10001:11001 ack 1
        0.030 > .  11001:12001 ack 1
        0.031 < .  1:1 ack 12001
        0.031 > .  12001:13001 ack 1
        0.031 > .  13001:14001 ack 1
        0.031 > .  14001:15001 ack 1
        0.031 > .  15001:16001 ack 1
        0.032 < .  1:1 ack 16001
        0.032 > .  16001:17001 ack 1
        0.032 > .  17001:18001 ack 1
        0.032 > .  18001:19001 ack 1
        0.032 > .  19001:20001 ack 1
        0.033 < .  1:1 ack 20001
        ",
    );
}

#[test]
fn without_new_data_a_timeout_starts_the_usual_recovery() {
    // Step 2b: "If the TCP sender does not have any new data to transmit" it goes on with old data.
    listen(
        config(),
        &[
            ESTABLISHED_WITHOUT_SACK,
            "
        0.010 ! write 3000
        0.010 > .  1:1001 ack 1
        0.010 > .  1001:2001 ack 1
        0.010 > P. 2001:3001 ack 1
        *     > .  1:1001 ack 1
        0.030 < .  1:1 ack 1001
        0.030 > .  1001:2001 ack 1
        0.030 > P. 2001:3001 ack 1
        0.031 < .  1:1 ack 3001
        ",
        ]
        .concat(),
    );
}

/// A similar situation with selective acknowledgments: before the timer, a tail loss probe sends
/// new data.
const TIMED_OUT_WITH_SACK: &str = "
        0.010 ! write 20000
        0.010 > .  1:1001 ack 1
        0.010 > .  1001:2001 ack 1
        0.010 > .  2001:3001 ack 1
        0.010 > .  3001:4001 ack 1
        0.010 > .  4001:5001 ack 1
        0.010 > .  5001:6001 ack 1
        0.010 > .  6001:7001 ack 1
        0.010 > .  7001:8001 ack 1
        0.010 > .  8001:9001 ack 1
        0.010 > .  9001:10001 ack 1
        *     > .  10001:11001 ack 1
        *     > .  1:1001 ack 1
";

#[test]
fn with_sack_a_timeout_is_undone_when_a_segment_sent_once_is_acknowledged() {
    // §3.1 step 2: duplicates decide nothing. Step 2b: two new segments. Step 3b: SACKed data is an
    // original. The segment before it is late, and the sender waits for it.
    listen(
        config(),
        &[
            ESTABLISHED,
            TIMED_OUT_WITH_SACK,
            "
        0.0300 < .  1:1 ack 1 <sack=2001:3001>
        0.0301 < .  1:1 ack 1001 <sack=2001:3001>
        0.0301 > .  11001:12001 ack 1
        0.0301 > .  12001:13001 ack 1
        0.0302 < .  1:1 ack 4001
        0.0302 > .  13001:14001 ack 1
        0.0302 > .  14001:15001 ack 1
        0.0302 > .  15001:16001 ack 1
        0.0303 < .  1:1 ack 16001
        0.0303 > .  16001:17001 ack 1
        0.0303 > .  17001:18001 ack 1
        0.0303 > .  18001:19001 ack 1
        0.0303 > .  19001:20001 ack 1
        0.0304 < .  1:1 ack 20001
        ",
        ]
        .concat(),
    );
}

#[test]
fn with_sack_a_timeout_is_kept_if_new_segments_overtake_old_ones() {
    // §3.1 step 3a: "the SACK information covers more than RecoveryPoint": the old segments are
    // retransmitted.
    listen(
        config(),
        &[
            ESTABLISHED,
            TIMED_OUT_WITH_SACK,
            "
        0.030 < .  1:1 ack 1001
        0.030 > .  11001:12001 ack 1
        0.030 > .  12001:13001 ack 1
        0.031 < .  1:1 ack 1001 <sack=11001:12001>
        0.031 > .  1001:2001 ack 1
        ",
        ]
        .concat(),
    );
}
