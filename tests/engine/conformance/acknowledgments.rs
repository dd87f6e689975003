//! RFC 9293 §3.8.6.3 and RFC 5681 §4.2: acknowledgments; RFC 2018 and 2883: selective ones.

use crate::conformance::script::{ESTABLISHED, config, listen};

fn established(table: &str) {
    listen(config(), &[ESTABLISHED, table].concat());
}

// spec: TCP-9293-18
#[test]
fn every_second_segment_is_acknowledged_at_once() {
    // RFC 9293 MUST-58, SHLD-19.
    established(
        "
        0.010 < .  1:1001 ack 1
        0.010 < .  1001:2001 ack 1
        0.010 > .  1:1 ack 2001
        ",
    );
}

// spec: TCP-9293-18
#[test]
fn a_single_segment_is_acknowledged_within_half_a_second() {
    // RFC 9293 MUST-40; the default delay is 50 µs.
    established(
        "
        0.01000 < .  1:1001 ack 1
        0.01005 > .  1:1 ack 1001
        ",
    );
}

// spec: TCP-2018-3, TCP-5681-4
#[test]
fn segment_beyond_a_gap_is_acknowledged_at_once() {
    // RFC 5681 §4.2. In streaming mode only copies are kept beyond a gap, so nothing is reported, and
    // what fills the gap is acknowledged at once with them.
    established(
        "
        0.010 < .  1001:2001 ack 1
        0.010 > .  1:1 ack 1 <>
        0.011 < .  1:1001 ack 1
        0.011 > .  1:1 ack 2001
        ",
    );
}

#[test]
fn a_duplicate_is_reported_in_the_first_block() {
    // RFC 2883 §4, first example.
    established(
        "
        0.010 < .  1:1001 ack 1
        *     > .  1:1 ack 1001
        0.020 < .  1:1001 ack 1
        0.020 > .  1:1 ack 1001 <sack=1:1001>
        ",
    );
}
