//! RFC 5681, 6582, 6675, 8985: lost segments are retransmitted without waiting for a timeout.

use crate::conformance::script::{ESTABLISHED, ESTABLISHED_WITHOUT_SACK, config, listen};

/// Ten segments in flight, none acknowledged.
const TEN_SENT: &str = "
        0.010 ! write 10000
        0.010 > .  1:1001 ack 1
        0.010 > .  1001:2001 ack 1
        0.010 > .  2001:3001 ack 1
        0.010 > .  3001:4001 ack 1
        0.010 > .  4001:5001 ack 1
        0.010 > .  5001:6001 ack 1
        0.010 > .  6001:7001 ack 1
        0.010 > .  7001:8001 ack 1
        0.010 > .  8001:9001 ack 1
        0.010 > P. 9001:10001 ack 1
";

#[test]
fn three_segments_beyond_a_gap_retransmit_the_lost_one() {
    // RFC 6675 §5, RFC 8985 §6.2.
    listen(
        config(),
        &[
            ESTABLISHED,
            TEN_SENT,
            "
        0.011 < .  1:1 ack 1 <sack=1001:2001>
        0.011 < .  1:1 ack 1 <sack=1001:3001>
        0.011 < .  1:1 ack 1 <sack=1001:4001>
        0.011 > .  1:1001 ack 1
        0.012 < .  1:1 ack 10001
        ",
        ]
        .concat(),
    );
}

#[test]
fn a_lost_retransmission_does_not_stop_new_data() {
    listen(
        config(),
        &[
            ESTABLISHED,
            TEN_SENT,
            "
        0.011 < .  1:1 ack 1 <sack=1001:10001>
        0.011 > .  1:1001 ack 1
        0.012 < .  1:1 ack 10001
        0.020 ! write 100
        0.020 > P. 10001:10101 ack 1
        0.021 < .  1:1 ack 10101
        ",
        ]
        .concat(),
    );
}

#[test]
fn without_sack_three_duplicate_acks_retransmit_the_lost_segment() {
    // RFC 5681 §3.2 step 2, RFC 6582 §3.2.
    listen(
        config(),
        &[
            ESTABLISHED_WITHOUT_SACK,
            TEN_SENT,
            "
        0.011 < .  1:1 ack 1
        0.011 < .  1:1 ack 1
        0.011 < .  1:1 ack 1
        0.011 > .  1:1001 ack 1
        0.012 < .  1:1 ack 10001
        ",
        ]
        .concat(),
    );
}

#[test]
fn without_sack_a_partial_ack_retransmits_the_next_segment() {
    // RFC 6582 §3.2 step 3.
    listen(
        config(),
        &[
            ESTABLISHED_WITHOUT_SACK,
            TEN_SENT,
            "
        0.011 < .  1:1 ack 1
        0.011 < .  1:1 ack 1
        0.011 < .  1:1 ack 1
        0.011 > .  1:1001 ack 1
        0.012 < .  1:1 ack 5001
        0.012 > .  5001:6001 ack 1
        0.013 < .  1:1 ack 10001
        ",
        ]
        .concat(),
    );
}
